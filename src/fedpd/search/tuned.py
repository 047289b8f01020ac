"""Tune several methods fairly: equal local work, equal budgets of tries, judged by samples that no result is about."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.atomic import kept_rows
from fedpd.base.checks import FedpdError, at_least, count, nearest, positive, refuse
from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.progress import Event, StepFunction, shown
from fedpd.core import Method, Problem
from fedpd.engine.measure.columns import KNOWN, RECORDABLE, Column, central_columns, central_test, metric_columns
from fedpd.engine.measure.history import check_target
from fedpd.engine.plan import problem_identity
from fedpd.engine.run import Run, Runs
from fedpd.engine.views.entries import MAIN, Entry, Frame, entry_of, table_frame
from fedpd.experiments import run_folder
from fedpd.experiments.calls import table_of
from fedpd.search.candidates import Candidate, Conditions, Listed, LocalWork, make_candidates, make_work
from fedpd.search.grid import Point
from fedpd.search.judge import Criterion, Judge, Searched, Try, search, with_central_validation, with_validation
from fedpd.search.views import sensitivity_figure, tuned_html, tuned_text

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

    def kept(self, judge: Judge) -> "KeptTries":
        """Return the tries that the folder has, to which new ones are added."""
        if self.folder is None:
            return KeptTries(None, {})
        settings = {
            "problem": problem_identity(judge.problem),
            "criterion": self.criterion.column.name,
            "target": self.criterion.target,
            "rounds": self.rounds,
            "seeds": list(self.seeds),
            "options": {name: fingerprint(value) for name, value in judge.options.items()},
        }
        rows = kept_rows(self.folder / TRIES, json.loads(json.dumps(settings)))
        return KeptTries(self.folder / TRIES, {row.pop("method"): Try(**row) for row in rows})


class KeptTries(NamedTuple):
    """The tries in a file, by the identity of their method; without a file, nothing is kept."""

    file: Path | None
    known: dict[str, Try]

    def judged(self, judge: Judge) -> Callable[[Point, Method], Try]:
        """Return a function that tries a setting, or takes the try from the file."""
        file = self.file
        if file is None:
            return judge.judged

        def judged(point: Point, method: Method) -> Try:
            try:
                key = fingerprint(method.spec.plain())
            except UnidentifiedError as error:
                raise FedpdError(f"{error} Leave folder out: the comparison cannot be continued.") from None
            if key not in self.known:
                self.known[key] = judge.judged(point, method)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"method": key, **self.known[key]._asdict()}) + "\n")
            return self.known[key]._replace(point=point)

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
    judged = plan.kept(judge).judged(judge)
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
