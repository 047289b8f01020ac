"""Tune several methods fairly: equal local work, equal budgets of tries, judged by samples that no result is about.

If the criterion is measured on test samples, a share of each agent's training samples stands in for them: no setting is
chosen by the samples on which a result is reported. A search climbs: it goes along one setting as long as tries get
better, in steps of a factor of 4, then of 2, then of sqrt(2). So it has no ends at which it would stop for no reason,
and if its budget ends it first, the result says so.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.atomic import kept_rows
from fedpd.base.checks import FedpdError, at_least, below, count, nearest, positive, refuse
from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.progress import Event, StepFunction, shown
from fedpd.core import Method, Problem, Tree
from fedpd.core.rows import stored
from fedpd.engine.checks import trace_round
from fedpd.engine.config import RunConfig
from fedpd.engine.measure.columns import KNOWN, RECORDABLE, Column, central_columns, central_test, metric_columns
from fedpd.engine.measure.history import check_target
from fedpd.engine.plan import problem_identity
from fedpd.engine.run import Run, Runs
from fedpd.engine.simulate import make_plan, simulate
from fedpd.engine.views.entries import (
    MAIN,
    Entry,
    Frame,
    cost_values,
    entry_of,
    first_kept,
    measured_rows,
    reached_row,
    table_frame,
)
from fedpd.experiments import run_folder
from fedpd.experiments.calls import table_of
from fedpd.search.candidates import Axis, Candidate, Conditions, Listed, LocalWork, make_candidates, make_work
from fedpd.search.sweep import Point
from fedpd.search.views import sensitivity_figure, tuned_html, tuned_text

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


def kept_row(values: np.ndarray, target: float) -> int | None:
    """Return the first row, after the start, from which the mean of three is at the target; None: there is none.

    Examples:
        >>> import numpy as np
        >>> from fedpd.search.tuned import kept_row
        >>> kept_row(np.array([0.1, 0.9, 0.2, 0.7, 0.8, 0.9]), 0.7)
        3
    """
    return first_kept(values, target, "more", first=1)


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
    # Rows of a problem have its form already.
    judge = None if problem.judge is None else problem.judge._replace(hold=lambda rows: rows)
    return replace(rest, judge=judge), rows


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


if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATIONARITY = 1e-10  # the target of the stationarity, if none is given
USUAL = ("fedavg", "fedprox", "scaffold", "fedpd")  # the methods, if none are given
VALIDATION = 0.15  # the share of each agent's samples that judges settings
TRIES = "tries.jsonl"


@dataclass(frozen=True, repr=False)
class Tuned(Runs):
    """The tries of one method, and the runs with its best setting.

    Attributes:
        label: The method's label, with the settings of the grid if there is one.
        points: The settings that were tried, P of them.
        communications: (P,) communications to the target, mean over seeds; NaN if a seed did not reach it.
        values: (P,) the criterion at the end, mean over seeds; infinitely bad if a seed diverged.
        best: The number of the best try.
        edges: The settings whose best value is the first or the last that was tried, so that a better one may lie
            beyond.
        setting: The method with its best setting, in words.
        table: The same as a table of an experiment file; {}: a file cannot hold it.
        runs: The runs with the best setting, one per seed, on all training samples.
        method: The method's label in `algorithms.variants()`, if its rule was tuned.
        settings: The settings of the grid that these tries share.
        criterion: The column that decides.
        target: The value to reach; None: the value at the end decides.
    """

    label: str
    points: tuple[Point, ...]
    communications: np.ndarray
    values: np.ndarray
    best: int
    edges: tuple[str, ...]
    setting: str
    table: dict[str, Any]
    runs: tuple[Run, ...]
    method: str
    settings: dict[str, Any]
    criterion: str
    target: float | None

    @property
    def scales(self) -> np.ndarray:
        """Return the (P,) values of the setting that was searched first: factors on a rule, or step sizes."""
        return np.array([next(iter(point.values()), np.nan) for point in self.points])

    @property
    def searched(self) -> str:
        """Return the name of the setting that was searched first; "": there was nothing to search."""
        return next(iter(self.points[0]), "")

    @property
    def reached(self) -> bool:
        """Return whether any try reached the target."""
        return not bool(np.isnan(self.communications[self.best]))

    def __repr__(self) -> str:
        return tuned_text(self)

    def _repr_html_(self) -> str:
        return tuned_html(self)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs with the best setting and their label, for figures and reports."""
        return (entry_of(self.label, self.runs),)

    def keyed(self) -> list[tuple[Mapping[str, Any], Run]]:
        """Return the runs with the best setting, with the method and the seed."""
        return [({"method": self.label, "seed": run.seed}, run) for run in self.runs]

    def plot(self) -> "Figure":  # type: ignore[override]  # tries have no curves, so no quantity to choose
        """Return a matplotlib figure of the tries: the communications to the target, or the value at the end."""
        return sensitivity_figure([self])

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per try."""
        tries = zip(self.points, self.communications, self.values, strict=True)
        return table_frame(
            [
                {"method": self.label, **point, "communications": spent, self.criterion: value, "best": i == self.best}
                for i, (point, spent, value) in enumerate(tries)
            ]
        )


def judged_column(
    problem: Problem, name: str, record: Sequence[str | Column] | None = None, test: Any = None
) -> tuple[Column, Sequence[str | Column] | None]:
    """Return the column of a criterion, and the value of `record` that measures it; `test` is a central test set."""
    central = {} if test is None else {one.name: one for one in central_columns(central_test(problem, test).metrics)}
    if name in central:
        return central[name], record
    if name.startswith("central_"):
        refuse("criterion", name, "needs a central test set", 'Give test={"x": ..., "y": ...}')
    metrics = {column.name: column for column in metric_columns(problem)}
    if name in metrics:
        return metrics[name], record if record is None or "metrics" in record else [*record, "metrics"]
    own = {one.name: one for one in record or () if isinstance(one, Column)}
    known = {key: column for key, column in (KNOWN | own).items() if column.kind == "value" and column.better}
    if name not in known:
        options = [*known, *metrics]
        refuse("criterion", name, "must be a column of which less or more is better", nearest(name, options))
    words = [word for word, columns in RECORDABLE.items() if name in {column.name for column in columns}]
    if "accuracy" in words and problem.evaluation is None:
        remedy = "Give data with test samples, e.g. data.split(data, 0.2), or another criterion"
        refuse("criterion", name, "needs a problem with test samples", remedy)
    missing = [word for word in words if word not in (record or ()) and not (word == "accuracy" and record is None)]
    return known[name], [*(record or ()), *missing] if missing else record


def target_of(criterion: str, target: float | None) -> float | None:
    """Return the value of the criterion to reach; None: the best value at the end. The stationarity has a default."""
    if criterion == MAIN:
        target = STATIONARITY if target is None else target
        return positive("target", target, "Give a stationarity, e.g. 1e-10")
    if target is None:
        return None
    check_target(criterion, at_least("target", target, -np.inf, f"Give the value of {criterion} to reach"))
    return target


def is_tested(column: Column) -> bool:
    """Return whether a column is measured on test samples."""
    return column.measure is not None and column.measure.tests


def is_central(column: Column) -> bool:
    """Return whether a column is measured on a central test set."""
    return column.measure is not None and column.measure.central is not None


def validated(problem: Problem, column: Column, share: float | None, seed: int) -> Problem:
    """Return the problem on which settings are judged: its test samples are validation samples if those decide."""
    if share is None:
        share = VALIDATION if is_tested(column) else 0.0
    return with_validation(problem, share, seed) if at_least("validation", share, 0, "Give e.g. 0.15") else problem


@contextmanager
def steps_shown(progress: bool | StepFunction | None) -> Iterator[StepFunction]:
    """Yield a function of (what, done, total): the user's own, or one that moves a bar."""
    if callable(progress):
        yield progress
        return
    with shown(progress) as listen:
        yield lambda what, done, total: listen(Event(what, done, total))


