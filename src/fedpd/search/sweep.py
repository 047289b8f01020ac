"""Run a grid of hyper-parameters and seeds in as few compiled programs as possible.

The program is that of `simulate`, vectorised over the points of the grid. It reads the agents' data once for all
points. Numbers are traced arrays, not constants, so another value needs no compilation.

Points whose methods differ only in numbers run as variants of one program, which takes the stacked methods. Any other
difference (an oracle, a text, a batch size) needs another program. For another participation or probability of
stragglers, the same program runs once more, unless another number of agents takes part in a round.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from fedpd.base.checks import FedpdError, as_number, check_seeds, choice, refuse
from fedpd.base.precision import scope
from fedpd.base.progress import Event, Listener, shown
from fedpd.base.typed import check_arguments
from fedpd.base.value import constant_where_equal, stacked, with_counts
from fedpd.core import Method, Problem, form_with_absent
from fedpd.engine.average import Averaged
from fedpd.engine.checks import check_agents, check_schedules, check_variance, explain_running, fewest_present
from fedpd.engine.config import RunConfig, RunOptions
from fedpd.engine.driver import Driver
from fedpd.engine.measure.columns import column_of
from fedpd.engine.measure.history import first_row
from fedpd.engine.participation import check_cohort, participation_rule, straggler_rule
from fedpd.engine.plan import Plan
from fedpd.engine.run import Run, Runs, results
from fedpd.engine.simulate import drive, make_plan
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.search.views import plain_setting, point_label, sweep_html, sweep_text

Point = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]
Build = Callable[..., Method]
Source = Build | Method
RUN = ("participation", "cohort", "stragglers")  # options of the run, unless `build` has arguments of these names

MOST_POINTS = 100_000  # fedpd makes the method of every point before it runs anything


class Group(NamedTuple):
    """Points that run at once, as variants of one program."""

    members: list[int]  # the positions of the points in the grid
    methods: list[Method]  # their methods, which differ in numbers only; those that all of them share are static
    some: list[Method]  # the forms of these methods for partial participation
    options: Point  # the participation and the stragglers of these points, if the grid has them


def prepare_grid(
    source: Source, grid: Grid, static: Sequence[str], problem: Problem, rounds: int
) -> tuple[list[Point], list[Method], list[Group]]:
    """Return the points of a grid, the method of each, and the groups that run at once, in as few as possible."""
    _check(grid, static)
    takes = set(dict(source.spec.settings) if isinstance(source, Method) else inspect.signature(source).parameters)
    run = [name for name in RUN if name in grid and name not in takes]
    for name in run:  # refuse a value that is not valid before anything runs
        for value in grid[name]:
            if name == "participation":
                participation_rule(value, problem.agents, rounds)
            elif name == "cohort":
                check_cohort(value, problem.agents)
            else:
                straggler_rule(value)
    places = [dict(zip(grid, place, strict=True)) for place in product(*(range(len(grid[name])) for name in grid))]
    points = [{name: grid[name][at] for name, at in place.items()} for place in places]
    settings = [{name: value for name, value in point.items() if name not in run} for point in points]
    methods = [_method(source, one) for one in settings]
    opened = [with_counts(method) for method in methods]
    forms = [with_counts(_form_with_absent(method)) for method in methods]

    def program(i: int) -> Any:
        constants = tuple((name, places[i][name]) for name in static if name not in run)
        return constants, jax.tree.structure(opened[i]), jax.tree.structure(forms[i])

    def options(i: int) -> tuple[int, ...]:
        return tuple(places[i][name] for name in run)

    groups = []
    for members in _grouped(program, range(len(points))):
        whole, some = (constant_where_equal([one[i] for i in members]) for one in (opened, forms))
        at = {i: place for place, i in enumerate(members)}
        for own in _grouped(options, members):
            chosen = {name: points[own[0]][name] for name in run}
            groups.append(Group(own, [whole[at[i]] for i in own], [some[at[i]] for i in own], chosen))
    return points, methods, groups


def _check(grid: Grid, static: Sequence[str]) -> None:
    remedy = 'Give e.g. {"eta": [0.1, 0.3, 1.0]}'
    if not isinstance(grid, Mapping):
        refuse("grid", grid, "must map names to their values", remedy)
    if not grid:
        refuse("grid", dict(grid), "must have at least one name, each with values", remedy)
    for name, values in grid.items():
        if not isinstance(name, str):
            refuse("grid", name, f"its names must be texts, not {type(name).__name__}", remedy)
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray | range):
            refuse(f"grid[{name!r}]", values, "must be a list of values", remedy)
        if not len(values):
            refuse("grid", dict(grid), "must have at least one name, each with values", remedy)
    points = math.prod(len(values) for values in grid.values())
    if points > MOST_POINTS:
        refuse("grid", points, f"must have at most {MOST_POINTS:,} points", "Give fewer values, or several sweeps")
    if isinstance(static, str):
        refuse("static", static, "must be a list of names", f"Give [{static!r}]")
    for name in static:
        if name not in grid:
            refuse("static", name, "is not in the grid", f"Use names of the grid: {', '.join(grid)}")


def _method(source: Source, point: Point) -> Method:
    """Return the method of a point. Making it checks its numbers, and it gives the run its label."""
    if isinstance(source, Method):
        return source.changed(point)
    try:
        inspect.signature(source).bind(**point)
    except TypeError as error:
        takes = ", ".join(inspect.signature(source).parameters) or "nothing"
        rule = f"does not fit the function, whose arguments are {takes} ({error})"
        refuse("grid", list(point), rule, 'Use the names of its arguments. To vary "oracle.batch", give a method')
    made = source(**point)
    if not isinstance(made, Method):
        refuse(
            "build", type(made).__name__, "is what the function returned", "Return a method, e.g. algorithms.fedpd(...)"
        )
    return made


def _form_with_absent(method: Method) -> Method:
    """Return the form for partial participation; the method itself if it has none, which a run with cohorts refuses."""
    try:
        return form_with_absent(method)
    except FedpdError:
        return method


def _grouped(key: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers in groups that have the same key."""
    found: dict[Any, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    yield from found.values()


@dataclass(frozen=True, repr=False)
class Sweep(Runs):
    """The runs of a grid.

    Attributes:
        points: The points: a value for each name of the grid.
        seeds: The seeds.
        runs: `runs[i][j]` is the run of `points[i]` with `seeds[j]`.
    """

    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]

    def costs(self, target: float, column: str = "communications", criterion: str = "stationarity") -> np.ndarray:
        """Return the cost at which each run first reached a target.

        Args:
            target: The value to reach.
            column: The cost: a column of the history, e.g. "communications", "samples" or "bytes_up".
            criterion: The column that has to reach the target, e.g. "stationarity" or "test_accuracy".

        Returns:
            (points, seeds) values of the column; NaN if a run never reached the target.
        """
        return np.array([[first_below(run, target, column, criterion) for run in runs] for runs in self.runs])

    def __repr__(self) -> str:
        return sweep_text(self.entries(), list(self.points[0]), self.seeds)

    def _repr_html_(self) -> str:
        return sweep_html(self.entries(), list(self.points[0]), self.seeds)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs of each point with its label, for figures and reports."""
        return tuple(entry_of(point_label(point), runs) for point, runs in zip(self.points, self.runs, strict=True))

    def keyed(self) -> list[tuple[Mapping[str, Any], Run]]:
        """Return every run with its point of the grid and its seed."""
        plain = [{name: plain_setting(value) for name, value in point.items()} for point in self.points]
        pairs = zip(plain, self.runs, strict=True)
        return [({**point, "seed": run.seed}, run) for point, runs in pairs for run in runs]


def sweep(
    build: Source,
    problem: Problem,
    grid: Grid,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    static: Sequence[str] = (),
    **options: Unpack[RunOptions],
) -> Sweep:
    """Run a method for every point of a grid and every seed.

    Points that differ only in numbers share one compiled program. An oracle, a text or a batch size makes another one.

    Args:
        build: A method, whose settings the grid names; "oracle.batch" names a setting of its oracle. Or a function that
            returns the method of a point, e.g. lambda eta: algorithms.fedpd(eta=eta, oracle=...).
        problem: The problem.
        grid: Names and their values. The points are all combinations, and the last name varies fastest. Values may be
            numbers, texts, oracles and None. The names "participation", "cohort" and "stragglers" are options of
            `simulate`.
        rounds: T, the number of rounds.
        seeds: The seeds of every point.
        static: Names whose values must be constants of the program, because a method of your own looks at them. The
            sweep compiles a program for each of their values.
        **options: The options of `simulate`, such as participation, record and checkpoints.

    Returns:
        All runs of the grid.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, sweep
        >>> problem = problems.random_quadratic(agents=4, dimension=3)
        >>> algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.2, iterations=8))
        >>> tried = sweep(
        ...     algorithm, problem, {"eta": [0.3, 1.0], "oracle.iterations": [2, 8]}, rounds=99
        ... )
        >>> tried.points[1], tried.costs(target=1e-4).shape
        ({'eta': 0.3, 'oracle.iterations': 8}, (4, 1))
        >>> build = lambda eta: algorithms.fedpd(
        ...     eta=eta, oracle=oracles.gd(step=1 / (1 + 1 / eta), iterations=8)
        ... )
        >>> slow, quick = sweep(build, problem, {"eta": [0.3, 1.0]}, rounds=99).costs(target=1e-4)[
        ...     :, 0
        ... ]
        >>> bool(quick < slow)
        True
    """
    if not isinstance(build, Method) and not callable(build):
        refuse("build", build, "must be a method, or a function that makes one", "Give e.g. algorithms.fedpd(...)")
    if isinstance(build, type):
        refuse("build", build.__name__, "is a class", "Give a method, or a function that returns one")
    check_arguments(sweep, {"problem": problem, "rounds": rounds, "seeds": seeds, "static": static})
    check_seeds("seeds", seeds)
    if len(set(seeds)) < len(seeds):
        refuse("seeds", seeds, "holds a seed twice, whose run would count twice in every mean", "Give different seeds")
    points, methods, groups = prepare_grid(build, grid, static, problem, rounds)
    for name, value in options.items():
        if name in groups[0].options:
            refuse(name, value, "is in the grid as well", "Give it either in the grid or as an option")
    chosen = RunConfig.of(options)
    for name, value in (("buffer", chosen.buffer), ("deadline", chosen.deadline)):
        if value is not None:
            refuse(name, value, "the points of a sweep share their rounds", "Call simulate for each point")
    plans = [_plan(problem, group, rounds, seeds, chosen) for group in groups]  # check all plans before the first run
    for group, plan in zip(groups, plans, strict=True):
        for i in group.members:
            fewest = partial(fewest_present, plan.participation, seeds, rounds, problem.agents)
            check_agents(methods[i], problem.agents, fewest)
            check_schedules(methods[i], rounds)
            check_variance(methods[i], problem.dimension)
    runs: dict[int, tuple[Run, ...]] = {}
    with shown(chosen.progress) as bar:
        for number, (group, plan) in enumerate(zip(groups, plans, strict=True)):
            listen = _part_of(bar, f"sweep of {len(points)} points", number * rounds, rounds * len(groups))
            own = chosen
            if chosen.checkpoints is not None and len(groups) > 1:
                own = replace(chosen, checkpoints=Path(chosen.checkpoints) / f"program-{number:03d}")
            found = _run(plan, [methods[i] for i in group.members for _ in seeds], own, listen, list(grid))
            for at, i in enumerate(group.members):
                runs[i] = found[at * len(seeds) : (at + 1) * len(seeds)]
    return Sweep(tuple(points), tuple(seeds), tuple(runs[i] for i in range(len(points))))


def _part_of(bar: Listener, what: str, before: int, total: int) -> Listener:
    """Return a listener for one of several runs, which shows them on one bar."""

    def listen(event: Event) -> Any:
        return bar(event._replace(what=what, done=before + event.done, total=total))

    return listen


def first_below(run: Run, target: float, column: str = "communications", criterion: str = "stationarity") -> float:
    """Return the cost at which the criterion of a run first reached the target; NaN if it never did.

    Args:
        target: The value to reach: from above if less of the criterion is better, otherwise from below.
    """
    as_number("target", target, "Give the value to reach, e.g. 1e-6")
    for name in (column, criterion):
        choice("column", name, run.history)
    row = first_row(run.history[criterion], target, column_of(criterion).better or "less")
    return float("nan") if row is None else float(run.history[column][row])


def _plan(problem: Problem, group: Group, rounds: int, seeds: Sequence[int], options: RunConfig) -> Plan:
    """Return the plan of all points of a group with all seeds, as variants of one program."""
    own = replace(options, **group.options)
    with scope(problem.double):
        plan = make_plan(group.methods[0], problem, rounds, list(seeds) * len(group.members), True, own)
    forms = group.methods if plan.participation is None else group.some
    if not jax.tree.leaves(forms[0]):
        return plan
    if plan.privacy is not None or plan.examples is not None:
        rule = "has its own noise and epsilon for every point, so points cannot run at once"
        refuse("build", plan.algorithm.description, rule, "Call simulate() for each point")
    variants = stacked([form for form in forms for _ in seeds])
    return plan._replace(variants=Averaged(method=variants) if plan.average else variants)


def _run(
    plan: Plan, methods: Sequence[Method], options: RunConfig, listen: Listener, names: Sequence[str]
) -> tuple[Run, ...]:
    """Run all variants of a plan at once; `methods` are their methods, `names` those of the grid."""
    with scope(plan.problem.double):
        try:
            with explain_running():
                driver = Driver(plan, methods)
                drive(driver, options, listen)
        except (jax.errors.JAXTypeError, TypeError) as error:
            if plan.variants is None:
                raise
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedpdError(
                f"the grid over {', '.join(names)} cannot be one program ({reason}). Put names that must be constants "
                "into static=[...]."
            ) from error
        return results(driver)
