"""Figure 2's rule: within a factor of 3 of every published value, as printed or as the authors' program has it."""

from typing import Any

import numpy as np
import pytest

from fedpd.engine.run import Run
from fedpd.experiments.runner import Result
from fedpd.reproduce.figure_2 import Curve, check_curve, curves_figure, measure, published, values_at
from fedpd.reproduce.session import PRINTED, Outcome

CURVE = Curve([2, 4], [1e-2, 1e-4], "Because.")


def run(values: list[float], communicated: list[int] | None = None) -> Run:
    communications = np.arange(len(values)) if communicated is None else np.cumsum(communicated)
    history: Any = {"communications": communications, "stationarity": np.array(values)}
    nothing = np.zeros(0)
    return Run("method", 0, nothing, history, None, nothing, 0.0, nothing)


def result(label: str, *runs: list[float]) -> dict[str, Result]:
    return {label: Result(label, tuple(map(run, runs)))}


NEAR = [1.0, 1e-1, 2e-2, 1e-3, 2.9e-4]
FAR = [1.0, 1e-1, 1e-2, 1e-3, 3.1e-4]


def test_the_factor_of_3_decides() -> None:
    assert check_curve("a", CURVE, result("a", NEAR)).outcome is Outcome.CORRECTED
    assert check_curve("a", CURVE, result("a", FAR)).outcome is Outcome.DIFFERS


def test_what_is_printed_counts_first() -> None:
    both = result("a", FAR) | result("a" + PRINTED, NEAR)
    assert check_curve("a", CURVE, both).outcome is Outcome.AGREES
    neither = result("a", FAR) | result("a" + PRINTED, FAR)
    found = check_curve("a", CURVE, neither)
    assert found.outcome is Outcome.DIFFERS
    assert "As printed: 1.0e-02, 3.1e-04." in found.why


def test_a_run_that_never_came_that_far_differs() -> None:
    found = check_curve("a", CURVE, result("a", NEAR[:4]))
    assert found.outcome is Outcome.DIFFERS
    assert found.measured == "2.0e-02, none"
    assert check_curve("a", CURVE, result("a", [1.0, np.inf, np.inf, np.inf, np.inf])).outcome is Outcome.DIFFERS


def test_random_runs_are_a_range() -> None:
    low, high = [1.0, 1.0, 1e-3, 1.0, 1e-5], [1.0, 1.0, 1e-1, 1.0, 1e-3]
    assert measure(result("a", low, high)["a"], [2, 4]).factor(CURVE.values) == 1
    assert measure(result("a", low, low)["a"], [2, 4]).factor(CURVE.values) == pytest.approx(10)


def test_values_are_those_of_the_last_round_with_so_many_communications() -> None:
    skipping = run([5.0, 4.0, 3.0, 2.0], communicated=[0, 1, 0, 1])
    assert values_at(skipping, [0, 1, 2]) == [5.0, 3.0, 2.0]
    assert np.isnan(values_at(skipping, [3])[0])


@pytest.mark.parametrize(("name", "curves"), [("fig2a", 7), ("fig2b", 8)])
def test_published_values(name: str, curves: int) -> None:
    found = published(name)
    assert len(found) == curves
    for curve in found.values():
        assert len(curve.at) == len(curve.values)
        assert curve.at[:2] == [100, 200]
        assert curve.why.endswith(".")
        assert all(1e-23 < value < 1e-2 for value in curve.values)


def test_the_figure_has_a_line_and_points_a_curve() -> None:
    (axes,) = curves_figure({"a": CURVE}, list(result("a", NEAR, FAR).values()), "They agree").axes
    assert len(axes.lines) == 2 + 1 + 1  # two seeds, the points, the legend's
