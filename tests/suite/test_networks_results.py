"""The page of the benchmark on networks: its tables, ratios and figures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpd.cli import app
from fedpd.suite import networks_runner
from fedpd.suite.networks import TASKS
from fedpd.suite.networks_methods import FEDPD_N, METHODS
from fedpd.suite.networks_results import (
    by_method,
    compare,
    costs_to_targets,
    finding,
    main,
    read_outcomes,
    table_markdown,
    write_networks,
)
from fedpd.suite.networks_runner import COSTS, Outcome, run_networks
from tests.suite import test_networks_runner as runner


def _outcome(method: str, mean: bool, communications: Sequence[float], final: float) -> Outcome:
    spent = {cost: [scale * one for one in communications] for cost, scale in zip(COSTS, (1, 8, 4, 0.1), strict=True)}
    return Outcome("p", method, mean, 0, "setting", [final - 0.01, final + 0.01], spent)


FOUND = [
    _outcome("FedAvg", False, [4, 4, 4], 0.5),
    _outcome("FedAvg", True, [2, 2, 2], 0.5),
    _outcome(FEDPD_N, True, [3, 3, np.inf], 0.49),
]


def test_a_cell_has_the_communications_to_the_targets_and_the_final_accuracy() -> None:
    lines = table_markdown(FOUND, 0).splitlines()
    assert lines[2:] == [
        "| FedPD-N | 3/3/- .490 ± .014 |",
        "| FedAvg | 4/4/4 .500 ± .014 |",
        "| FedAvg + mean | 2/2/2 .500 ± .014 |",
    ]


def test_fedpd_n_is_compared_with_the_better_of_mean_and_plain() -> None:
    spent = costs_to_targets(FOUND, "communications", 0)
    assert by_method(spent)["FedAvg"].tolist() == [[2, 2, 2]]
    first, _, last = compare(spent, True)
    assert (first.ratio, first.ahead, first.alone, first.problems) == (pytest.approx(1.5), 0, 0, 1)
    assert np.isnan(last.ratio)
    assert (last.ahead, last.alone, last.problems) == (0, 1, 1)
    plain = compare(spent, False)[0]
    assert (plain.ratio, plain.ahead) == (pytest.approx(0.75), 1)
    assert "takes 1.50, 1.50, - times the communications" in finding(FOUND, 0)
    assert "It missed 1 of 3 targets" in finding(FOUND, 0)


def test_ratios_are_geometric_means_over_problems() -> None:
    spent = {FEDPD_N: np.array([[2.0], [8.0]]), "FedAvg": np.array([[4.0], [4.0]])}
    (found,) = compare(spent, True)
    assert (found.ratio, found.worst, found.ahead) == (pytest.approx(1.0), 2.0, 1)


@pytest.mark.slow
def test_the_page_has_every_method_and_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks_runner, "curves", runner.made_up)
    outcomes = run_networks(tmp_path / "cells.jsonl", budgets=[0, 8], seeds=2, tasks=runner.TASKS)
    written = write_networks(outcomes, [0, 8], tmp_path, runner.TASKS)
    page, results, figure, _ = written.files
    assert read_outcomes(results) == outcomes
    text = page.read_text(encoding="utf-8")
    for label in METHODS:
        assert f"| {label} |" in text
        assert label == FEDPD_N or f"| {label} + mean |" in text
    assert figure.name in text
    assert figure.stat().st_size > 10_000
    assert written.findings[0].startswith("FedPD-N, untuned, takes")
    assert "What this does not show" in text


def test_the_page_without_fedpd_n_says_so(tmp_path: Path) -> None:
    written = write_networks(FOUND[:2], [0], tmp_path, {"p": next(iter(TASKS.values()))})
    assert [path.name for path in written.files] == ["networks.md", "results.json"]
    assert written.findings == ["FedPD-N was not run, only 1 rival, each with its usual setting."]


def test_the_command_lists_its_problems_and_leaves_those_of_the_suite_alone() -> None:
    shown = CliRunner().invoke(app, ["benchmark", "networks", "--list"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in TASKS)
    assert "quadratic-identity" in CliRunner().invoke(app, ["benchmark", "--list"]).output


def test_the_documentation_compares_problem_by_problem_and_rival_by_rival(tmp_path: Path) -> None:
    page = write_networks(FOUND, [0], tmp_path, {"p": next(iter(TASKS.values()))}).files[1]
    text = tmp_path / "page.md"
    parts = ("finding", "problems", "rivals", "ratios")
    text.write_text("".join(f"<!-- networks: {part} 0 -->\nold\n<!-- end -->\n" for part in parts))
    main(str(page), str(text))
    lines = text.read_text().splitlines()
    assert finding(FOUND, 0) in lines
    assert "| p | 3 / 3 / - | 2 / 2 / 2 | 4 / 4 / 4 | .490 ± .014 | .500 ± .014, FedAvg | .500 ± .014 |" in lines
    ratios = "1.50, worst 1.5; 0 of 1 | 1.50, worst 1.5; 0 of 1 | -; 0 of 1; missed on 1"
    assert f"| FedAvg | {ratios} | -0.010, worst -0.010 |" in lines
    assert "old" not in lines
