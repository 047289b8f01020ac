"""Ragged data: views of each agent, what is refused, and federated data of many agents."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import describe, from_arrays, from_rows, label_histogram, merge, ragged, split, standardise, take

SIZES = np.array([1, 4, 2, 3])
RNG = np.random.default_rng(0)
ROWS = {"x": RNG.standard_normal((10, 2)), "y": RNG.integers(0, 3, 10)}
DATA = from_rows(ragged(ROWS, SIZES))
LISTED = from_arrays({str(i): samples for i, samples in enumerate(ragged(ROWS, SIZES))}, name="rows")


def same(left: Any, right: Any) -> None:
    """Check that two sets of federated data hold the same samples, whatever their form."""
    assert [str(name) for name in left.names] == [str(name) for name in right.names]
    for part in ("train", "test"):
        for one, other in zip(getattr(left, part), getattr(right, part), strict=True):
            for key in ("x", "y"):
                np.testing.assert_array_equal(one[key], other[key])
                assert one[key].dtype == other[key].dtype
    assert left.classes.tolist() == right.classes.tolist()


def test_an_agent_is_a_view() -> None:
    held = ragged(ROWS, SIZES)
    assert len(held) == 4
    assert np.shares_memory(held[1]["x"], held.rows["x"])
    np.testing.assert_array_equal(held[1]["y"], ROWS["y"][1:5])
    np.testing.assert_array_equal(held[-1]["y"], ROWS["y"][7:])
    assert [len(samples["y"]) for samples in held] == SIZES.tolist()
    assert repr(held) == "Ragged(4 agents, 10 samples, rows float64[10, 2], int64[10])"
    with pytest.raises(IndexError, match="agent 4 is not one of the 4 agents"):
        held[4]


@pytest.mark.parametrize(
    ("rows", "sizes", "sentence"),
    [
        (np.zeros(5), [2, 2], "sum of sizes = 4: must be 5, the number of rows. Give the number of samples of each"),
        (np.zeros(5), [6, -1], r"sizes\[1\] = -1: must be at least 0. Give one number of samples per agent."),
        (np.zeros(5), [2.5, 2.5], "sizes = 'float64\\[2\\]': must be a list of at least one whole number."),
        (np.zeros(5), [], "sizes = 'float64\\[0\\]': must be a list of at least one whole number."),
        ({"a": np.zeros(5), "b": np.zeros(4)}, [5], "must be arrays with the same first axis, one row per sample."),
        (np.float64(1), [1], "must be arrays with the same first axis, one row per sample."),
    ],
)
def test_rows_and_sizes_that_do_not_fit(rows: Any, sizes: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        ragged(rows, sizes)


def test_federated_rows_equal_federated_arrays() -> None:
    same(DATA, LISTED)
    assert DATA.sizes.tolist() == SIZES.tolist()
    assert DATA.shape == (2,)
    assert DATA.dtype == np.float64
    assert describe(DATA) == describe(LISTED)
    assert repr(DATA) == repr(LISTED)
    np.testing.assert_array_equal(label_histogram(DATA), label_histogram(LISTED))


def test_regrouping_keeps_the_form() -> None:
    same(take(DATA, [2, 0]), take(LISTED, [2, 0]))
    same(take(DATA, DATA.sizes > 1), take(LISTED, LISTED.sizes > 1))
    groups = [(3, 0), (1,), (2,)]
    same(merge(DATA, groups), merge(LISTED, groups))
    same(split(DATA, 0.4, seed=1), split(LISTED, 0.4, seed=1))
    scaled, used = standardise(DATA)
    other, _ = standardise(LISTED, used)
    same(scaled, other)


def test_names_labels_and_tests_of_rows() -> None:
    tests = ragged({"x": np.ones((3, 2), np.float32), "y": np.array([5, 0, 5])}, [0, 2, 1, 0])
    data = from_rows(ragged(ROWS, SIZES), tests, names=["a", "b", "c", "d"], dtype=np.float32)
    assert data.classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test_sizes.tolist() == [0, 2, 1, 0]
    assert data.names[1] == "b"
    assert data.train[0]["x"].dtype == np.float32
    texts = from_rows(ragged(ROWS | {"y": np.array(["yes", "no"] * 5)}, SIZES))
    assert texts.label_names == ("no", "yes")
    assert texts.train[1]["y"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (ROWS | {"y": ROWS["y"] - 0.5}, {}, "train data of all agents: label of sample 0"),
        (ROWS, {"classes": 2}, "must be one of the 2 classes 0..1"),
        ({"x": ROWS["x"]}, {}, r"train data = \['x'\]: must hold x and y"),
        (ROWS, {"names": ["a", "b", "a", "c"]}, "agent = 'a': is the name of several agents"),
        (ROWS, {"names": ["a"]}, r"names = \(1,\): must be 4 names"),
        (ROWS | {"x": np.where(np.arange(20).reshape(10, 2) == 9, np.nan, 1.0)}, {}, "agent 1 holds NaN or infinity"),
        (ROWS | {"x": np.array(["a"] * 10)}, {}, "train data: type of x"),
        (ROWS | {"y": np.zeros((10, 2))}, {}, "train data: shape of y"),
    ],
)
def test_rows_that_are_refused(rows: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        from_rows(ragged(rows, SIZES), **settings)


def test_agents_without_any_samples_are_refused() -> None:
    with pytest.raises(FedpdError, match=r"agent 1 has no training or test samples. Leave the agent out."):
        from_rows(ragged(ROWS, [1, 0, 9]))
    with pytest.raises(FedpdError, match="agents with test samples = 2: must be 4"):
        from_rows(ragged(ROWS, SIZES), ragged(ROWS, [5, 5]))
    with pytest.raises(FedpdError, match="train data = 'dict': must be ragged or lazy"):
        from_rows(ROWS)  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match="train data = 'NoneType': must be ragged or lazy"):
        from_rows(None)  # type: ignore[arg-type]
