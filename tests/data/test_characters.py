"""Generated characters: the same at every call, writers that differ, and classes that can be learnt across writers."""

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import characters


def test_shapes_sizes_and_range() -> None:
    data = characters(writers=3, samples=10, classes=5, size=8, test_share=0.3)
    assert data.name == "generated characters"
    assert data.agents == 3
    assert data.shape == (8, 8)
    assert data.sizes.tolist() == [7] * 3
    assert data.test_sizes.tolist() == [3] * 3
    assert data.classes.tolist() == [0, 1, 2, 3, 4]
    for samples in data.train:
        assert samples["x"].dtype == np.float32
        assert 0 <= samples["x"].min() < 0.1 < 0.9 < samples["x"].max() <= 1


def test_a_seed_is_the_data() -> None:
    one, same, other = (characters(2, 5, 4, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.train[0]["x"], same.train[0]["x"])
    assert not np.array_equal(one.train[0]["x"], other.train[0]["x"])


def test_a_class_can_be_learnt_across_writers_who_differ() -> None:
    data = characters(writers=6, samples=80, classes=4, test_share=0.01)
    means = np.array([[s["x"][s["y"] == k].mean(0) for k in range(4)] for s in data.train])  # (writers, classes, H, W)
    shaken = np.mean([s["x"][s["y"] == 0].var(0).sum() for s in data.train])
    assert (
        np.square(means - means.mean(0)).sum((-1, -2)).mean() > shaken / 4
    )  # far more than 20 samples' means differ by
    last, known = data.train[-1], means[:-1].mean(0)
    nearest = np.square(last["x"][:, None] - known).sum((-1, -2)).argmin(1)
    assert (nearest == last["y"]).mean() > 0.5  # of 4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"writers": 0}, "writers = 0"), ({"samples": 1}, "samples = 1"), ({"test_share": 1.0}, "must be below 1")],
)
def test_what_makes_no_data_is_refused(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        characters(**settings)  # type: ignore[arg-type]
