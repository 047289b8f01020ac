"""Run methods on the problems of the suite, cell by cell, into a file that an interrupted run continues.

A cell is a problem, a method and a tuning budget. Its costs are those until ||grad f||^2 has come down to 1e-10 of the
start's: communications, models that an agent sends and receives, and gradients of all samples. Each cost is the least
over the tries of the budget, so that a method is tuned for what it is judged by. Only rounds that ended in a
communication count: in others, nobody holds the mean of the agents' models at which f is measured.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.algorithms import cards, variants
from fedpd.base.checks import FedpdError, choice, count
from fedpd.base.progress import StepFunction
from fedpd.core import Problem
from fedpd.engine.history import first_row
from fedpd.engine.run import Run
from fedpd.search.solve import solve
from fedpd.suite.registry import PROBLEMS, make
from fedpd.suite.tables import bundled_module
from fedpd.suite.tries import BUDGETS, run_specs, specs_within

TARGET = 1e-10  # of the start's ||grad f||^2
COSTS = {
    "communications": "communications",
    "vectors": "models sent and received",
    "gradients": "gradients of all samples",
}
STAGES = (256, 1024)  # rounds: a second run only where no try reached the target in the first

SOLVE = "FedPD-M (solve)"  # the label of `fedpd.solve`

Solver = Callable[[Problem, float], Run]  # (problem, the stationarity to reach) -> a run that ends there


class Cell(NamedTuple):
    """The result of a method on a problem.

    Attributes:
        problem: The problem's name.
        method: The method's label.
        budget: How many settings it could try; 0: its own rule.
        communications: The fewest of any try until the target; infinite where none reached it.
        vectors: The fewest models that an agent sent and received until then.
        gradients: The fewest gradients of all samples until then.
        stationarity: The smallest relative to the start's that any try ended with.
        seconds: How long it took.
    """

    problem: str
    method: str
    budget: int
    communications: float
    vectors: float
    gradients: float
    stationarity: float
    seconds: float


def default_methods() -> list[str]:
    """Return the labels of all methods that may reach the target: full gradients, and no averaging with a floor."""
    averaging = {one.label for card in cards().values() if card.family == "averaging" for one in card.variants}
    return [
        label
        for label, variant in variants().items()
        if label not in averaging and variant.rule(1.0, 2, 1.0).batch is None
    ]


def run_suite(
    file: Path,
    *,
    methods: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    budgets: Sequence[int] = (0,),
    rounds: int = STAGES[-1],
    solvers: Mapping[str, Solver] | None = None,
    progress: StepFunction | None = None,
) -> list[Cell]:
    """Run every method on every problem with every budget, except for the cells that the file already has.

    Args:
        file: One JSON object per line: first the settings, then a cell each, written as soon as it is there.
        methods: Labels of `algorithms.variants()`, `SOLVE`, or names of `solvers`; None: `default_methods`, `SOLVE` and
            all solvers.
        problems: Names of `PROBLEMS`; None: all.
        budgets: Which of 0, 8 and 64 runs.
        rounds: The rounds of a run, at most.
        solvers: Functions that solve a problem with nothing to tune, by name; they are run once, whatever the budget.
        progress: A function of (what, cells done, cells in all).

    Returns:
        All cells of these methods, problems and budgets.

    Raises:
        FedpdError: The file is of a run with other settings, or a name does not exist.
    """
    solvers = {SOLVE: partial(_solved, rounds=rounds), **(solvers or {})}
    labels = [*default_methods(), *solvers] if methods is None else list(methods)
    names = list(PROBLEMS) if problems is None else list(problems)
    for label in labels:
        choice("methods", label, (*variants(), *solvers))
    for name in names:
        choice("problems", name, PROBLEMS)
    for budget in budgets:
        choice("budgets", str(budget), map(str, BUDGETS))
    if any(PROBLEMS[name].bundled for name in names):
        bundled_module()  # refuse now, not after hours
    count("rounds", rounds, "Give the rounds of a run, at most, e.g. 1024")
    known = {(cell.problem, cell.method, cell.budget): cell for cell in _open(file, rounds)}
    wanted = [(name, label, budget) for name in names for budget in sorted(set(budgets)) for label in labels]
    problem: Problem | None = None
    for done, (name, label, budget) in enumerate(wanted):
        if progress is not None:
            progress(f"{name}: {label}", done, len(wanted))
        if (name, label, budget) in known:
            continue
        if problem is None or problem.name != name:
            problem = make(name)
        began = time.perf_counter()
        spent = _spent(problem, label, budget, rounds, solvers)
        cell = Cell(name, label, budget, *spent, round(time.perf_counter() - began, 2))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(cell._asdict()) + "\n")
        known[name, label, budget] = cell
    if progress is not None:
        progress("done", len(wanted), len(wanted))
    return [known[key] for key in wanted]


def read_cells(file: Path) -> list[Cell]:
    """Return the cells of a file of results."""
    return [Cell(**row) for row in _rows(file)[1:]]


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; a last line that was cut off by an interruption is left out."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _open(file: Path, rounds: int) -> list[Cell]:
    """Return the cells that a file has; make it if it is not there."""
    settings = {"target": TARGET, "rounds": rounds}
    if not file.exists() or not _rows(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    rows = _rows(file)
    if rows[0] != settings:
        raise FedpdError(f"{file} holds results of {rows[0]}, not of {settings}. Give another folder.")
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    if file.read_text(encoding="utf-8") != whole:  # drop what an interruption left of a line
        file.write_text(whole, encoding="utf-8")
    return [Cell(**row) for row in rows[1:]]


def _spent(
    problem: Problem, label: str, budget: int, rounds: int, solvers: Mapping[str, Solver]
) -> tuple[float, float, float, float]:
    """Return communications, vectors and gradients until the target, and the relative stationarity at the end."""
    if label in solvers:
        start = _start(problem)
        return _least([solvers[label](problem, TARGET * start)], problem, start)
    specs = specs_within(variants()[label], budget, theory.smoothness(problem), problem.agents)
    spent = (math.inf, math.inf, math.inf, math.inf)
    for stage in [stage for stage in STAGES if stage < rounds] + [rounds]:
        spent = _least(run_specs(specs, problem, stage), problem)
        if math.isfinite(spent[0]):
            break
    return spent


def _solved(problem: Problem, target: float, rounds: int) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run that misses the target is a failure in the table
        return solve(problem, target, rounds, progress=False)


def _start(problem: Problem) -> float:
    """Return ||grad f(x^0)||^2."""
    spec = specs_within(variants()["Gradient descent"], 0, 1.0, problem.agents)
    return float(run_specs(spec, problem, 1)[0].history["stationarity"][0])


def _least(runs: Iterable[Run], problem: Problem, start: float | None = None) -> tuple[float, float, float, float]:
    least = np.full(4, math.inf)
    for run in runs:
        history = run.history
        first = history["stationarity"][0] if start is None else start
        relative = history["stationarity"] / first
        finite = relative[np.isfinite(relative)]
        least[3] = min(least[3], finite.min()) if len(finite) else least[3]
        held = np.where(history["communicated"] | (history["round"] == 0), relative, math.inf)
        row = first_row(held, TARGET)
        if row is not None:
            sent = (history["bytes_up"][row] + history["bytes_down"][row]) / (problem.agents * _bytes(problem))
            spent = (history["communications"][row], sent, history["samples"][row] / problem.samples)
            least[:3] = np.minimum(least[:3], spent)
    communications, vectors, gradients, relative_least = (float(value) for value in least)
    return communications, vectors, gradients, relative_least


def _bytes(problem: Problem) -> int:
    return problem.dimension * (8 if problem.double else 4)
