"""A problem as a solver at the server sees it, and the Benchopt folder that uses it."""

import ast
from pathlib import Path

import numpy as np
import pytest

from fedpd import algorithms, simulate
from fedpd.suite.answers import known
from fedpd.suite.registry import make
from fedpd.suite.runner import Federation, flat

FOLDER = Path(__file__).parents[2] / "benchmarks/suite"


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
    assert value == pytest.approx(known()[problem.name].value)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


def test_the_benchopt_folder_has_what_benchopt_looks_for() -> None:
    found = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.py")}
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
