"""Features scaled by statistics that all agents share: numbers by hand, sums over agents, large means, wrong inputs."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, data

LEFT, RIGHT = np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([[5.0, 7.0], [7.0, 7.0], [9.0, 7.0]])


def test_numbers_by_hand() -> None:
    """Mean of 1, 3, 5, 7, 9 is 5, their variance (16 + 4 + 0 + 4 + 16)/5 = 8; a constant feature becomes 0."""
    scaled, scaling = data.standardise([LEFT, RIGHT])
    assert scaling.mean.tolist() == [5, 7]
    assert scaling.scale.tolist() == [np.sqrt(8.0), 1]
    assert scaled[0].tolist() == [[-4 / np.sqrt(8), 0], [-2 / np.sqrt(8), 0]]
    assert scaled[1].tolist() == [[0, 0], [2 / np.sqrt(8), 0], [4 / np.sqrt(8), 0]]
    assert scaling.apply([[5.0, 8.0]]).tolist() == [[0, 1]]
    again, same = data.standardise([LEFT], scaling)
    assert same is scaling
    assert np.array_equal(again[0], scaled[0])


def test_a_federation_computes_the_same_from_sums() -> None:
    rng = np.random.default_rng(0)
    agents = [rng.normal(1e3, 2, (size, 4)) for size in (3, 10, 1)]
    first = [data.moments(x) for x in agents]
    mean = sum(one.total for one in first) / sum(one.count for one in first)
    second = data.Moments(0, np.zeros(4), np.zeros(4))
    for x in agents:
        second = second.plus(data.moments(x, mean))
    expected = data.scaling_from(second, mean)
    _, scaling = data.standardise(agents)
    assert np.array_equal(scaling.mean, expected.mean)
    assert np.array_equal(scaling.scale, expected.scale)
    pooled = np.concatenate(agents)
    np.testing.assert_allclose(scaling.mean, pooled.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(scaling.scale, pooled.std(axis=0), rtol=1e-13)


def test_a_large_mean_in_float32_stays_accurate() -> None:
    """10^6 + {0, 1, 2, 3}: float32 holds these numbers exactly, and their squares not at all."""
    x = (1e6 + np.arange(4, dtype=np.float32))[None, :, None].astype(np.float32)
    scaled, scaling = data.standardise(np.concatenate([x] * 50))
    assert scaling.mean.tolist() == [1e6 + 1.5]
    assert scaling.scale[0] == pytest.approx(np.sqrt(1.25), rel=1e-14)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled[0, :, 0], (np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25)).astype("f4"))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 0.0, -7.7e12])
def test_a_constant_feature_is_constant_despite_rounding(value: float) -> None:
    agents = [np.full((size, 1), value) for size in (3, 1000, 77, 12345)]
    scaled, scaling = data.standardise(agents)
    assert scaling.scale.tolist() == [1]
    assert max(np.abs(x).max() for x in scaled) <= 1e-15 * abs(value)


def test_federated_data_is_scaled_by_its_training_samples() -> None:
    train = {"a": {"x": np.array([[0], [2]], np.uint8), "y": [0, 1]}, "b": {"x": np.array([[4]], np.uint8), "y": [1]}}
    test = {"c": {"x": np.array([[250]], np.uint8), "y": [0]}}
    scaled, scaling = data.standardise(data.from_arrays(train, test))
    assert scaling.mean.tolist() == [2]
    assert scaling.scale.tolist() == [np.sqrt(8 / 3)]
    assert scaled.train[0]["x"].dtype == np.float32
    assert scaled.test[2]["x"].tolist() == [[np.float32(248 / np.sqrt(8 / 3))]]
    assert scaled.train[1]["y"].tolist() == [1]
    assert scaled.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((3, 2)), r"shape of data = \(3, 2\): must have the axes of agents, samples and features"),
        ([], "samples = 0: there are no samples"),
        ([np.zeros((0, 2))], "samples = 0: there are no samples"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"of agent 1 = \(3,\): must be \(2,\), as for agent 0"),
        ([np.zeros((1, 2)), np.array([[np.nan, 0]])], "data of agent 1 holds NaN or infinity"),
        ([[[1.0], [1.0, 2.0]]], "data of agent 0.* must be an array of numbers, in rows of equal length"),
        ([np.array([["a"]])], "data of agent 0.* must be an array of real numbers, not of text"),
        ({"a": np.zeros((1, 2))}, "data = 'dict': must be data by agent"),
        ("strong", "data = 'str': must be data by agent"),
        (3, "data = 'int': must be data by agent"),
    ],
)
def test_wrong_data_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        data.standardise(given)


def test_wrong_statistics_are_refused() -> None:
    _, scaling = data.standardise([LEFT])
    with pytest.raises(FedpdError, match=r"shape of x = \(1, 3\): must end in \(2,\), the shape of a sample"):
        scaling.apply(np.zeros((1, 3)))
    with pytest.raises(FedpdError, match="scaling = 'tuple': must be a Scaling"):
        data.standardise([LEFT], (0, 1))  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match=r"count = 0: there are no samples to compute statistics of\. Sum over"):
        data.scaling_from(data.Moments(0, np.zeros(1), np.zeros(1)))


def test_masked_features_are_refused_and_a_mask_without_entries_is_none() -> None:
    """A masked -999 would make the mean -37.07 of -0.08, for example."""
    hidden = np.ma.masked_equal([[-999.0, 7.0], [3.0, 7.0]], -999)
    scaled, scaling = data.standardise([np.ma.masked_array(LEFT, False), RIGHT])
    assert scaled[0].tolist() == data.standardise([LEFT, RIGHT])[0][0].tolist()
    for call in (
        lambda: data.standardise([hidden, RIGHT]),
        lambda: data.standardise(np.ma.stack([hidden, hidden])),
        lambda: data.moments(hidden),
        lambda: data.moments(LEFT, shift=hidden[0]),
        lambda: scaling.apply(hidden),
        lambda: data.ragged({"x": hidden}, [1, 1]),
        lambda: data.ragged(LEFT, np.ma.masked_equal([1, 1], 1)),
        lambda: data.lazy(lambda i: hidden, [2]),
    ):
        with pytest.raises(FedpdError, match="must not be masked: fedpd has no missing values"):
            call()


def test_statistics_of_numbers_that_are_not_finite_are_refused() -> None:
    broken = np.array([[1.0, np.nan]])
    with pytest.raises(FedpdError, match=r"x\[0, 1\] = nan: must be finite\. Clean or drop"):
        data.moments(broken)
    with pytest.raises(FedpdError, match=r"x\[0, 1\] = nan: must be finite"):
        data.standardise([LEFT])[1].apply(broken)
    with pytest.raises(FedpdError, match=r"shape of shift = \(3,\): must be \(\), or \(2,\)"):
        data.moments(LEFT, shift=[1.0, 2.0, 3.0])
