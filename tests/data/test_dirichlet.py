"""A data set without clients, divided by Dirichlet shares of the classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, data
from fedpd.data.partition import divide, divide_alike

LABELS = np.repeat(np.arange(10), 100)


def shares(rows: list[np.ndarray]) -> np.ndarray:
    """Return the share of each agent's largest class."""
    return np.array([np.bincount(LABELS[own], minlength=10).max() / len(own) for own in rows])


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.3, 100.0])
def test_every_sample_has_one_agent_and_all_agents_have_as_many(alpha: float) -> None:
    rows = divide(LABELS, 10, 20, alpha, np.random.default_rng(0))
    assert [len(own) for own in rows] == [50] * 20
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(1000))


def test_a_small_alpha_gives_few_classes() -> None:
    found = [shares(divide(LABELS, 10, 20, alpha, np.random.default_rng(0))).mean() for alpha in (0.1, 0.3, 100.0)]
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.25


def test_test_samples_follow_the_training_classes() -> None:
    rng = np.random.default_rng(0)
    rows, tests = divide(LABELS, 10, 20, 0.1, rng), np.repeat(np.arange(10), 20)
    found = divide_alike(tests, LABELS, rows, 10, rng)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(200))
    for own, test in zip(rows, found, strict=True):
        expected = np.bincount(LABELS[own], minlength=10) / 5
        assert np.abs(np.bincount(tests[test], minlength=10) - expected).max() <= 1


def test_a_hub_data_set_is_divided_the_same_way_every_time(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(1)
    parts = {
        part: datasets.Dataset.from_dict({"x": rng.random((n, 2)).tolist(), "y": rng.integers(0, 3, n).tolist()})
        for part, n in (("train", 41), ("test", 12))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    options: dict[str, Any] = {"features": "x", "label": "y", "alpha": 0.5}
    first, again = (data.dirichlet(tmp_path / "set", agents=4, **options) for _ in range(2))
    assert first.sizes.tolist() == [10] * 4
    assert first.test_sizes.sum() == 12
    assert first.shape == (2,)
    np.testing.assert_array_equal(first.train[2]["x"], again.train[2]["x"])
    other = data.dirichlet(tmp_path / "set", agents=4, seed=1, **options)
    assert not np.array_equal(first.train[2]["x"], other.train[2]["x"])
    with pytest.raises(FedpdError, match="agents = 42: must be at most 41, the number of training samples"):
        data.dirichlet(tmp_path / "set", agents=42, **options)
