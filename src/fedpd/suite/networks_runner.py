"""Tune methods on the network problems and run them, into a file that an interrupted command continues.

Settings are chosen on validation samples, a share of each agent's samples on which nothing trains. The score of a
setting is the sum of the logarithms of the communications to the targets, which are shares of the final accuracy of
tuned FedAvg; FedAvg itself takes the setting with the best final accuracy. The chosen setting then runs with other
seeds, and the test samples judge it. One run gives the accuracies of the newest model and of the running mean.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np

from fedpd.base.atomic import kept_rows
from fedpd.base.checks import FedpdError, choice, count
from fedpd.base.progress import StepFunction
from fedpd.core import Method
from fedpd.search.tuned import LAST, kept_row
from fedpd.suite.networks import TASKS, Task
from fedpd.suite.networks_methods import BUDGETS, FEDPD_N, METHODS, REFERENCE, settings
from fedpd.suite.networks_watch import HELD_OUT, ROWS, Split, curves, split

SHARES = (0.9, 0.97, 1.0)  # the targets, in units of FedAvg's final accuracy
TUNING = (0, 1)  # the seeds of tuning; later ones are those of the results
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
        setting: The method with its settings.
        seed: The seed.
        part: Whether the run is of tuning, judged by validation samples, or of the results, judged by test samples.
        work: Agents per round, local steps, samples per step and rounds.
        newest: The accuracy of the newest model at each measurement; 0 after the run diverged.
        mean: The accuracy of the running mean of the server's models.
        communications: What was spent until each measurement, and so on for the other costs.
        samples: Sample gradients of all agents together.
        bytes: Bytes that all agents together sent and received.
        seconds: Seconds, with the time to compile.
    """

    problem: str
    method: str
    setting: str
    seed: int
    part: Literal["tuning", "final"]
    work: list[int]
    newest: list[float]
    mean: list[float]
    communications: list[int]
    samples: list[int]
    bytes: list[int]
    seconds: list[float]


class Curves(NamedTuple):
    """The mean of the runs of one setting.

    Attributes:
        setting: The method with its settings.
        accuracy: (rows,) the accuracy at each measurement.
        costs: (rows,) what was spent until then, for each of `COSTS`.
        finals: (seeds,) the final accuracies.
    """

    setting: str
    accuracy: np.ndarray
    costs: dict[str, np.ndarray]
    finals: np.ndarray

    def spent(self, cost: str, target: float) -> float:
        """Return what was spent until the target was kept; infinite where it was not."""
        row = kept_row(self.accuracy, target)
        return float("inf") if row is None else float(self.costs[cost][row])


class Outcome(NamedTuple):
    """A method with the setting that was chosen, on a problem: the mean over the seeds.

    Attributes:
        problem: The name of the task.
        method: The method's label.
        mean: Whether the running mean was measured.
        budget: How many settings could be tried.
        setting: The method with the setting that was chosen.
        finals: The final accuracy of each seed.
        spent: What was spent until each target was kept, for each of `COSTS`; infinite where it was not.
    """

    problem: str
    method: str
    mean: bool
    budget: int
    setting: str
    finals: list[float]
    spent: dict[str, list[float]]

    @property
    def name(self) -> str:
        return f"{self.method} + mean" if self.mean and self.method != FEDPD_N else self.method


def score(curves: Curves, targets: Sequence[float], missed: float) -> float:
    """Return the sum of the logarithms of the communications to the targets, `missed` for one that was not kept."""
    spent = [curves.spent("communications", target) for target in targets]
    return float(sum(np.log(min(one, missed)) for one in spent))


def curves_of(cells: Sequence[Cell], mean: bool) -> Curves:
    """Return the mean of the runs of one setting. Seconds are those of the fastest run, which compiled nothing."""
    costs = {cost: np.mean([getattr(cell, cost) for cell in cells], axis=0) for cost in COSTS}
    costs["seconds"] = np.min([cell.seconds for cell in cells], axis=0)
    rows = np.array([cell.mean if mean else cell.newest for cell in cells])
    return Curves(cells[0].setting, rows.mean(axis=0), costs, rows[:, -LAST:].mean(axis=1))


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
        data: The folder of data that some tasks need; None: the current one.
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
    folder = Path() if data is None else data
    here = [name for name in (tasks if problems is None else problems) if tasks[name].is_here(folder)]
    for name in problems or ():
        if name not in here:
            remedy = "Install dataset-fashion-mnist" if "fashion" in name else "Give their folder with --data"
            raise FedpdError(f"the data of {name} are not here. {remedy}, or leave the problem out.")
    if not here:
        raise FedpdError("the data of no problem are here. pip install 'fedpd[bench]', or give a folder with --data.")
    chosen = sorted(set(budgets))
    seeds_of = range(len(TUNING), len(TUNING) + seeds)
    runs = Runs(file, tasks, progress, len(here) * sum(_asked(label, chosen, seeds) for label in labels))
    found: list[Outcome] = []
    for name in here:
        found += _outcomes(runs, name, split(tasks[name].make(folder)), labels, chosen, seeds_of)
        jax.clear_caches()  # the next problem has other shapes, and needs none of the programs
    runs.end()
    return found


