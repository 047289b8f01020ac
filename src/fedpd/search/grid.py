"""List the points of a grid, and group those that share one compiled program.

Points whose methods differ only in numbers run as variants of one program, which takes the stacked methods. Any other
difference (an oracle, a text, a batch size) needs another program. For another participation or probability of
stragglers, the same program runs once more, unless another number of agents takes part in a round.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.value import constant_where_equal, with_counts
from fedpd.core import Method, Problem, form_with_absent
from fedpd.engine.participation import check_cohort, participation_rule, straggler_rule

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
    run = [name for name in RUN if name in grid and not _takes(source, name)]
    _check_run({name: grid[name] for name in run}, problem, rounds)
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
    if isinstance(source, Method):
        return name in dict(source.spec.settings)
    return name in inspect.signature(source).parameters


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
