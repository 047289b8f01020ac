"""Items that run in seconds, and tests that each verdict can change."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd.experiments.runner import Result
from fedpd.problems.hard_instance import initial_gap, theta
from fedpd.reproduce import better, figure_2, formulas, handwriting, theorems
from fedpd.reproduce.command import ITEMS
from fedpd.reproduce.session import Check, Outcome, Session, Verdict, judge
from tests.reproduce.test_figure_2 import run


def session(tmp_path: Path) -> Session:
    return Session(tmp_path, lambda what, done, total: None)


def outcomes(checks: list[Check]) -> list[str]:
    return [check.outcome.value for check in checks]


def test_figure_1(tmp_path: Path) -> None:
    assert outcomes(formulas.figure_1(session(tmp_path)).checks) == ["agrees", "agrees", "corrected"]


def test_table_2_is_corrected_row_by_row(tmp_path: Path) -> None:
    assert outcomes(formulas.table_2(session(tmp_path)).checks) == ["corrected"] * 4


def test_table_2_would_agree_with_the_right_constants() -> None:
    exact = [5.6, 5.9]
    assert formulas._approximation("C", 6, exact, 1, "1").outcome is Outcome.AGREES
    assert formulas._approximation("C", 12, exact, 1, "1").outcome is Outcome.DIFFERS


def test_remarks_are_wrong_as_printed_and_right_corrected(tmp_path: Path) -> None:
    found = formulas.remarks(session(tmp_path)).checks
    assert set(outcomes(found)) == {"corrected"}


def test_a_wrong_correction_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulas, "theta", lambda x: theta(x) / 10)
    assert formulas._chain_gradient().outcome is Outcome.DIFFERS


def test_bounds_fail_where_a_run_is_above() -> None:
    means = np.array([1.0, 0.5])
    assert theorems._bound("a", means, [2.0, 1.0], [2.0, 1.0]).outcome is Outcome.AGREES
    assert theorems._bound("a", means, [2.0, 0.4], [2.0, 1.0]).outcome is Outcome.CORRECTED
    assert theorems._bound("a", means, [math.inf, math.inf], [2.0, 1.0]).outcome is Outcome.CORRECTED
    assert theorems._bound("a", means, [2.0, 1.0], [2.0, 0.4]).outcome is Outcome.DIFFERS


def test_claim_2_2_end_to_end(tmp_path: Path) -> None:
    findings = theorems.claim_2(session(tmp_path))
    assert outcomes(findings.checks) == ["agrees"] * 5 + ["corrected"]
    assert judge(findings.checks) is Verdict.CORRECTED
    assert findings.figure is not None


def test_growth_at_another_rate_differs() -> None:
    label = "FedAvg Q=2, step 0.1"
    history: Any = {"round": np.arange(41), "stationarity": np.zeros(41)}
    still = replace(run([1.0]), model=np.ones(1), history=history)
    assert theorems._growth(label, Result(label, (still,))).outcome is Outcome.DIFFERS


def test_epsilon_makes_the_gap_1() -> None:
    assert initial_gap(theorems.CHAIN_AGENTS, 16, epsilon=theorems.epsilon_of(16)) == pytest.approx(1)


def test_an_exponent_beyond_the_printed_one_differs() -> None:
    epsilons = [theorems.epsilon_of(links) for links in theorems.CHAINS]
    assert theorems.exponent(epsilons, [1 / e for e in epsilons]) == pytest.approx(1)
    assert theorems._exponent("FedProx", [1 / e for e in epsilons]).outcome is Outcome.AGREES
    assert theorems._exponent("FedProx", [e**-1.5 for e in epsilons]).outcome is Outcome.DIFFERS
    assert theorems._exponent("Local-GD", [e**-1.5 for e in epsilons]).outcome is Outcome.AGREES
    assert theorems._exponent("FedProx", [e**-0.5 for e in epsilons]).outcome is Outcome.DIFFERS
    assert theorems._exponent("FedProx", [1.0, 2.0, 3.0, math.nan]).outcome is Outcome.DIFFERS


def test_panels_compare_ends() -> None:
    ends = {"FedProx-VR": 1e-8, "FedAvg-GD": 1e-10, "FedPD-GD p=0": 1e-13}
    assert figure_2._similar("a", ends, "FedProx-VR", "FedAvg-GD", "fig2b").outcome is Outcome.DIFFERS
    assert figure_2._similar("a", ends | {"FedProx-VR": 2e-10}, "FedProx-VR", "FedAvg-GD").outcome is Outcome.AGREES
    assert figure_2._floor("a", ends).outcome is Outcome.AGREES
    assert figure_2._floor("a", ends | {"FedAvg-GD": 2e-13}).outcome is Outcome.DIFFERS


def test_accuracies_are_compared_with_a_margin() -> None:
    found = {"a": 0.60, "b": 0.59, "a (as printed)": 0.01}
    assert handwriting._above("x", found, "a", "b", "").outcome is Outcome.DIFFERS
    assert handwriting._above("x", found | {"a": 0.7}, "a", "b", "").outcome is Outcome.CORRECTED
    assert handwriting._above("x", found | {"a (as printed)": 0.7}, "a", "b", "").outcome is Outcome.AGREES
    assert handwriting._above("x", {"a": 0.7, "b": 0.5}, "a", "b", "").outcome is Outcome.AGREES
    assert handwriting._not_below("x", found, "b", "a", "").outcome is Outcome.AGREES
    assert handwriting._not_below("x", {"a": 0.5, "b": 0.6}, "a", "b", "").outcome is Outcome.DIFFERS


def test_a_method_that_never_gets_there_has_no_costs() -> None:
    nothing = dict.fromkeys(better.COSTS, math.nan)
    assert better._row("FedAvg", nothing, nothing, "step = 1")[1:3] == ("not in 600", "not in 200")
    some = {"communications": 11.0, "samples": 3.5e6, "bytes_up": 1e5, "bytes_down": 1e5}
    assert better._row("FedPD", None, some, "eta = 2") == ("FedPD", "", "11", "3.5 M", "200 kB", "eta = 2")


@pytest.mark.slow
def test_figures_4_and_5_run_on_generated_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handwriting, "WRITERS", 4)  # the figure is that of the paper: its size is no choice
    monkeypatch.setattr(handwriting, "CHARACTERS", 10)
    findings = ITEMS["fig4"].run(session(tmp_path))
    assert len(findings.checks) == 6
    assert "generated characters, not FEMNIST" in findings.scale
    assert "--data" in findings.scale