@dataclass(frozen=True)
class TuningPlan:
    """The part of a comparison that all methods share."""

    problem: Problem  # the problem, with all its samples
    criterion: Criterion  # what decides between settings
    rounds: int  # the rounds of every run
    seeds: tuple[int, ...]  # the seeds of the tries
    options: dict[str, Any]  # the options of `simulate`
    work: dict[str, Any]  # the arguments of `make_work`: batch, iterations, epochs and so on; None: the usual ones
    budget: int  # the most tries of a method
    validation: float | None  # the share of the samples that judge; None: the usual one
    ranges: Mapping[str, Any]  # lists of values by the name of a setting
    L: float | None  # the smoothness; None: it is measured if a method needs it
    # where the tries are kept, so that the same call goes on after an interruption; None: nowhere
    folder: Path | None = None
    # "samples": the server weighs messages by the agents' numbers of samples; None: the plain mean
    weights: Literal["samples"] | None = None

    @property
    def local_work(self) -> LocalWork:
        """Return the local work of all methods."""
        return make_work(self.problem, self.criterion.column.name == MAIN, **self.work)

    def candidates(self, methods: "Sequence[str] | Listed | None") -> list[Candidate]:
        """Return the methods; None: the usual ones."""
        count("budget", self.budget, "Give the most tries of a method, e.g. 16", bits=31)
        cohort = self.options.get("cohort")
        conditions = Conditions(
            self.local_work,
            self.problem.agents,
            self.problem.agents if cohort is None else cohort,
            cache(lambda: theory.smoothness(self.problem) if self.L is None else self.L),
            self.ranges,
            self.rounds,
            self.weights,
        )
        own_work = all(self.work.get(name) is None for name in ("batch", "iterations", "epochs"))
        return make_candidates(USUAL if methods is None else methods, conditions, own_work)

    def judge(self) -> Judge:
        """Return the judge of the tries, to whom the test samples of the results are unknown."""
        column, options = self.criterion.column, self.options
        if is_central(column) and self.validation != 0:
            problem, rows = with_central_validation(self.problem, self.validation or VALIDATION, self.seeds[0])
            options = {**options, "test": rows}
        else:
            problem = validated(self.problem, column, self.validation, self.seeds[0])
        return Judge(problem, self.rounds, self.seeds, self.criterion, options)

    def judged(self, judge: Judge) -> Callable[[Point, Method], Try]:
        """Return a function that tries a setting, or takes the try from the folder, which keeps all of them."""
        if self.folder is None:
            return judge.judged
        settings = {
            "problem": problem_identity(judge.problem),
            "criterion": self.criterion.column.name,
            "target": self.criterion.target,
            "rounds": self.rounds,
            "seeds": list(self.seeds),
            "options": {name: fingerprint(value) for name, value in judge.options.items()},
        }
        file = self.folder / TRIES
        known = {row.pop("method"): Try(**row) for row in kept_rows(file, json.loads(json.dumps(settings)))}

        def judged(point: Point, method: Method) -> Try:
            try:
                key = fingerprint(method.spec.plain())
            except UnidentifiedError as error:
                raise FedpdError(f"{error} Leave folder out: the comparison cannot be continued.") from None
            if key not in known:
                known[key] = judge.judged(point, method)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"method": key, **known[key]._asdict()}) + "\n")
            return known[key]._replace(point=point)

        return judged


