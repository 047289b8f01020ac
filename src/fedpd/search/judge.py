"""Try settings of a method within a budget, and judge each try by a criterion.

If the criterion is measured on test samples, a share of each agent's training samples stands in for them: no setting is
chosen by the samples on which a result is reported. A search climbs: it goes along one setting as long as tries get
better, in steps of a factor of 4, then of 2, then of sqrt(2). So it has no ends at which it would stop for no reason,
and if its budget ends it first, the result says so.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError, below, positive, refuse
from fedpd.core import Method, Problem, Tree
from fedpd.core.rows import stored
from fedpd.engine.checks import trace_round
from fedpd.engine.config import RunConfig
from fedpd.engine.measure.columns import Column
from fedpd.engine.run import Run
from fedpd.engine.simulate import make_plan, simulate
from fedpd.engine.views.entries import MAIN, cost_values, first_kept, measured_rows, reached_row
from fedpd.search.candidates import Axis, Candidate

LAST = 5  # the value at the end is the mean of the last five measurements
RUNGS = (4, 2, 1)  # of a search, which are factors of 4, 2 and sqrt(2) on a ladder


class Criterion(NamedTuple):
    """The column that decides between settings and methods, and the target."""

    column: Column  # the column of the history
    target: float | None  # the value to reach with the fewest communications; None: the best value at the end decides

    @property
    def words(self) -> str:
        """Return how settings are chosen, for a caption."""
        if self.target is None:
            return f"best {self.column.name.replace('_', ' ')} at the end, the mean of the last {LAST} measurements"
        return f"fewest communications to keep {self.column.name.replace('_', ' ')} {self.target:g}"

    def spent(self, run: Run, target: float, cost: str = "communications") -> float:
        """Return what a run spent until the target; NaN if it did not reach it, or diverged."""
        row = reached_row(run, self.column.name, target)
        return float("nan") if row is None else float(cost_values(run)[cost][row])

    def final(self, run: Run) -> float:
        """Return a run's value at the end; the worst possible one if it diverged."""
        worst = float("inf") if self.column.better == "less" else -float("inf")
        values = run.history[self.column.name][measured_rows(run, self.column.name)]
        if run.diverged is not None or not len(values):
            return worst
        last = 1 if self.column.name == MAIN else min(LAST, max(1, len(values) - 1))  # the start is no result
        found = float(values[-last:].mean())
        return found if np.isfinite(found) else worst


def kept_row(values: np.ndarray, target: float, better: Literal["less", "more"] = "more") -> int | None:
    """Return the first row, after the start, from which the mean of three is at the target; None: there is none.

    Examples:
        >>> import numpy as np
        >>> from fedpd.search.judge import kept_row
        >>> kept_row(np.array([0.1, 0.9, 0.2, 0.7, 0.8, 0.9]), 0.7)
        3
    """
    return first_kept(values, target, better, first=1)


def with_validation(problem: Problem, share: float, seed: int) -> Problem:
    """Return the problem without a share of each agent's samples, which take the place of its test samples.

    Raises:
        FedpdError: The share is not valid, the samples are not in memory, or the problem has no test samples.
    """
    remedy = "Give the share of each agent's samples that judges the settings, e.g. 0.15"
    below("validation", positive("validation", share, remedy), 1, remedy)
    if problem.evaluation is None:
        refuse("validation", share, "needs a problem that has test samples", "Give validation=0")
    rest, held = problem.hold_out(share, seed)
    sizes = problem.sizes - rest.sizes
    data, offsets = stored(held.rows_of(np.arange(held.agents))[0], sizes)
    return replace(rest, evaluation=problem.evaluation._replace(data=data, sizes=sizes, offsets=offsets))


def with_central_validation(problem: Problem, share: float, seed: int) -> tuple[Problem, Tree]:
    """Return the problem without a share of each agent's samples, and these samples, for a central test set's place."""
    rest, held = problem.hold_out(share, seed)
    rows = held.rows_of(np.arange(held.agents))[0]
    judge = None if problem.judge is None else problem.judge._replace(hold=_as_held)
    return replace(rest, judge=judge), rows


def _as_held(rows: Tree) -> Tree:
    """Return rows as they are: those of a problem have its form already."""
    return rows


class Try(NamedTuple):
    """One setting of a method, and how it did: means over the seeds."""

    point: dict[str, Any]  # the values of the settings that are searched
    setting: str  # the method with all its settings
    communications: float  # until the target; NaN if there is none, or a seed did not reach it
    value: float  # the criterion at the end; infinitely bad if a seed diverged
    samples: float  # sample gradients of all agents together, in the whole run

    def rank(self, criterion: Criterion) -> tuple[float, float, float]:
        """Return a key that is smaller for a better try; the smaller cost decides a tie."""
        spent = np.inf if np.isnan(self.communications) else self.communications
        worse = self.value if criterion.column.better == "less" else -self.value
        return (spent, worse, self.samples)


