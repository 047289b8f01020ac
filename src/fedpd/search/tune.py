"""Find each method's best settings with the same number of tries, so that a comparison is fair.

By rule, `tune` tries factors on the step sizes of each method's own rule (in its card): eta, step or 1/rho. The
tries of a method are one `sweep` over that factor. Otherwise every method gets the same local work and the same budget
of tries (`fedpd.search.tuned`). The best try has the fewest communications to a target, or the best value at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.algorithms import variants
from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, choice, count, positive, refuse
from fedpd.base.progress import StepFunction
from fedpd.base.typed import typed
from fedpd.core import Method, Problem
from fedpd.engine.config import Participating
from fedpd.engine.measure.columns import Column
from fedpd.engine.participation import Sampling
from fedpd.engine.run import Run
from fedpd.engine.views.entries import MAIN
from fedpd.search.candidates import Candidate, Listed
from fedpd.search.sweep import RUN, Build, Grid, sweep
from fedpd.search.tuned import (
    Criterion,
    Judge,
    Searched,
    Tuned,
    TuningPlan,
    judged_column,
    make_try,
    steps_shown,
    target_of,
    tune_equally,
    tuned_of,
    validated,
)

SCALES = tuple(2.0 ** (exponent / 2) for exponent in range(-4, 17))  # 1/4 to 256, by a factor of sqrt(2)
METHODS = ("FedPD-GD", "FedPD-GD p=auto", "Local GD", "FedProx", "FedDyn", "SCAFFOLD")


class Task(NamedTuple):
    """The problem, the target and the tries that all methods share."""

    problem: Problem  # the problem of the tries, whose test samples are validation samples if those decide
    whole: Problem  # the problem with all its samples
    L: float  # the smoothness
    criterion: Criterion  # the column and the target
    rounds: int  # the rounds of a try
    scales: Sequence[float]  # the factors on the rules
    seeds: Sequence[int]
    grid: Grid  # other settings to try
    options: dict[str, Any]  # the options of `simulate`


@typed
def tune(
    problem: Problem,
    *,
    methods: "Sequence[str] | Listed | None" = None,
    target: float | None = None,
    rounds: int = 200,
    scales: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    L: float | None = None,
    progress: bool | StepFunction | None = None,
    criterion: str = MAIN,
    grid: Grid | None = None,
    budget: int = 16,
    batch: int | None = None,
    iterations: int | None = None,
    epochs: int | None = None,
    ranges: Mapping[str, Any] | None = None,
    validation: float | None = None,
    participation: Participating = 1.0,
    stragglers: float = 0.0,
    record: Sequence[str | Column] | None = None,
    cohort: int | None = None,
    sampling: Sampling = "uniform",
) -> list[Tuned]:
    """Return each method with its best settings: those with the fewest communications to a target.

    Without a target, or if no setting reaches it, the best one has the best value at the end. There are two ways:

    - Labels of `fedpd methods` with the stationarity as criterion: factors on the step size of each method's own rule,
      all at once. The rules have local work of their own.
    - Anything else: every method gets the same local work, and a search of at most `budget` tries. `fedpd.compare` does
      the same and then runs the methods with fresh seeds.

    `budget`, `batch`, `iterations`, `epochs`, `ranges` and `validation` are as for `fedpd.compare`; `participation`,
    `cohort`, `sampling`, `stragglers` and `record` are as for `simulate`.

    Args:
        problem: The problem.
        methods: Names of methods, or functions by label, such as {"FedPD": lambda eta, oracle: ...}; None: the usual
            ones. `fedpd.compare` describes the forms.
        target: The value of the criterion to reach; None: a stationarity of 1e-10, and no target for other criteria.
        rounds: The rounds of each try.
        scales: Factors on the step sizes of each method's own rule; None: 1/4 to 256, by a factor of sqrt(2).
        seeds: Seeds; all of them must reach the target.
        L: The smoothness L for the rules; None: `theory.smoothness` measures it.
        progress: Whether to show a bar, or a function of (method, done, total). Default: a bar in a terminal or a
            notebook, after two seconds.
        criterion: The column of the history that decides, e.g. "test_accuracy" or "loss".
        grid: Other settings to try with all factors, as for `sweep`: {"oracle.batch": [1, 10]} or
            {"participation": [0.1, 1.0]}.

    Returns:
        The tries of each method, in the order of `methods`; with a grid, those of each method and point of the grid.

    Raises:
        FedpdError: An argument is not valid. The message names the value, the rule and the remedy.
    """
    judged, record = judged_column(problem, criterion, record)
    count("rounds", rounds, "Give the rounds of each try, e.g. 200", bits=31)
    run = {"participation": participation, "cohort": cohort, "sampling": sampling, "stragglers": stragglers}
    options = {"record": record} | {name: value for name, value in run.items() if name not in (grid or {})}
    rule = Criterion(judged, target_of(criterion, target))
    work = {"batch": batch, "iterations": iterations, "epochs": epochs}
    labels = methods is None or isinstance(methods, str)  # of `fedpd methods`, each with a rule for its step sizes
    labels = labels or (not isinstance(methods, Mapping) and all(one in variants() for one in methods or ()))
    by_rule = grid is not None or scales is not None or (criterion == MAIN and labels)
    if not by_rule or any(value is not None for value in work.values()):
        if grid is not None or scales is not None:
            refuse(
                "grid" if scales is None else "scales", grid or scales, "belongs to the rules", "Give ranges instead"
            )
        plan = TuningPlan(problem, rule, rounds, tuple(seeds), options, work, budget, validation, ranges or {}, L)
        return tune_equally(plan, methods, tuple(seeds), progress)
    scales = SCALES if scales is None else scales
    if not len(scales):
        refuse("scales", list(scales), "must hold at least one factor", "Leave it out for 1/4 to 256")
    for scale in scales:
        positive("scales", scale, "Give factors on the step sizes of each method's rule, e.g. [0.5, 1, 2]")
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
    tried = validated(problem, judged, validation, seeds[0])
    task = Task(tried, problem, L, rule, rounds, scales, seeds, grid or {}, options)
    judge = Judge(tried, rounds, tuple(seeds), rule, options)
    for method in methods:  # refuse now what cannot run
        judge.check(Candidate(method, partial(variants()[method].rule, L, problem.agents, 1.0), {}))
    with steps_shown(progress) as show:
        return [tuned for method in methods for tuned in _tune(task, method, show)]


def usable(methods: Iterable[str], *participation: Participating) -> list[str]:
    """Return the labels of the methods that work with these participations. Some methods need all agents."""
    if not any(np.any(as_array(share, "participation") != 1) for share in participation):
        return list(methods)
    forms = {label: variants()[label].rule(1.0, 2, 1.0).partial() for label in methods}
    return [
        label for label, one in forms.items() if not one.needs_everyone and not any(e.mixes for e in one.exchanges())
    ]


def _tune(task: Task, method: str, show: StepFunction) -> list[Tuned]:
    """Return the tries of one method, for each point of the grid."""
    rule, problem = variants()[method].rule, task.problem

    def build(scale: Any, **settings: Any) -> Method:
        made = rule(task.L, problem.agents, scale)
        return made.changed(settings)

    def listen(done: int, total: int, stationarity: float) -> None:
        show(method, done, total)

    grid = {**task.grid, "scale": list(task.scales)}
    tried = sweep(build, problem, grid, rounds=task.rounds, seeds=task.seeds, progress=listen, **task.options)
    number = len(task.scales)
    found = []
    for first in range(0, len(tried.points), number):
        settings = {name: value for name, value in tried.points[first].items() if name != "scale"}
        found.append(_tuned(task, method, build, settings, tried.runs[first : first + number]))
    return found


def _tuned(task: Task, method: str, build: Build, settings: dict[str, Any], runs: Sequence[tuple[Run, ...]]) -> Tuned:
    """Return the tries of one method with one setting of the grid: all factors, and the best of them."""
    own = {name: value for name, value in settings.items() if name not in RUN}
    scales = sorted(range(len(task.scales)), key=task.scales.__getitem__)
    tries = [
        make_try(task.criterion, {"scale": scale}, build(scale, **own), several)
        for scale, several in zip(task.scales, runs, strict=True)
    ]
    best = min(range(len(tries)), key=lambda i: tries[i].rank(task.criterion))
    label = ", ".join((method, *(f"{name}={_word(value)}" for name, value in settings.items())))
    algorithm = build(task.scales[best], **own)
    chosen = runs[best]
    if task.whole is not task.problem:
        options = task.options | {name: value for name, value in settings.items() if name in RUN}
        judge = Judge(task.whole, task.rounds, tuple(task.seeds), task.criterion, options)
        chosen = tuple(judge.run(algorithm, seed) for seed in task.seeds)
    at_edge = len(scales) > 1 and best in (scales[0], scales[-1])
    searched = Searched(label, tuple(tries), best, ("scale",) if at_edge else (), algorithm)
    return tuned_of(searched, chosen, task.criterion, method=method, settings=settings)


def _word(value: Any) -> str:
    return getattr(value, "description", None) or (f"{value:g}" if isinstance(value, float) else str(value))