def _asked(label: str, budgets: Sequence[int], seeds: int) -> int:
    """Return how many runs a method asks for on a problem; those that it asks for again are known by then."""
    if label == FEDPD_N:
        return seeds * len(budgets)
    return sum(2 * (seeds + budget * len(TUNING)) for budget in budgets)


def _outcomes(
    runs: "Runs", name: str, problem: Split, labels: Sequence[str], budgets: Sequence[int], seeds: Iterable[int]
) -> list[Outcome]:
    """Return the results of all methods on a problem."""
    forms = [(label, mean) for label in labels for mean in ((True,) if label == FEDPD_N else (False, True))]
    forms.sort(key=lambda form: form != (REFERENCE, False))  # its accuracy is the target of the others
    found = []
    for budget in budgets:
        tuning: list[float] = []
        targets: list[float] = []
        for label, mean in forms:
            tries = settings(label, runs.tasks[name], problem.train.agents, budget)
            if len(tries) > 1:
                tuned = [
                    curves_of([runs.get(name, label, one, seed, "tuning", problem) for seed in TUNING], mean)
                    for one in tries
                ]
                at = best_of(tuned, tuning)
                tuning = tuning or _targets(tuned[at])
                tries = [tries[at]]
            final = curves_of([runs.get(name, label, tries[0], seed, "final", problem) for seed in seeds], mean)
            targets = targets or _targets(final)
            spent = {cost: [round(final.spent(cost, target), 3) for target in targets] for cost in COSTS}
            found.append(Outcome(name, label, mean, budget, final.setting, final.finals.round(5).tolist(), spent))
    return found


def _targets(reference: Curves) -> list[float]:
    """Return the accuracies to reach."""
    return [share * float(reference.finals.mean()) for share in SHARES]


def best_of(tuned: Sequence[Curves], targets: Sequence[float]) -> int:
    """Return the number of the setting with the least score; the final accuracy decides a tie, and without targets.

    A missed target costs twice the communications of a whole run. One that diverged has spent less.
    """
    missed = 2 * max(float(one.costs["communications"][-1]) for one in tuned)
    ranks = [(score(one, targets, missed) if targets else 0.0, -one.finals.mean()) for one in tuned]
    return min(range(len(ranks)), key=ranks.__getitem__)


Key = tuple[str, str, str, int, str]


class Runs:
    """The runs that a file has, to which new ones are added.

    Attributes:
        tasks: The tasks, by name.
    """

    def __init__(self, file: Path, tasks: Mapping[str, Task], progress: StepFunction | None, total: int) -> None:
        self.tasks, self._file, self._progress, self._total, self._done = tasks, file, progress, total, 0
        kept = {"shares": list(SHARES), "held_out": HELD_OUT, "tuning": list(TUNING), "rows": ROWS}
        self._known: dict[Key, Cell] = {cell[:5]: cell for cell in (Cell(**row) for row in kept_rows(file, kept))}

    def get(
        self, name: str, label: str, method: Method, seed: int, part: Literal["tuning", "final"], problem: Split
    ) -> Cell:
        """Return a run, from the file if it has it."""
        key: Key = name, label, method.description, seed, part
        task = self.tasks[name]
        work = [task.cohort or problem.train.agents, task.iterations, task.batch, task.rounds]
        known = self._known.get(key)
        self._done += 1
        if known is not None:
            if known.work != work:
                rule = f"holds runs of {name} with other rounds or local work, {known.work} in place of {work}"
                raise FedpdError(f"{self._file} {rule}. Give another folder.")
            return known
        if self._progress is not None:
            self._progress(f"{name}: {label}", self._done - 1, self._total)
        samples = problem.validation if part == "tuning" else problem.test
        cell = Cell(
            name, label, method.description, seed, part, work, **curves(task, method, seed, problem.train, samples)
        )
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(cell._asdict()) + "\n")
        self._known[key] = cell
        return cell

    def end(self) -> None:
        """Show that all runs are there."""
        if self._progress is not None:
            self._progress("done", self._total, self._total)