@dataclass(frozen=True)
class Judge:
    """Runs settings on one problem with some seeds, and judges them."""

    problem: Problem  # the problem, whose test samples are those that judge
    rounds: int  # the rounds of a run
    seeds: tuple[int, ...]
    criterion: Criterion  # what decides
    options: dict[str, Any] = field(default_factory=dict)  # the other options of `simulate`

    def run(self, method: Method, seed: int, checkpoints: Path | None = None) -> Run:
        """Return a run. No theorem covers most of them, and a divergence is a result, so nothing warns."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options: Any = {**self.options, "checkpoints": checkpoints, "progress": False}
            return simulate(method, self.problem, rounds=self.rounds, seed=seed, **options)

    def check(self, candidate: Candidate) -> None:
        """Trace a round of a method, so that no method runs if one of them cannot.

        Raises:
            FedpdError: It cannot run on the problem. The message names it.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                method = candidate.method([axis.start for axis in candidate.axes.values()])
                trace_round(make_plan(method, self.problem, self.rounds, [0], False, RunConfig.of(self.options)))
        except FedpdError as error:
            raise FedpdError(f"{candidate.label}: {error}") from error.__cause__

    def judged(self, point: dict[str, Any], method: Method) -> Try:
        """Return a try of a setting. After a seed that diverged the others need not run."""
        runs = []
        for seed in self.seeds:
            runs.append(self.run(method, seed))
            if runs[-1].diverged is not None:
                break
        return make_try(self.criterion, point, method, runs)


def make_try(criterion: Criterion, point: dict[str, Any], method: Method, runs: Sequence[Run]) -> Try:
    """Return a try from the runs of a setting."""
    target = criterion.target
    spent = [np.nan if target is None else criterion.spent(run, target) for run in runs]
    values = [criterion.final(run) for run in runs]
    samples = [float(run.history["samples"][-1]) for run in runs]
    return Try(point, method.description, *(float(np.mean(numbers)) for numbers in (spent, values, samples)))


class Searched(NamedTuple):
    """The tries of a method."""

    label: str  # the method's label
    tries: tuple[Try, ...]  # the tries, in their order
    best: int  # the number of the best try
    # the settings whose best value has no worse one beside it on both sides: the best may lie further out
    edges: tuple[str, ...]
    method: Method  # the method with the best setting


Places = tuple[int, ...]


def search(
    candidate: Candidate, judged: Callable[[dict[str, Any], Method], Try], criterion: Criterion, budget: int
) -> Searched:
    """Search the settings of a method with at most `budget` tries; `judged` tries a setting."""
    axes = list(candidate.axes.values())
    best: Places = tuple(axis.start for axis in axes)
    tried: dict[Places, Try] = {}

    def rank(places: Places) -> tuple[float, float, float]:
        if places not in tried:
            tried[places] = judged(candidate.point(places), candidate.method(places))
        return tried[places].rank(criterion)

    rank(best)
    for rungs in RUNGS:
        before = None
        while best != before and len(tried) < budget:
            before = best
            for number, axis in enumerate(axes):
                best = _climb(best, number, axis, rungs, rank, lambda: len(tried) < budget)
    edges = tuple(name for number, name in enumerate(candidate.axes) if _is_edge(best, number, axes[number], tried))
    tries = tuple(tried.values())
    return Searched(candidate.label, tries, list(tried).index(best), edges, candidate.method(best))


def _climb(
    best: Places, number: int, axis: Axis, rungs: int, rank: Callable[[Places], Any], more: Callable[[], bool]
) -> Places:
    """Return the best place along an axis, to both sides of a place, as far as tries get better."""
    for direction in (1, -1):
        while more():
            place = best[number] + direction * axis.stride(rungs)
            beside = (*best[:number], place, *best[number + 1 :])
            if not axis.has(place) or rank(beside) >= rank(best):
                break
            best = beside
    return best


def _is_edge(best: Places, number: int, axis: Axis, tried: Iterable[Places]) -> bool:
    """Return whether a better value of a setting may lie beyond those that were tried."""
    if axis.values is not None and not isinstance(axis.first, int | float):
        return False  # words have no order
    if axis.values is not None and len(axis.values) == 1:
        return False
    values = [places[number] for places in tried]
    return best[number] in (min(values), max(values))
