"""Tune methods on the network problems and run them, into a file that an interrupted command continues.

Settings are chosen on validation samples: a run trains without a share of each agent's samples, and these samples judge
it. The score of a setting is the sum of the logarithms of the communications to the targets, which are shares of the
final accuracy of tuned FedAvg; FedAvg itself takes the setting with the best final accuracy. The chosen setting then
runs on all training samples with other seeds, and the test samples judge it.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.atomic import kept_rows
from fedpd.base.checks import FedpdError, choice, count
from fedpd.base.progress import StepFunction
from fedpd.core import Array, Method, Problem, Tree, in_blocks
from fedpd.core.agents import BLOCK
from fedpd.core.statistics import with_own_statistics
from fedpd.engine.measure.columns import AgentView, Column, Measure
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate
from fedpd.search.judge import LAST, kept_row, with_validation
from fedpd.suite.networks import TASKS, Task, available
from fedpd.suite.networks_methods import BUDGETS, FEDPD_N, METHODS, REFERENCE, settings

SHARES = (0.9, 0.97, 1.0)  # the targets, in units of FedAvg's final accuracy
TUNING = (0, 1)  # the seeds of tuning; later ones are those of the results
HELD_OUT = 0.15  # the share of validation samples
ROWS = 50  # measurements of a run, about
COSTS = {
    "communications": "communications",
    "samples": "sample gradients of all agents",
    "bytes": "bytes sent and received by all agents",
    "seconds": "seconds on this machine",
}


class Cell(NamedTuple):
    """One run.

    Attributes:
        problem: The name of the task.
        method: The method's label.
        mean: Whether the running mean of the server's models was measured, not its newest model.
        setting: The method with its settings.
        seed: The seed.
        part: Whether the run is of tuning, judged by validation samples, or of the results, judged by test samples.
        work: Agents per round, local steps, samples per step and rounds.
        accuracy: The accuracy at each measurement; 0 after the run diverged.
        communications: What was spent until each measurement, and so on for the other costs.
        samples: Sample gradients of all agents together.
        bytes: Bytes that all agents together sent and received.
        seconds: Seconds, with the time to compile and to measure.
    """

    problem: str
    method: str
    mean: bool
    setting: str
    seed: int
    part: Literal["tuning", "final"]
    work: list[int]
    accuracy: list[float]
    communications: list[int]
    samples: list[int]
    bytes: list[int]
    seconds: list[float]


class Outcome(NamedTuple):
    """A method with the setting that was chosen, on a problem: the mean over the seeds.

    Attributes:
        problem: The name of the task.
        method: The method's label.
        mean: Whether the running mean was measured.
        budget: How many settings could be tried.
        setting: The method with the setting that was chosen.
        accuracy: (rows,) the accuracy at each measurement.
        costs: (rows,) what was spent until then, for each of `COSTS`.
        finals: (seeds,) the final accuracies.
    """

    problem: str
    method: str
    mean: bool
    budget: int
    setting: str
    accuracy: np.ndarray
    costs: dict[str, np.ndarray]
    finals: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.method} + mean" if self.mean and self.method != FEDPD_N else self.method

    def spent(self, cost: str, target: float) -> float:
        """Return what was spent until the target was kept; infinite where it was not."""
        row = kept_row(self.accuracy, target)
        return float("inf") if row is None else float(self.costs[cost][row])


def score(outcome: Outcome, targets: Sequence[float]) -> float:
    """Return the sum of the logarithms of the communications to the targets; one that is missed costs two runs."""
    most = 2 * float(outcome.costs["communications"][-1])
    spent = [outcome.spent("communications", target) for target in targets]
    return float(sum(np.log(min(one, most)) for one in spent))


def final_accuracy(accuracy: Sequence[float]) -> float:
    return float(np.mean(accuracy[-LAST:]))


def outcome_of(cells: Sequence[Cell], budget: int) -> Outcome:
    """Return the mean of the runs of one setting. Seconds are those of the fastest run, which compiled nothing."""
    first = cells[0]
    costs = {cost: np.mean([getattr(cell, cost) for cell in cells], axis=0) for cost in COSTS}
    costs["seconds"] = np.min([cell.seconds for cell in cells], axis=0)
    finals = np.array([final_accuracy(cell.accuracy) for cell in cells])
    accuracy = np.mean([cell.accuracy for cell in cells], axis=0)
    return Outcome(first.problem, first.method, first.mean, budget, first.setting, accuracy, costs, finals)


def run_networks(
    file: Path,
    *,
    methods: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    budgets: Sequence[int] = (0,),
    seeds: int = 5,
    data: Path | None = None,
    tasks: Mapping[str, Task] = TASKS,
    progress: StepFunction | None = None,
) -> list[Outcome]:
    """Tune every method on every problem within every budget and run it, except for what the file already has.

    Args:
        file: One JSON object per line: first the settings, then a run each, written as soon as it is there.
        methods: Some of `METHODS`; None: all. FedAvg is always run, since its accuracy is the target.
        problems: Names of tasks; None: all whose data are here.
        budgets: Which of 0, 8 and 32 settings.
        seeds: The seeds of the results.
        data: A folder of data, for tasks that need one.
        tasks: The tasks, by name.
        progress: A function of (what, runs done, runs in all).

    Returns:
        The result of each problem, budget and method, with and without the running mean.

    Raises:
        FedpdError: A name does not exist, the data of a problem that was asked for are missing, or the file is of
            other settings.
    """
    for label in methods or ():
        choice("methods", label, METHODS)
    for name in problems or ():
        choice("problems", name, tasks)
    for budget in budgets:
        choice("budgets", str(budget), map(str, BUDGETS))
    count("seeds", seeds, "Give the number of seeds of the results, e.g. 5")
    labels = [label for label in METHODS if methods is None or label in (*methods, REFERENCE)]
    made = available(data, {name: tasks[name] for name in (tasks if problems is None else problems)})
    for name in problems or ():
        if name not in made:
            remedy = "Install dataset-fashion-mnist" if "fashion" in name else "Give their folder with --data"
            raise FedpdError(f"the data of {name} are not here. {remedy}, or leave the problem out.")
    if not made:
        raise FedpdError("the data of no problem are here. pip install 'fedpd[bench]', or give a folder with --data.")
    chosen = sorted(set(budgets))
    per_form = seeds * len(chosen) + len(TUNING) * max(chosen)
    total = len(made) * sum(seeds * len(chosen) if label == FEDPD_N else 2 * per_form for label in labels)
    runs = Runs(file, tasks, progress, total)
    found: list[Outcome] = []
    for name, problem in made.items():
        found += _outcomes(runs, name, problem, labels, chosen, seeds)
        jax.clear_caches()  # the next problem has other shapes, and needs none of the programs
    if progress is not None:
        progress("done", total, total)
    return found


def _outcomes(
    runs: "Runs", name: str, problem: Problem, labels: Sequence[str], budgets: Sequence[int], seeds: int
) -> list[Outcome]:
    """Return the results of all methods on a problem."""
    # Without an L, the message about each divergence, which nobody reads, would estimate it.
    problem = replace(problem, answer=problem.answer._replace(smoothness=1.0))
    validated = {seed: with_validation(problem, HELD_OUT, seed) for seed in TUNING}
    task = runs.tasks[name]
    forms = [(label, mean) for label in labels for mean in ((True,) if label == FEDPD_N else (False, True))]
    forms.sort(key=lambda form: form != (REFERENCE, False))  # its accuracy is the target of the others
    found = []
    for budget in budgets:
        targets: list[float] = []
        for label, mean in forms:
            tries = settings(label, task, problem.agents, budget)
            if len(tries) > 1:
                tuned = [
                    outcome_of([runs.get(name, label, mean, one, seed, validated[seed]) for seed in TUNING], budget)
                    for one in tries
                ]
                at = best_of(tuned, targets)
                targets = targets or [share * tuned[at].finals.mean() for share in SHARES]
                tries = [tries[at]]
            later = range(len(TUNING), len(TUNING) + seeds)
            final = [runs.get(name, label, mean, tries[0], seed, problem, "final") for seed in later]
            found.append(outcome_of(final, budget))
    return found


def best_of(tuned: Sequence[Outcome], targets: Sequence[float]) -> int:
    """Return the number of the outcome with the least score; the final accuracy decides a tie, and without targets."""
    ranks = [(score(one, targets) if targets else 0.0, -one.finals.mean()) for one in tuned]
    return min(range(len(ranks)), key=ranks.__getitem__)


def _count_right(view: AgentView, x: Vector) -> tuple[tuple[Array, Array], None]:
    functions, one = view
    tests, correct = jnp.asarray(one.test_sizes), functions.correct
    assert correct is not None  # all tasks are classifications

    def right(model: Vector, rows: Tree, inside: Array, _: Any) -> Array:
        return jnp.sum(correct(model.tree, rows) * inside)

    model = with_own_statistics(functions, one, x)
    return (in_blocks(right, model, one.test, tests, BLOCK, one.test_offset), tests.astype(float)), None


# The accuracies that a run records by default also pass over all training samples.
RIGHT = Column(
    "right",
    "accuracy on all test samples",
    measure=Measure(agent=_count_right, tests=True),
    merge=lambda total, each, agents: total[0] / total[1],
    better="more",
)
Key = tuple[str, str, bool, str, int, str]


class Runs:
    """The runs that a file has, to which new ones are added.

    Attributes:
        tasks: The tasks, by name.
    """

    def __init__(self, file: Path, tasks: Mapping[str, Task], progress: StepFunction | None, total: int) -> None:
        self.tasks, self._file, self._progress, self._total, self._done = tasks, file, progress, total, 0
        self._asked = set[Key]()
        kept = {"shares": list(SHARES), "held_out": HELD_OUT, "tuning": list(TUNING), "rows": ROWS}
        self._known = {_key(cell): cell for cell in (Cell(**row) for row in kept_rows(file, kept))}

    def get(
        self,
        name: str,
        label: str,
        mean: bool,
        method: Method,
        seed: int,
        problem: Problem,
        part: Literal["tuning", "final"] = "tuning",
    ) -> Cell:
        """Return a run, from the file if it has it."""
        key = (name, label, mean, method.description, seed, part)
        task = self.tasks[name]
        work = [task.cohort or problem.agents, task.iterations, task.batch, task.rounds]
        known = self._known.get(key)
        self._done += part == "final" or key not in self._asked  # budgets share their runs of tuning
        self._asked.add(key)
        if known is not None:
            if known.work != work:
                rule = f"holds runs of {name} with other rounds or local work, {known.work} in place of {work}"
                raise FedpdError(f"{self._file} {rule}. Give another folder.")
            return known
        if self._progress is not None:
            self._progress(
                f"{name}: {label}{' + mean' if mean and label != FEDPD_N else ''}", self._done - 1, self._total
            )
        cell = Cell(*key, work, **_measured(task, method, mean and label != FEDPD_N, seed, problem))
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(cell._asdict()) + "\n")
        self._known[key] = cell
        return cell


def _key(cell: Cell) -> Key:
    return cell.problem, cell.method, cell.mean, cell.setting, cell.seed, cell.part


def _measured(task: Task, method: Method, mean: bool, seed: int, problem: Problem) -> dict[str, Any]:
    """Run a method and return its accuracy and costs at each measurement."""
    every = max(1, round(task.rounds / ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no theorem covers these runs, and a divergence is a result
        run = simulate(
            method,
            problem,
            rounds=task.rounds,
            seed=seed,
            cohort=task.cohort,
            average=mean,
            metrics_every=every,
            record=[RIGHT],
            progress=False,
        )
    return _curves(run, 1 + -(-task.rounds // every))


def _curves(run: Run, rows: int) -> dict[str, Any]:
    """Return the columns of a run; the missing rows of one that diverged have the accuracy 0."""
    history = run.history
    accuracy = np.asarray(history["right"]).copy()
    if run.diverged is not None:
        accuracy[history["round"] >= run.diverged.round] = 0
    missing = rows - len(accuracy)
    costs = {
        "communications": history["communications"],
        "samples": history["samples"],
        "bytes": history["bytes_up"] + history["bytes_down"],
        "seconds": run.elapsed.round(4),
    }
    kept = {name: np.pad(values, (0, missing), mode="edge").tolist() for name, values in costs.items()}
    return {"accuracy": np.pad(accuracy.round(6), (0, missing)).tolist(), **kept}
