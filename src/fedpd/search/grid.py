"""List the points of a grid, and group those that share one compiled program.

Numbers are traced: points that differ only in numbers run as variants of one program. Any other difference (an oracle,
a text, a batch size) needs another program. For another participation or probability of stragglers, the same program
runs once more, unless another number of agents takes part in a round.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec
from fedpd.core import Algorithm, Problem
from fedpd.engine.cohorts import check_cohort
from fedpd.engine.participation import participation_rule, straggler_rule
from fedpd.experiments.remake import leaves, setting, with_settings

Point = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]
Build = Callable[..., Algorithm]
RUN = ("participation", "cohort", "stragglers")  # options of the run, unless `build` has arguments of these names
SHAPES = ("batch", "check")  # these numbers are shapes or lengths of loops, so they cannot be traced

MOST_POINTS = 100_000  # fedpd makes the method of every point before it runs anything


class FromSpecs(NamedTuple):
    """A function to call with concrete numbers only. The sweep makes its methods again from their specs.

    Attributes:
        make: Returns the method of a point.
    """

    make: Build


Source = Build | Algorithm | FromSpecs


class Group(NamedTuple):
    """Points that run at once, as variants of one program.

    Attributes:
        members: The positions of the points in the grid.
        first: The method that identifies the program. Groups that share a program have the same one.
        build: Returns the method of a variant from its traced numbers. Groups that share a program have the same one.
        partial: Returns the form of that method for partial participation.
        traced: The numbers of each member, by name.
        options: The participation and the stragglers of these points, if the grid has them.
    """

    members: list[int]
    first: Algorithm
    build: Build
    partial: Build
    traced: dict[str, list[Any]]
    options: Point


class PreparedGrid(NamedTuple):
    """A grid, ready to run.

    Attributes:
        points: The points.
        methods: The method of each point, with concrete numbers.
        groups: The groups of points that run at once.
    """

    points: list[Point]
    methods: list[Algorithm]
    groups: list[Group]


def prepare_grid(source: Source, grid: Grid, static: Sequence[str], problem: Problem, rounds: int) -> PreparedGrid:
    """Return the points of a grid with their methods, grouped into as few programs as possible."""
    _check(grid, static)
    run = [name for name in RUN if name in grid and not _takes(source, name)]
    _check_run({name: grid[name] for name in run}, problem, rounds)
    values = {name: _same_type(source, name, grid[name]) for name in grid}
    places = [dict(zip(grid, place, strict=True)) for place in product(*(range(len(grid[name])) for name in grid))]
    points = [{name: values[name][at] for name, at in place.items()} for place in places]
    settings = [{name: value for name, value in point.items() if name not in run} for point in points]
    methods = [_method(source, one) for one in settings]

    def program(i: int) -> Any:
        constant = _constants(source, settings[i], static)
        structure = _structure(methods[i].spec) if isinstance(source, Algorithm | FromSpecs) else None
        return tuple((name, places[i][name]) for name in constant), structure

    def options(i: int) -> tuple[int, ...]:
        return tuple(places[i][name] for name in run)

    groups = []
    for members in _grouped(program, range(len(points))):
        build, traced = _variants(source, [settings[i] for i in members], [methods[i] for i in members], static)
        partial = _partial_form(build)
        for some in _grouped(options, members):
            columns = {name: [column[members.index(i)] for i in some] for name, column in traced.items()}
            own = {name: points[some[0]][name] for name in run}
            groups.append(Group(some, methods[members[0]], build, partial, columns, own))
    return PreparedGrid(points, methods, groups)


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


def _check_run(grid: Grid, problem: Problem, rounds: int) -> None:
    """Refuse a participation, a cohort or a probability of stragglers that is not valid, before anything runs."""
    for value in grid.get("participation", ()):
        participation_rule(value, problem.agents, rounds)
    for value in grid.get("cohort", ()):
        check_cohort(value, problem.agents)
    for value in grid.get("stragglers", ()):
        straggler_rule(value)


def _takes(source: Source, name: str) -> bool:
    """Return whether the method itself has a setting of this name."""
    if isinstance(source, Algorithm):
        return isinstance(source.spec, Spec) and name in dict(source.spec.settings)
    return not isinstance(source, FromSpecs) and name in inspect.signature(source).parameters


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _same_type(source: Source, name: str, values: Sequence[Any]) -> list[Any]:
    """Return the values of a name. If they mix integers and floats, all become floats, so that they share a type."""
    usual = setting(source, name) if isinstance(source, Algorithm) else None
    real = any(isinstance(value, float | np.floating) for value in (*values, usual))
    return [float(value) if real and _is_number(value) else value for value in values]


def _method(source: Source, point: Point) -> Algorithm:
    """Return the method of a point. Making it checks its numbers, and it gives the run its label."""
    if isinstance(source, Algorithm):
        return with_settings(source, point)
    if isinstance(source, FromSpecs):
        return source.make(**point)
    try:
        inspect.signature(source).bind(**point)
    except TypeError as error:
        takes = ", ".join(inspect.signature(source).parameters) or "nothing"
        rule = f"does not fit the function, whose arguments are {takes} ({error})"
        refuse("grid", list(point), rule, 'Use the names of its arguments. To vary "oracle.batch", give an Algorithm')
    made = source(**point)
    if not isinstance(made, Algorithm):
        refuse(
            "build", type(made).__name__, "is what the function returned", "Return a method, e.g. algorithms.fedpd(...)"
        )
    return made


def _constants(source: Source, point: Point, static: Sequence[str]) -> list[str]:
    """Return the names of a point that are constants of its program."""
    if isinstance(source, Algorithm | FromSpecs):
        return [name for name in static if name in point]  # the spec determines the other constants
    return [
        name
        for name, value in point.items()
        if name in static or not _is_number(value) or name.rpartition(".")[2] in SHAPES
    ]


def _variants(
    source: Source, points: list[Point], methods: list[Algorithm], static: Sequence[str]
) -> tuple[Build, dict[str, list[Any]]]:
    """Return a function that makes a method from the numbers that differ, and these numbers."""
    if isinstance(source, Algorithm | FromSpecs):
        found = [dict(leaves(method.spec)) for method in methods]
        differ = [path for path, value in found[0].items() if any(one[path] != value for one in found)]
        first = methods[0]
        return lambda **traced: with_settings(first, traced), {path: [one[path] for one in found] for path in differ}
    constant = {name: points[0][name] for name in _constants(source, points[0], static)}
    names = [name for name in points[0] if name not in constant]
    return lambda **traced: source(**constant, **traced), {name: [point[name] for point in points] for name in names}


def _structure(spec: Spec | str) -> tuple[tuple[str, Any], ...]:
    """Return a spec without its traceable numbers: finite reals, and the iterations of gradient descent."""
    found = dict(leaves(spec))

    def mark(path: str, value: Any) -> Any:
        free = isinstance(value, float) and math.isfinite(value)
        owner, _, key = path.rpartition(".")
        return type(value) if free or (key == "iterations" and found[owner] == "gd") else value

    return tuple((path, mark(path, value)) for path, value in found.items())


def _grouped(key: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers in groups that have the same key."""
    found: dict[Any, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    yield from found.values()


def _partial_form(build: Build) -> Build:
    """Return a function that makes the method's form for partial participation, if it has one."""

    def made(**traced: Any) -> Algorithm:
        algorithm = build(**traced)
        return algorithm.away.partial or algorithm

    return made
