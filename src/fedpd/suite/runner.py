"""Run methods on the problems of the suite, cell by cell, into a file that an interrupted run continues.

A cell is a problem, a method and a tuning budget. Its costs are those until ||grad f||^2 has come down to 1e-10 of the
start's. Each cost is the least over the tries of the budget, so that a method is tuned for what it is judged by.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tree_math import Vector

from fedpd import theory
from fedpd.algorithms import cards, variants
from fedpd.base.atomic import json_rows, kept_rows
from fedpd.base.checks import FedpdError, choice, count
from fedpd.base.precision import scope
from fedpd.base.progress import StepFunction
from fedpd.base.spec import Spec
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.engine.run import Run
from fedpd.experiments.calls import ALGORITHMS, build_algorithm, table_of
from fedpd.search.solve import model_bytes, solve
from fedpd.suite.problems import PROBLEMS, bundled_module, make
from fedpd.suite.race import (
    BUDGETS,
    COSTS,
    TARGET,
    RaceResult,
    Vectors,
    race,
    relative_stationarity,
    spent_until_target,
    tries_within,
    vectors_per_byte,
)


def flat(model: Tree) -> np.ndarray:
    """Return a model as one vector of float64, or of float32 where all of it is."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])


class Federation:
    """The agents of a problem, asked for f and its gradient.

    Attributes:
        problem: The problem.
        start: The model x^0 as one vector.
        asked: How often all agents were asked: the communications of a solver at the server.

    Examples:
        >>> from fedpd.suite.runner import Federation
        >>> from fedpd.suite.problems import make
        >>> federation = Federation(make("quadratic-identity"))
        >>> value, gradient = federation.ask(federation.start)
        >>> gradient.shape, federation.asked
        ((30,), 1)
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.asked = problem, 0
        self.start = flat(problem.start)
        functions, everything = Functions.of(problem), arrays(problem)
        with scope(problem.double):
            unravel = ravel_pytree(problem.start)[1]

        def mean(x: Array) -> Array:
            model = Vector(unravel(x))
            each: Any = jax.lax.map(lambda one: local_objective(functions, one).value(model), everything)
            return jnp.mean(each)

        self._evaluate = jax.jit(jax.value_and_grad(mean))

    def evaluate(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f(x) and its gradient, uncounted: for those who judge a solver."""
        with scope(self.problem.double):
            value, gradient = self._evaluate(x)
            return float(value), np.asarray(gradient)

    def ask(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f(x) and its gradient, which costs a communication."""
        self.asked += 1
        return self.evaluate(x)


ROUNDS = 512  # of a run, at most
SOLVE = "FedPD-M (solve)"  # the label of `fedpd.solve`
RUN_BY_SOLVE = "FedPD-M"  # the method that solve runs: in a table it would be there twice

Solver = Callable[[Problem, float], Run]  # (problem, the stationarity to reach) -> a run that ends there


class Cell(NamedTuple):
    """The result of a method on a problem."""

    problem: str  # the problem's name
    method: str  # the method's label
    budget: int  # how many settings it could try; 0: its own rule
    communications: float  # the fewest of any try until the target; infinite where none reached it
    vectors: float  # the fewest vectors of the model's size that an agent sent and received until then
    bytes: float  # the fewest bytes that an agent sent and received until then
    gradients: float  # the fewest gradients of all samples until then
    stationarity: float  # the smallest relative to the start's that any try reached
    seconds: float  # how long all budgets of this run took together


def default_methods() -> list[str]:
    """Return the labels of all methods that may reach the target: full gradients, and no averaging with a floor.

    `RUN_BY_SOLVE` is left out, because `SOLVE` takes part.
    """
    averaging = {one.label for card in cards().values() if card.family == "averaging" for one in card.variants}
    return [
        label
        for label, variant in variants().items()
        if label not in {*averaging, RUN_BY_SOLVE} and variant.rule(1.0, 2, 1.0).samples_per_step is None
    ]


def run_suite(
    file: Path,
    *,
    methods: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    budgets: Sequence[int] = (0,),
    rounds: int = ROUNDS,
    solvers: Mapping[str, Solver] | None = None,
    again: bool = False,
    progress: StepFunction | None = None,
) -> list[Cell]:
    """Run every method on every problem with every budget, except for the cells that the file already has.

    Args:
        file: One JSON object per line: first the settings, then a cell each, written as soon as it is there.
        methods: Labels of `algorithms.variants()`, `SOLVE`, or names of `solvers`; None: `default_methods`, `SOLVE` and
            all solvers.
        solvers: Functions that solve a problem with nothing to tune, by name; they are run once, whatever the budget.
        again: Whether to drop the cells that the file has for these methods, problems and budgets, and run them anew.

    Returns:
        All cells of these methods, problems and budgets.

    Raises:
        FedpdError: The file is of a run with other settings, or a name does not exist.
    """

    def solved(problem: Problem, target: float) -> Run:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a run that misses the target is a failure in the table
            return solve(problem, target, rounds, progress=False)

    solvers = {SOLVE: solved, **(solvers or {})}
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
    count("rounds", rounds, "Give the rounds of a run, at most, e.g. 512")
    chosen = sorted(set(budgets))
    wanted = [(name, label, budget) for name in names for label in labels for budget in chosen]
    settings, drop = {"target": TARGET, "rounds": rounds, "costs": list(COSTS)}, wanted if again else []
    rows = kept_rows(file, settings, lambda row: _key(Cell(**row)) not in drop)
    known = {_key(cell): cell for cell in (Cell(**row) for row in rows)}
    problem: Problem | None = None
    for name, label in product(names, labels):
        missing = [budget for budget in chosen if (name, label, budget) not in known]
        if not missing:
            continue
        if progress is not None:
            progress(f"{name}: {label}", sum(key in known for key in wanted), len(wanted))
        if problem is None or problem.name != name:
            problem = make(name)
            smoothness = rule_smoothness(problem)
        began = time.perf_counter()
        results = _results(problem, smoothness, label, missing, rounds, solvers)
        seconds = round(time.perf_counter() - began, 2)
        cells = [Cell(name, label, budget, *one.spent, one.stationarity, seconds) for budget, one in results.items()]
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(cell._asdict()) + "\n" for cell in cells)
        known |= {_key(cell): cell for cell in cells}
    if progress is not None:
        progress("done", len(wanted), len(wanted))
    return [known[key] for key in wanted]


def rule_smoothness(problem: Problem) -> float:
    """Return the L of the methods' own rules: the known one, else the largest curvature at the start, a lower bound.

    The published results were measured with it. `theory.smoothness` also looks at models near the start.
    """
    if problem.answer.smoothness is not None:
        return problem.answer.smoothness
    return theory.estimate_smoothness(problem, samples=0, safety=1, average=False).value


def read_cells(file: Path) -> list[Cell]:
    """Return the cells of a file of results.

    Raises:
        FedpdError: The file is not of this version of the suite.
    """
    settings, *rows = json_rows(file)
    if settings.get("costs") != list(COSTS):
        raise FedpdError(f"{file} holds results of another version, with other costs. Run the suite in another folder.")
    return [Cell(**row) for row in rows]


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.problem, cell.method, cell.budget


def _results(
    problem: Problem, smoothness: float, label: str, budgets: Sequence[int], rounds: int, solvers: Mapping[str, Solver]
) -> dict[int, RaceResult]:
    """Return what a method spends on a problem within each budget."""
    if label not in solvers:
        tries = {budget: tries_within(variants()[label], budget, smoothness, problem.agents) for budget in budgets}
        return race(tries, problem, smoothness, rounds)
    federation = Federation(problem)
    _, gradient = federation.evaluate(federation.start)
    start = float(gradient @ gradient)
    run = solvers[label](problem, TARGET * start)
    vectors = Vectors(1 / model_bytes(problem), 1 / model_bytes(problem))  # a method that is not of fedpd sends no more
    if isinstance(run.spec, Spec) and run.spec.name in ALGORITHMS:
        vectors = vectors_per_byte(build_algorithm(table_of(run.spec), rounds), problem)
    spent = spent_until_target(run.history, start, vectors, problem)
    return dict.fromkeys(budgets, RaceResult(spent, float(relative_stationarity(run.history, start).min())))
