"""The figure of federated data."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from fedpd.data import Federated, from_arrays
from fedpd.report import save_figure
from tests.slow_cases import slow_but


def some(agents: int, classes: int, *, tested: bool = True) -> Federated:
    rng = np.random.default_rng(0)

    def samples(size: int) -> dict[str, np.ndarray]:
        return {"x": np.zeros((size, 1), np.float32), "y": rng.integers(0, classes, size)}

    train = {f"agent {i}": samples(i + 1) for i in range(agents)}
    test = {"agent 0": samples(2), "other": samples(1)} if tested else None
    return from_arrays(train, test, classes=classes, name="some")


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("agents", "classes"), slow_but([(1, 1), (300, 10)], [(1, 1), (3, 2), (60, 120), (300, 10)]))
def test_it_is_drawn_for_few_and_many(agents: int, classes: int, tmp_path: Path) -> None:
    figure = some(agents, classes).plot()
    assert all(path.stat().st_size > 1000 for path in save_figure(figure, tmp_path, "data"))


def test_it_shows_the_numbers() -> None:
    figure = some(3, 2).plot()
    heat, above, *_ = figure.axes
    assert heights(above) == [3, 2, 1, 0, 0, 0, 2, 1]  # train, the largest first, then test
    assert [label.get_text() for label in heat.get_xticklabels()] == ["agent 2", "agent 1", "agent 0", "other"]
    shown = heat.images[0].get_array()
    assert isinstance(shown, np.ma.MaskedArray)
    counts = shown.filled(0)
    assert counts.sum(axis=0).tolist() == [3, 2, 3, 1]
    title = figure.get_suptitle()
    assert "some: 4 agents, 6 samples to train and 3 to test, 2 classes" in title
    assert "1 to 3 samples (median 2)" in title


def test_data_without_a_test_has_no_legend() -> None:
    _, above, *_ = some(3, 2, tested=False).plot().axes
    assert heights(above) == [3, 2, 1]
    assert above.get_legend() is None
