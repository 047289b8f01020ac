"""The suite's runner: budgets, costs, resuming, profiles, and the command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpd import FedpdError, algorithms, oracles, simulate
from fedpd.algorithms import variants
from fedpd.cli import app
from fedpd.core import Problem
from fedpd.engine.run import Run
from fedpd.suite.profiles import costs_of, finding, profile_figure, shares, table_markdown
from fedpd.suite.registry import make
from fedpd.suite.runner import SOLVE, Cell, default_methods, read_cells, run_suite
from fedpd.suite.tries import run_specs, specs_within

EASY = "quadratic-identity"


@pytest.mark.parametrize("label", ["FedPD-GD", "L-BFGS", "Gradient descent"])
def test_every_method_has_as_many_tries_as_its_budget(label: str) -> None:
    for budget in (8, 64):
        specs = specs_within(variants()[label], budget, 2.0, 10)
        assert len(set(specs)) == len(specs) == budget
    (rule,) = specs_within(variants()[label], 0, 2.0, 10)
    assert rule == variants()[label].rule(2.0, 10, 1.0).spec


def test_tries_are_the_runs_of_their_specs() -> None:
    problem = make("quadratic-two-agents")
    specs = specs_within(variants()["DANE"], 64, 1.0, 2)[15:18]  # two numbers of local steps: two programs
    assert [spec["oracle"]["iterations"] for spec in specs] == [2, 8, 8]
    for spec, run in zip(specs, run_specs(specs, problem, 5), strict=True):
        oracle = oracles.gd(step=spec["oracle"]["step"], iterations=spec["oracle"]["iterations"])
        alone = simulate(algorithms.dane(mu=spec["mu"], oracle=oracle), problem, rounds=5)
        np.testing.assert_allclose(run.history["stationarity"], alone.history["stationarity"], rtol=1e-9)


def test_costs_are_those_until_the_target(tmp_path: Path) -> None:
    """Gradient descent with the step 1/L solves a quadratic with the identity in one step."""
    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=["Gradient descent"], problems=[EASY], rounds=4)
    assert (cell.communications, cell.vectors, cell.gradients) == (1, 2, 1)
    assert cell.stationarity < 1e-20


def test_only_what_the_server_holds_counts(tmp_path: Path) -> None:
    """One local step solves this problem on average, but nobody knows before the agents communicate."""
    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=["ProxSkip p=0.8"], problems=[EASY], rounds=40)
    assert cell.communications >= 1


def test_a_run_continues_where_it_was_interrupted(tmp_path: Path) -> None:
    file, methods = tmp_path / "cells.jsonl", ["Gradient descent", "Nesterov"]
    (first,) = run_suite(file, methods=methods[:1], problems=[EASY], rounds=4)
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"problem": "cut off')
    seen: list[str] = []
    cells = run_suite(file, methods=methods, problems=[EASY], rounds=4, progress=lambda what, *_: seen.append(what))
    assert cells[0] == first  # to the second: it was not run again
    assert seen == [f"{EASY}: Gradient descent", f"{EASY}: Nesterov", "done"]
    assert read_cells(file) == cells
    with pytest.raises(FedpdError, match="Give another folder"):
        run_suite(file, methods=methods, problems=[EASY], rounds=5)


def test_a_solver_takes_part(tmp_path: Path) -> None:
    targets: list[float] = []

    def solve(problem: Problem, target: float) -> Run:
        targets.append(target)
        return simulate(algorithms.gradient_descent(step=1.0), problem, rounds=2)

    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=["mine"], problems=[EASY], rounds=4, solvers={"mine": solve})
    assert cell.communications == 1
    start = simulate(algorithms.gradient_descent(step=1.0), make(EASY), rounds=1).history["stationarity"][0]
    assert targets == [pytest.approx(1e-10 * start)]


def test_solve_takes_part_by_its_label(tmp_path: Path) -> None:
    """Agents send their gradients and their smoothness in the first communication: the step 1/L is the answer here."""
    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=[SOLVE], problems=[EASY], rounds=4)
    assert cell.communications == 1
    (short,) = run_suite(tmp_path / "short.jsonl", methods=[SOLVE], problems=["quadratic-rotated-1e1"], rounds=2)
    assert short.communications == np.inf  # and no warning: the table says it


def test_missing_data_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FedpdError, match=r"pip install 'fedpd\[bench\]', or choose problems that are generated"):
        run_suite(tmp_path / "cells.jsonl", methods=["Gradient descent"], problems=[EASY, "softmax-wine"], rounds=4)
    assert not (tmp_path / "cells.jsonl").exists()


def test_methods_with_a_floor_or_noise_are_left_out() -> None:
    chosen = default_methods()
    assert {"FedPD-GD", "L-BFGS", "FedOSAA-SVRG", "GIANT"} <= set(chosen)
    assert not {"FedPD-SGD", "FedPD-VR", "FedProx", "Local GD"} & set(chosen)


def _cell(problem: str, method: str, spent: float) -> Cell:
    return Cell(problem, method, 0, spent, 2 * spent, spent, 1e-11, 1.0)


CELLS = [_cell("p", "a", 1), _cell("p", "b", 2), _cell("q", "a", 8), _cell("q", "b", 4), _cell("r", "a", np.inf)]
CELLS += [_cell("r", "b", 3), _cell("s", "a", 3)]  # s was not run with b


def test_profiles_by_hand() -> None:
    problems, methods, spent = costs_of(CELLS, "communications", 0)
    assert (problems, methods) == (["p", "q", "r"], ["a", "b"])
    expected = [[1 / 3, 2 / 3], [2 / 3, 1.0]]
    np.testing.assert_allclose(shares(spent, np.array([1.0, 2.0])), expected)
    nobody = np.full((1, 2), np.inf)
    assert shares(nobody, np.array([1.0])).tolist() == [[0.0, 0.0]]
    assert finding(CELLS, 0).startswith("b is within twice the fewest communications on 3 of 3 problems")
    assert "| q | 8 | **4** |" in table_markdown(CELLS, "communications", 0)
    assert "| r | fails | **3** |" in table_markdown(CELLS, "communications", 0)
    assert len(profile_figure(CELLS, 0).axes) == 3


def test_the_command_writes_tables_and_figures(tmp_path: Path) -> None:
    arguments = ["benchmark", "--methods", "Gradient descent", "--methods", "Nesterov", "--problems", EASY]
    result = CliRunner().invoke(app, [*arguments, "--rounds", "4", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "within twice the fewest communications on 1 of 1 problems" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"cells.jsonl", "budget-0.md", "profiles-0.png"}
    assert json.loads((tmp_path / "cells.jsonl").read_text().splitlines()[0]) == {"target": 1e-10, "rounds": 4}


def test_ctrl_c_leaves_a_run_that_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[Run]:
        raise KeyboardInterrupt

    arguments = ["benchmark", "--problems", EASY, "--rounds", "4", "--out", str(tmp_path), "--methods"]
    assert CliRunner().invoke(app, [*arguments, "Gradient descent"]).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr("fedpd.suite.runner.run_specs", interrupted)
        result = CliRunner().invoke(app, [*arguments, "Nesterov"])
    assert result.exit_code == 130
    assert "The same command resumes the work" in " ".join(result.output.split())
    assert [cell.method for cell in read_cells(tmp_path / "cells.jsonl")] == ["Gradient descent"]
    assert CliRunner().invoke(app, [*arguments, "Nesterov"]).exit_code == 0


def test_the_command_lists_the_problems() -> None:
    result = CliRunner().invoke(app, ["benchmark", "--list"])
    assert result.exit_code == 0
    assert "phase-retrieval" in result.output