def tune_equally(
    plan: TuningPlan,
    methods: "Sequence[str] | Listed | None",
    seeds: Sequence[int],
    progress: bool | StepFunction | None,
) -> list[Tuned]:
    """Tune every method with the same local work and budget, and run its best with `seeds` on all training samples."""
    candidates = plan.candidates(methods)
    judge = plan.judge()
    for candidate in candidates:
        judge.check(candidate)
    tries = [min(plan.budget, 1) if not one.axes else plan.budget for one in candidates]
    total = sum(tries) + len(seeds) * len(candidates)
    judged = plan.judged(judge)
    final = Judge(plan.problem, plan.rounds, tuple(seeds), plan.criterion, plan.options)
    found: list[Tuned] = []
    done = 0
    with steps_shown(progress) as show:
        for candidate, allowed in zip(candidates, tries, strict=True):

            def counted(point: Point, method: Method, label: str = candidate.label) -> Try:
                nonlocal done
                show(f"{label}: trying", done, total)
                done += 1
                return judged(point, method)

            before = done
            best = search(candidate, counted, plan.criterion, allowed)
            done = before + allowed  # a search may end early
            runs = []
            for number, seed in enumerate(seeds):
                show(f"{candidate.label}: seed {seed}", done + number, total)
                own = None  # the folder of its checkpoints; the number keeps methods of similar labels apart
                if plan.folder is not None:
                    own = run_folder.checkpoints_of(plan.folder, len(found) + 1, f"{candidate.label}-seed-{seed}")
                runs.append(final.run(best.method, seed, own))
            done += len(seeds)
            found.append(tuned_of(best, runs, plan.criterion))
        show("done", total, total)
    return found


def tuned_of(best: Searched, runs: Sequence[Run], criterion: Criterion, **more: Any) -> Tuned:
    """Return a tuned method from its tries and the runs with its best setting."""
    try:
        table = {"label": best.label} | table_of(best.method.spec)
    except FedpdError:  # a file cannot hold it, e.g. a function of the user's own
        table = {}
    return Tuned(
        label=best.label,
        points=tuple(one.point for one in best.tries),
        communications=np.array([one.communications for one in best.tries]),
        values=np.array([one.value for one in best.tries]),
        best=best.best,
        edges=best.edges,
        setting=best.method.description,
        table=table,
        runs=tuple(runs),
        method=more.get("method", ""),
        settings=more.get("settings", {}),
        criterion=criterion.column.name,
        target=criterion.target,
    )
