"""A grid of hyper-parameters and seeds, run as one compiled program.

Hyper-parameters are traced arrays, not constants: the program is `simulate`'s, vectorised over the points of the grid,
so that agents' data is read once for all of them, and nothing is compiled again for another value.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jax
import numpy as np

from fedpd.base.checks import FedpdError, check_seeds, refuse
from fedpd.base.precision import scope
from fedpd.base.progress import Event, Listener, shown
from fedpd.base.saved import save_result
from fedpd.core import Algorithm, Problem
from fedpd.engine.driver import Driver
from fedpd.engine.history import first_row
from fedpd.engine.run import Run, results
from fedpd.engine.simulate import RunOptions, drive, make_plan, with_defaults
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.engine.views.frames import Frame, history_frame
from fedpd.engine.views.quantities import MAIN
from fedpd.search.views import plain_setting, point_label, sweep_html, sweep_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = dict[str, Any]


class Sweep(NamedTuple):
    """The runs of a grid: `runs[i][j]` is `points[i]` with `seeds[j]`."""

    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]

    def costs(self, target: float, column: str = "communications") -> np.ndarray:
        """(points, seeds): the column's value when stationarity first came down to `target`; NaN where it never did."""
        return np.array([[first_below(run, target, column) for run in runs] for runs in self.runs])

    def __repr__(self) -> str:
        return sweep_text(self.entries(), list(self.points[0]), self.seeds)

    def _repr_html_(self) -> str:
        return sweep_html(self.entries(), list(self.points[0]), self.seeds)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs of each point by its label, as figures and reports take them."""
        return tuple(entry_of(point_label(point), runs) for point, runs in zip(self.points, self.runs, strict=True))

    def plot(
        self,
        quantity: str = MAIN,
        against: str | Sequence[str] = "communications",
        *,
        title: str = "",
        width: float = 6.4,
    ) -> "Figure":
        """Return a matplotlib figure with one curve per point; the arguments are `fedpd.report.figure`'s."""
        from fedpd.engine.views.drawing import draw  # only a figure needs matplotlib

        return draw(self.entries(), quantity, against, title=title, width=width)

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per point, seed and measured round."""
        plain = [{name: plain_setting(value) for name, value in point.items()} for point in self.points]
        pairs = zip(plain, self.runs, strict=True)
        return history_frame([({**point, "seed": run.seed}, run) for point, runs in pairs for run in runs])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the sweep to a folder of its own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Replace the result that the folder holds. Nothing else is ever replaced.
        """
        return save_result(self, folder, model=self.runs[0][0].model, overwrite=overwrite)


def sweep(
    build: Callable[..., Algorithm],
    problem: Problem,
    grid: Mapping[str, Sequence[float]],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    static: Sequence[str] = (),
    **options: Unpack[RunOptions],
) -> Sweep:
    """Run build(**point) for every point of the grid and every seed.

    Args:
        build: Makes the method from a point, e.g. lambda eta: algorithms.fedpd(eta=eta, oracle=...). It is called with
            traced numbers, so it may compute with them, but not branch on them.
        problem: The problem.
        grid: Names and their values; the points are their product, the last name varying fastest.
        rounds: T, the number of rounds.
        seeds: The seeds of every point.
        static: Names whose values are constants of the program, which is then compiled for each of them: what must not
            be traced, e.g. `iterations` of a stochastic oracle.
        **options: As of `simulate`: participation, record, checkpoints and so on.

    Returns:
        All runs of the grid.

    Examples:
        >>> from fedpd import algorithms, oracles, problems
        >>> build = lambda eta: algorithms.fedpd(eta=eta, oracle=oracles.gd(step=1 / (1 + 1 / eta), iterations=8))
        >>> tried = sweep(build, problems.random_quadratic(agents=4, dimension=3), {"eta": [0.3, 1.0]}, rounds=99)
        >>> slow, quick = tried.costs(target=1e-4)[:, 0]
        >>> bool(quick < slow)
        True
    """
    points, chosen = _points(grid, static), with_defaults(options)
    check_seeds("seeds", seeds)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, point in enumerate(points):
        groups.setdefault(tuple(point[name] for name in static), []).append(i)
    runs: dict[int, tuple[Run, ...]] = {}
    with shown(chosen["progress"]) as bar:
        for number, (fixed, members) in enumerate(groups.items()):
            group = [points[i] for i in members]
            constants = dict(zip(static, fixed, strict=True))
            listen = _part_of(bar, f"sweep of {len(points)} points", number * rounds, rounds * len(groups))
            own = chosen if len(groups) == 1 else _own_folder(chosen, number)
            found = _run(build, problem, group, constants, rounds, seeds, own, listen)
            runs |= dict(zip(members, found, strict=True))
    return Sweep(tuple(points), tuple(seeds), tuple(runs[i] for i in range(len(points))))


def _part_of(bar: Listener, what: str, before: int, total: int) -> Listener:
    """Return a listener to one of several runs, which shows them all as one."""

    def listen(event: Event) -> Any:
        return bar(event._replace(what=what, done=before + event.done, total=total))

    return listen


def _own_folder(options: RunOptions, number: int) -> RunOptions:
    """Return the options of one of several programs: its checkpoints are apart from the others'."""
    folder = options["checkpoints"]
    return options if folder is None else {**options, "checkpoints": Path(folder) / f"program-{number:03d}"}


def first_below(run: Run, target: float, column: str = "communications") -> float:
    """Return what a run had spent when its stationarity first came down to `target`; NaN where it never did."""
    row = first_row(run.history["stationarity"], target)
    return float("nan") if row is None else float(run.history[column][row])


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
    options: RunOptions,
    listen: Listener,
) -> list[tuple[Run, ...]]:
    """Run all points that share the constants, times all seeds, as variants of one program."""
    examples = [build(**point) for point in points]  # validates concrete numbers, and names the runs
    names = [name for name in points[0] if name not in constants]
    repeated = [point for point in points for _ in seeds]
    with scope(problem.double):
        columns = {name: np.array([point[name] for point in repeated]) for name in names}
        plan = make_plan(examples[0], problem, rounds, list(seeds) * len(points), True, options)
        plan = plan._replace(
            build=_partial_form(build, constants, plan.algorithm is not examples[0]),
            settings={name: column.astype(_dtype(column, problem.double)) for name, column in columns.items()},
        )
        try:
            driver = Driver(plan)
            drive(driver, options, listen)
        except (jax.errors.JAXTypeError, TypeError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedpdError(
                f"the grid over {', '.join(names)} cannot be one program ({reason}). Name what has to be a constant in "
                "static=[...], e.g. the iterations of a stochastic oracle."
            ) from error
        found = results(driver, [examples[i // len(seeds)] for i in range(len(repeated))])
    return [tuple(found[i : i + len(seeds)]) for i in range(0, len(found), len(seeds))]


def _partial_form(build: Callable[..., Algorithm], constants: Point, partial: bool) -> Callable[..., Algorithm]:
    """Return `build` with its constants; in the method's form for agents that come and go, where they do."""

    def made(**traced: Any) -> Algorithm:
        algorithm = build(**constants, **traced)
        return (algorithm.away.partial or algorithm) if partial else algorithm

    return made


def _dtype(column: np.ndarray, double: bool) -> Any:
    if np.issubdtype(column.dtype, np.integer):
        return np.int32
    return np.float64 if double else np.float32
