"""The suite's runner: budgets, costs, resuming, profiles, the command, and the agents that a solver asks."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpd import FedpdError, algorithms, simulate
from fedpd.algorithms import variants
from fedpd.cli import app
from fedpd.core import Problem
from fedpd.engine.run import Run
from fedpd.suite.problems import known_answers, make
from fedpd.suite.race import race, spent_until_target, tries_within, vectors_per_byte
from fedpd.suite.results import costs_of, finding, profile_figure, shares, table_markdown
from fedpd.suite.runner import SOLVE, Cell, Federation, default_methods, flat, read_cells, run_suite

EASY = "quadratic-identity"
BENCHOPT = Path(__file__).parents[2] / "benchmarks/suite"


@pytest.mark.parametrize("label", ["FedPD-GD", "L-BFGS", "Gradient descent", "DANE-LBFGS"])
def test_every_method_has_as_many_tries_as_its_budget(label: str) -> None:
    for budget in (8, 64):
        specs = [one.spec for one in tries_within(variants()[label], budget, 2.0, 10)]
        assert len(set(specs)) == len(specs) == budget
    (rule,) = tries_within(variants()[label], 0, 2.0, 10)
    assert rule.spec == variants()[label].rule(2.0, 10, 1.0).spec


def test_a_method_with_nothing_to_tune_has_one_try() -> None:
    same = algorithms.gradient_descent(step=0.5)
    plain = variants()["Gradient descent"]._replace(rule=lambda L, agents, scale: same)
    assert [len(tries_within(plain, budget, 2.0, 10)) for budget in (0, 8, 64)] == [1, 1, 1]


def test_most_tries_of_a_small_budget_are_among_those_of_a_large_one() -> None:
    for label in ("DANE", "L-BFGS", "Nesterov"):
        few, many = ({one.spec for one in tries_within(variants()[label], budget, 2.0, 10)} for budget in (8, 64))
        assert few <= many


@pytest.mark.slow
def test_a_race_finds_what_all_tries_alone_find() -> None:
    """Batches, shared programs and early ends change no result."""
    problem, rounds = make("quadratic-rotated-1e1"), 64
    tries = tries_within(variants()["DANE"], 64, 10.0, 20)
    tries = tries[2:30:4]  # with 2 and with 8 local steps
    found = race({0: tries[:1], 64: tries}, problem, 10.0, rounds)
    spent = []
    for one in tries:
        history = simulate(one, problem, rounds=rounds).history
        spent.append(spent_until_target(history, history["stationarity"][0], vectors_per_byte(one, problem), problem))
    assert found[64].spent == tuple(np.min(spent, axis=0).tolist())
    assert found[0].spent == spent[0]
    assert np.isfinite(found[64].spent).all()


def test_a_race_waits_for_methods_that_move_in_few_rounds() -> None:
    """Newton-CG keeps its model while it collects products: for 60 rounds and more on this problem."""
    tries = tries_within(variants()["Newton-CG"], 0, 1.0, 20)
    (found,) = race({0: tries}, make("quadratic-equal-1e4"), 1.0, 512).values()
    assert found.spent.communications < 200


def test_vectors_are_counted_by_shape() -> None:
    """A number beside the model, as the value of f for a line search, adds bytes but no vector."""
    problem = make(EASY)  # 30 variables
    for label, up, down in (("Gradient descent", 1 / 240, 1 / 240), ("L-BFGS", 1 / 248, 1 / 240), ("SCAFFOLD",) * 3):
        found = vectors_per_byte(variants()[label].rule(1.0, problem.agents, 1.0), problem)
        expected = (2 / 480, 2 / 480) if label == "SCAFFOLD" else (up, down)
        assert found == pytest.approx(expected)
    memory = vectors_per_byte(variants()["FedPD-M"].rule(1.0, problem.agents, 1.0), problem)
    assert memory.up < 1 / 240


def test_costs_are_those_until_the_target(tmp_path: Path) -> None:
    """Gradient descent with the step 1/L solves a quadratic with the identity in one step."""
    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=["Gradient descent"], problems=[EASY], rounds=4)
    assert (cell.communications, cell.vectors, cell.bytes, cell.gradients) == (1, 2, 480, 1)
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
    assert seen == [f"{EASY}: Nesterov", "done"]
    assert read_cells(file) == cells
    with pytest.raises(FedpdError, match="Give another folder"):
        run_suite(file, methods=methods, problems=[EASY], rounds=5)
    (anew,) = run_suite(file, methods=methods[:1], problems=[EASY], rounds=4, again=True)
    assert read_cells(file) == [cells[1], anew]


def test_results_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps({"target": 1e-10, "rounds": 4}) + "\n", encoding="utf-8")
    with pytest.raises(FedpdError, match="Give another folder"):
        run_suite(file, methods=["Nesterov"], problems=[EASY], rounds=4)
    with pytest.raises(FedpdError, match="another version, with other costs"):
        read_cells(file)


def test_a_solver_takes_part(tmp_path: Path) -> None:
    targets: list[float] = []

    def solve(problem: Problem, target: float) -> Run:
        targets.append(target)
        return simulate(algorithms.gradient_descent(step=1.0), problem, rounds=2)

    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=["mine"], problems=[EASY], rounds=4, solvers={"mine": solve})
    assert cell.communications == 1
    start = simulate(algorithms.gradient_descent(step=1.0), make(EASY), rounds=1).history["stationarity"][0]
    assert targets == [pytest.approx(1e-10 * start)]


@pytest.mark.slow
def test_solve_takes_part_by_its_label(tmp_path: Path) -> None:
    """Agents send their gradients and their smoothness in the first communication, and are there after the second."""
    (cell,) = run_suite(tmp_path / "cells.jsonl", methods=[SOLVE], problems=[EASY], rounds=4)
    assert cell.communications == 2
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
    assert "FedPD-M" not in chosen  # solve runs it


def _cell(problem: str, method: str, spent: float) -> Cell:
    return Cell(problem, method, 0, spent, 2 * spent, 16 * spent, spent, 1e-11, 1.0)


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
    assert "local work" not in finding(CELLS, 0), "one gradient per communication each"
    more = [cell._replace(gradients=20 * cell.gradients) if cell.method == "b" else cell for cell in CELLS]
    unequal = "Unequal local work, from 1 (a) to 20 (b) gradients of all samples per communication"
    assert finding(more, 0).endswith(unequal)
    assert "| q | 8 | **4** |" in table_markdown(CELLS, "communications", 0)
    assert "| r | fails | **3** |" in table_markdown(CELLS, "communications", 0)
    assert len(profile_figure(CELLS, 0).axes) == 4


def test_the_command_writes_tables_and_figures(tmp_path: Path) -> None:
    arguments = ["benchmark", "--methods", "Gradient descent", "--methods", "Nesterov", "--problems", EASY]
    result = CliRunner().invoke(app, [*arguments, "--rounds", "4", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "within twice the fewest communications on 1 of 1 problems" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"cells.jsonl", "budget-0.md", "profiles-0.png"}
    assert json.loads((tmp_path / "cells.jsonl").read_text().splitlines()[0])["rounds"] == 4


def test_ctrl_c_leaves_a_run_that_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    arguments = ["benchmark", "--problems", EASY, "--rounds", "4", "--out", str(tmp_path), "--methods"]
    assert CliRunner().invoke(app, [*arguments, "Gradient descent"]).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr("fedpd.suite.runner.race", interrupted)
        result = CliRunner().invoke(app, [*arguments, "Nesterov"])
    assert result.exit_code == 130
    assert "The same command resumes the work" in " ".join(result.output.split())
    assert [cell.method for cell in read_cells(tmp_path / "cells.jsonl")] == ["Gradient descent"]
    assert CliRunner().invoke(app, [*arguments, "Nesterov"]).exit_code == 0


def test_the_command_lists_the_problems() -> None:
    result = CliRunner().invoke(app, ["benchmark", "--list"])
    assert result.exit_code == 0
    assert "phase-retrieval" in result.output


@pytest.mark.parametrize("name", ["quadratic-two-agents", "factorisation"])
def test_values_and_gradients_are_the_simulators(name: str) -> None:
    problem = make(name)
    federation = Federation(problem)
    value, gradient = federation.ask(federation.start)
    history = simulate(algorithms.gradient_descent(step=1e-3), problem, rounds=1).history
    assert value == pytest.approx(history["loss"][0], rel=1e-12)
    assert gradient @ gradient == pytest.approx(history["stationarity"][0], rel=1e-12)
    federation.evaluate(federation.start)
    assert federation.asked == 1


def test_a_quadratic_has_no_gradient_at_its_minimiser() -> None:
    problem = make("quadratic-equal-1e2")
    value, gradient = Federation(problem).evaluate(flat(problem.answer.minimiser))
    assert value == pytest.approx(known_answers()[problem.name].value)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_the_benchopt_folder_has_what_benchopt_looks_for() -> None:
    found = {path.relative_to(BENCHOPT).as_posix(): path for path in BENCHOPT.rglob("*.py")}
    classes = {
        path: [node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        for path, file in found.items()
    }
    assert classes == {
        "objective.py": ["Objective"],
        "datasets/suite.py": ["Dataset"],
        "solvers/scipy.py": ["Solver"],
        "solvers/fedpd_methods.py": ["Solver"],
        "solvers/fedpd_solve.py": ["Solver"],
    }
