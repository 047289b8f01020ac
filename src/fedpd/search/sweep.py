"""A grid of hyper-parameters and seeds, run as one compiled program.

Hyper-parameters are traced arrays, not constants: the program is `simulate`'s, vectorised over the points of the grid,
so that agents' data is read once for all of them, and nothing is compiled anew for another value.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import scope
from fedpd.base.progress import Report, reporter
from fedpd.core import Algorithm, Problem
from fedpd.engine.driver import Engine, Plan
from fedpd.engine.execution import choose_layout
from fedpd.engine.simulate import Run, check_batch, check_run, results

Point = dict[str, Any]


class Sweep(NamedTuple):
    """The runs of a grid: `runs[i][j]` is `points[i]` with `seeds[j]`."""

    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]

    def costs(self, target: float, column: str = "communications") -> np.ndarray:
        """(points, seeds): the column's value when stationarity first came down to `target`; NaN where it never did."""
        return np.array([[first_below(run, target, column) for run in runs] for runs in self.runs])


def sweep(
    build: Callable[..., Algorithm],
    problem: Problem,
    grid: Mapping[str, Sequence[float]],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    static: Sequence[str] = (),
    metrics_every: int = 1,
    progress: bool | Report | None = None,
) -> Sweep:
    """Run build(**point) for every point of the grid and every seed.

    build:  makes the method from a point, e.g. lambda eta: algorithms.fedpd(eta=eta, oracle=...). It is called with
            traced numbers, so it may compute with them, but not branch on them.
    grid:   name -> values; the points are their product, the last name varying fastest.
    static: names whose values are constants of the program, which is then compiled for each of them: what must not be
            traced, e.g. `iterations` of a stochastic oracle.

    >>> from fedpd import algorithms, oracles, problems
    >>> build = lambda eta: algorithms.fedpd(eta=eta, oracle=oracles.gd(step=1 / (1 + 1 / eta), iterations=8))
    >>> tried = sweep(build, problems.random_quadratic(agents=4, dimension=3), {"eta": [0.3, 1.0]}, rounds=99)
    >>> slow, quick = tried.costs(target=1e-4)[:, 0]
    >>> bool(quick < slow)
    True
    """
    points = _points(grid, static)
    check_run(rounds, metrics_every, seeds)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, point in enumerate(points):
        groups.setdefault(tuple(point[name] for name in static), []).append(i)
    runs: dict[int, tuple[Run, ...]] = {}
    with reporter(progress, f"sweep of {len(points)} points", rounds * len(groups)) as report:
        for number, (fixed, members) in enumerate(groups.items()):

            def tell(done: float, total: int, stationarity: float, before: int = number * rounds) -> None:
                report(before + done, rounds * len(groups), stationarity)

            group = [points[i] for i in members]
            constants = dict(zip(static, fixed, strict=True))
            found = _run(build, problem, group, constants, rounds, seeds, metrics_every, tell)
            runs |= dict(zip(members, found, strict=True))
    return Sweep(tuple(points), tuple(seeds), tuple(runs[i] for i in range(len(points))))


def first_below(run: Run, target: float, column: str = "communications") -> float:
    """What a run had spent when its stationarity first came down to `target`; NaN where it never did."""
    reached = np.flatnonzero(run.history["stationarity"] <= target)
    return float(run.history[column][reached[0]]) if len(reached) else float("nan")


def _points(grid: Mapping[str, Sequence[float]], static: Sequence[str]) -> list[Point]:
    remedy = 'Give e.g. {"eta": [0.1, 0.3, 1.0]}'
    if not grid or not all(len(values) for values in grid.values()):
        refuse("grid", dict(grid), "must have at least one name, each with values", remedy)
    for name in static:
        if name not in grid:
            refuse("static", name, "is not in the grid", f"The grid has: {', '.join(grid)}")
    for name, values in grid.items():
        for value in values:
            if name not in static and (isinstance(value, str) or not np.isscalar(value)):
                rule = "must be a number, since it is traced"
                refuse(f"grid[{name!r}]", value, rule, f"Leave it to build, or name it in static=[{name!r}]")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _run(
    build: Callable[..., Algorithm],
    problem: Problem,
    points: list[Point],
    constants: Point,
    rounds: int,
    seeds: Sequence[int],
    every: int,
    report: Report,
) -> list[tuple[Run, ...]]:
    """All points that share the constants, times all seeds, as variants of one program."""
    examples = [build(**point) for point in points]  # validates concrete numbers, and names the runs
    check_batch(examples[0], problem)
    names = [name for name in points[0] if name not in constants]
    repeated = [point for point in points for _ in seeds]
    with scope(problem.double):
        settings = {name: np.array([point[name] for point in repeated]) for name in names}
        settings = {name: column.astype(_dtype(column, problem.double)) for name, column in settings.items()}
        plan = Plan(
            rounds,
            every,
            list(seeds) * len(points),
            many=True,
            build=lambda **traced: build(**constants, **traced),
            settings=settings,
        )
        engine = Engine(examples[0], problem, choose_layout(examples[0], problem), plan)
        try:
            engine.run(None, rounds, report)
        except (jax.errors.JAXTypeError, TypeError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedpdError(
                f"the grid over {', '.join(names)} cannot be one program ({reason}). Name what has to be a constant in "
                "static=[...], e.g. the iterations of a stochastic oracle."
            ) from error
        found = results(engine, [examples[i // len(seeds)].description for i in range(len(repeated))])
    return [tuple(found[i : i + len(seeds)]) for i in range(0, len(found), len(seeds))]


def _dtype(column: np.ndarray, double: bool) -> Any:
    if np.issubdtype(column.dtype, np.integer):
        return np.int32
    return np.float64 if double else np.float32
