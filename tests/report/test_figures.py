"""Figures of the theory: what they show, and that they are drawn without a warning."""

from pathlib import Path

import numpy as np
import pytest

from fedpd.report.figures import example_families, save_figure, skip_probability_figure, skipping_map_figure
from fedpd.theory import max_eta, rates


def test_example_families_differ_as_named() -> None:
    equal, half, different = example_families().values()
    assert np.ptp(equal, axis=0).max() < 1e-15
    assert 0 < np.ptp(half, axis=0).max() < np.ptp(different, axis=0).max()


def test_the_map_marks_the_best_stretch(tmp_path: Path) -> None:
    family = {"one curvature": np.ones((3, 1, 1))}
    figure = skipping_map_figure(family, etas=[0.25, 0.5, 1.0, 2.0], stretches=[1, 2, 3, 4])
    exact, free = figure.axes[:2]
    assert "exact" in exact.get_ylabel()
    assert "estimated" in free.get_ylabel()
    best = exact.lines[-1]
    assert np.asarray(best.get_ydata()).tolist() == [3, 2, 1, 1]  # next to log 2/log(1 + eta)
    assert save_figure(figure, tmp_path, "map")[0].stat().st_size > 1000


def test_figure_1_has_the_four_curves(tmp_path: Path) -> None:
    ratios = np.geomspace(0.1, 1e4, 6)
    figure = skip_probability_figure(2.0, ratios=ratios)
    (axes,) = figure.axes
    curves = rates.savings(ratios, 2.0, max_eta(2.0) / 2)
    for line, values in zip(axes.lines, curves[1:], strict=True):
        assert np.asarray(line.get_ydata()) == pytest.approx(values)
    assert axes.get_xscale() == "log"
    assert save_figure(figure, tmp_path, "p")[0].stat().st_size > 1000
