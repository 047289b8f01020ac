"""Find each method's best step size with the same number of tries, so that a comparison is fair.

For every method, `tune` tries factors on the step sizes of the method's own rule (in its card): eta, step or 1/rho. The
tries of a method are one `sweep` over that factor. The best try has the fewest communications to a target.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.algorithms import variants
from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, TheoryWarning, at_least, choice, count, nearest, positive, refuse
from fedpd.base.progress import StepFunction
from fedpd.base.saved import save_result
from fedpd.base.typed import typed
from fedpd.core import Method, Problem
from fedpd.engine.config import Participating, RunConfig
from fedpd.engine.measure.columns import KNOWN, RECORDABLE, Column, metric_columns
from fedpd.engine.measure.targets import check_target
from fedpd.engine.participation import Sampling
from fedpd.engine.run import Run
from fedpd.engine.simulate import make_plan
from fedpd.engine.tracing import trace_round
from fedpd.engine.views.entries import Entry, entry_of, last_value
from fedpd.engine.views.notebook import Frame, table_frame
from fedpd.experiments.calls import table_of
from fedpd.search.grid import RUN, Build, Grid
from fedpd.search.sweep import sweep
from fedpd.search.views import sensitivity_figure, tuned_html, tuned_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = tuple(2.0 ** (exponent / 2) for exponent in range(-4, 17))  # 1/4 to 256, by a factor of sqrt(2)
METHODS = ("FedPD-GD", "FedPD-GD p=auto", "Local GD", "FedProx", "FedDyn", "SCAFFOLD")


STATIONARITY = 1e-10  # the target of the stationarity, if none is given


class Tuned(NamedTuple):
    """The tries of one method.

    Attributes:
        label: The method's label, with the settings of the grid if there is one.
        scales: (P,) factors on the step sizes of its own rule.
        communications: (P,) communications to the target, mean over seeds; NaN if a seed did not reach it.
        stationarity: (P,) stationarity at the end, the largest over seeds.
        best: The index of the best factor.
        table: The method at the best factor, as a table of an experiment file.
        runs: The runs at the best factor, one per seed.
        method: The method's label in `algorithms.variants()`.
        settings: The settings of the grid that these tries share.
        criterion: The column that had to reach the target.
        values: (P,) the criterion at the end, the worst over seeds.
    """

    label: str
    scales: np.ndarray
    communications: np.ndarray
    stationarity: np.ndarray
    best: int
    table: dict[str, Any]
    runs: tuple[Run, ...]
    method: str
    settings: dict[str, Any]
    criterion: str
    values: np.ndarray

    @property
    def reached(self) -> bool:
        """Return whether any factor reached the target."""
        return not bool(np.isnan(self.communications[self.best]))

    def __repr__(self) -> str:
        return tuned_text(self)

    def _repr_html_(self) -> str:
        return tuned_html(self)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs at the best factor with their label, for figures and reports."""
        return (entry_of(self.label, self.runs),)

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the communications to the target against the factor on the step size."""
        return sensitivity_figure([self])

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per factor."""
        columns = zip(self.scales, self.communications, self.stationarity, strict=True)
        names = ("scale", "communications", "stationarity")
        rows = [dict(zip(names, values, strict=True)) | {"best": i == self.best} for i, values in enumerate(columns)]
        return table_frame([{"method": self.label, **row} for row in rows])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tries to a folder of their own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.
        """
        return save_result(self, folder, model=self.runs[0].model, overwrite=overwrite)


class Task(NamedTuple):
    """The problem, the target and the tries that all methods share."""

    problem: Problem
    L: float
    criterion: Column
    target: float
    rounds: int
    scales: Sequence[float]
    seeds: Sequence[int]
    grid: Grid
    options: dict[str, Any]


@typed
def tune(
    problem: Problem,
    *,
    methods: Sequence[str] | None = None,
    target: float | None = None,
    rounds: int = 200,
    scales: Sequence[float] = SCALES,
    seeds: Sequence[int] = (0,),
    L: float | None = None,
    progress: StepFunction | None = None,
    criterion: str = "stationarity",
    grid: Grid | None = None,
    participation: Participating = 1.0,
    stragglers: float = 0.0,
    record: Sequence[str | Column] | None = None,
    cohort: int | None = None,
    sampling: Sampling = "uniform",
) -> list[Tuned]:
    """Return the best step size of each method: the one with the fewest communications to a target.

    If no step size reaches the target, the best one has the best value at the end.

    Args:
        problem: The problem.
        methods: Labels of `algorithms.variants()`; None: `METHODS`, without those that need all agents if only some
            take part.
        target: The value of the criterion to reach; None: a stationarity of 1e-10. Other criteria need a target.
        rounds: The rounds of each try.
        scales: Factors on the step sizes of each method's own rule.
        seeds: Seeds; all of them must reach the target.
        L: The smoothness L for the rules; None: `theory.smoothness` measures it.
        progress: A function of (method, rounds done, total rounds).
        criterion: The column of the history that has to reach the target, e.g. "test_accuracy" or "loss".
        grid: Other settings to try with all factors, as for `sweep`: {"oracle.batch": [1, 10]} or
            {"participation": [0.1, 1.0]}.
        participation: Who takes part in a round, as for `simulate`.
        stragglers: The probability that an agent does only some of its local steps in a round.
        record: What else to measure, as for `simulate`.
        cohort: The number of agents in a round, instead of `participation`.
        sampling: How a cohort is drawn, as for `simulate`.

    Returns:
        The tries of each method, in the order of `methods`; with a grid, those of each method and point of the grid.

    Raises:
        FedpdError: An argument is not valid. The message names the value, the rule and the remedy.
    """
    judged, record = judged_column(problem, criterion, record)
    count("rounds", rounds, "Give the rounds of each try, e.g. 200", bits=31)
    if not len(scales):
        refuse("scales", list(scales), "must hold at least one factor", "Leave it out for 1/4 to 256")
    for scale in scales:
        positive("scales", scale, "Give factors on the step sizes of each method's rule, e.g. [0.5, 1, 2]")
    run = {"participation": participation, "cohort": cohort, "sampling": sampling, "stragglers": stragglers}
    options = {"record": record} | {name: value for name, value in run.items() if name not in (grid or {})}
    target = target_of(criterion, target)
    if methods is None:
        some = [] if cohort is None and "cohort" not in (grid or {}) else [0.5]
        methods = usable(METHODS, *(grid or {}).get("participation", [participation]), *some)
    if isinstance(methods, str):
        refuse("methods", methods, "must be a list of labels", f"Give e.g. [{methods!r}]")
    if not len(methods) or len(set(map(str, methods))) < len(methods):
        refuse(
            "methods", list(methods), "must hold at least one label, and each once", "Leave it out for the usual ones"
        )
    for method in methods:
        choice("methods", method, variants())
    L = theory.smoothness(problem) if L is None else at_least("L", L, 0, "Give the smoothness, or leave it out")
    task = Task(problem, L, judged, target, rounds, scales, seeds, grid or {}, options)
    for method in methods:
        _check(task, method)
    return [tuned for method in methods for tuned in _tune(task, method, progress)]


def _check(task: Task, method: str) -> None:
    """Trace a round of a method by its own rule, so that no method runs if one of them cannot."""
    made = variants()[method].rule(task.L, task.problem.agents, 1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TheoryWarning)  # the sweep warns of it
            trace_round(make_plan(made, task.problem, task.rounds, [0], False, RunConfig.of(task.options)))
    except FedpdError as error:
        raise FedpdError(f"{method}: {error}") from error.__cause__


def usable(methods: Iterable[str], *participation: Participating) -> list[str]:
    """Return the labels of the methods that work with these participations. Some methods need all agents."""
    partial = any(np.any(as_array(share, "participation") != 1) for share in participation)
    return [label for label in methods if not (partial and _needs_everyone(variants()[label].rule(1.0, 2, 1.0)))]


def _needs_everyone(algorithm: Method) -> bool:
    algorithm = algorithm.partial()
    return algorithm.needs_everyone or any(one.mixes for one in algorithm.exchanges())


def judged_column(
    problem: Problem, name: str, record: Sequence[str | Column] | None = None
) -> tuple[Column, Sequence[str | Column] | None]:
    """Return the column of a criterion, and the value of `record` that measures it."""
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


def target_of(criterion: str, target: float | None) -> float:
    """Return the value of the criterion to reach. Only the stationarity has a default."""
    if criterion == "stationarity":
        target = STATIONARITY if target is None else target
        return positive("target", target, "Give a stationarity, e.g. 1e-10")
    if target is None:
        refuse("target", None, f"must be given for {criterion}", "Give the value to reach, e.g. 0.9 for an accuracy")
    check_target(criterion, at_least("target", target, -np.inf, f"Give the value of {criterion} to reach"))
    return target


def _tune(task: Task, method: str, progress: StepFunction | None) -> list[Tuned]:
    """Return the tries of one method, for each point of the grid."""
    rule, problem = variants()[method].rule, task.problem

    def build(scale: Any, **settings: Any) -> Method:
        made = rule(task.L, problem.agents, scale)
        return made.changed(settings)

    def show(done: int, total: int, stationarity: float) -> None:
        if progress is not None:
            progress(method, done, total)

    grid = {**task.grid, "scale": list(task.scales)}
    tried = sweep(build, problem, grid, rounds=task.rounds, seeds=task.seeds, progress=show, **task.options)
    costs = tried.costs(task.target, criterion=task.criterion.name).mean(axis=1)  # NaN if any seed is NaN
    number = len(task.scales)
    found = []
    for first in range(0, len(tried.points), number):
        settings = {name: value for name, value in tried.points[first].items() if name != "scale"}
        part = slice(first, first + number)
        found.append(_tuned(task, method, build, settings, costs[part], tried.runs[part]))
    return found


def _tuned(
    task: Task,
    method: str,
    build: Build,
    settings: dict[str, Any],
    costs: np.ndarray,
    runs: Sequence[tuple[Run, ...]],
) -> Tuned:
    """Return the tries of one method with one setting of the grid: all factors, and the best of them."""
    less = task.criterion.better == "less"
    worst = max if less else min
    values = np.array([worst(_last(run, task.criterion) for run in several) for several in runs])
    order = np.lexsort((values if less else -values, np.where(np.isnan(costs), np.inf, costs)))
    best = int(order[0])
    own = {name: value for name, value in settings.items() if name not in RUN}
    label = ", ".join((method, *(f"{name}={_word(value)}" for name, value in settings.items())))
    return Tuned(
        label,
        np.array(task.scales),
        costs,
        np.array([max(_last(run, KNOWN["stationarity"]) for run in several) for several in runs]),
        best,
        {"label": label} | table_of(build(task.scales[best], **own).spec),
        runs[best],
        method,
        settings,
        task.criterion.name,
        values,
    )


def _word(value: Any) -> str:
    return getattr(value, "description", None) or (f"{value:g}" if isinstance(value, float) else str(value))


def _last(run: Run, column: Column) -> float:
    """Return a run's last value of a column; for a run that diverged, the worst possible value."""
    if run.diverged is not None:
        return np.inf if column.better == "less" else -np.inf
    return last_value(run, column.name)
