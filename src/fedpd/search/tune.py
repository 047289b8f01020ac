"""Find each method's best step size with the same number of tries, so that a comparison is fair.

Every method has one knob: a factor on the step sizes of its own rule (its card), that is eta, step or 1/rho. The tries
of a method are one `sweep` over that factor. Its best is the one with the fewest communications to a target.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.algorithms import variants
from fedpd.base.checks import at_least, choice, count, positive, refuse
from fedpd.base.progress import StepFunction
from fedpd.base.saved import save_result
from fedpd.core import Algorithm, Problem
from fedpd.engine.run import Run
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.engine.views.frames import Frame, table_frame
from fedpd.experiments.calls import table_of
from fedpd.search.sweep import sweep
from fedpd.search.views import sensitivity_figure, tuned_html, tuned_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = tuple(2.0 ** (exponent / 2) for exponent in range(-4, 17))  # 1/4 to 256, by a factor of sqrt(2)
METHODS = ("FedPD-GD", "FedPD-GD p=auto", "Local GD", "FedProx", "FedDyn", "SCAFFOLD")


class Tuned(NamedTuple):
    """The tries of one method.

    Attributes:
        label: The method's label.
        scales: (P,) factors on the step sizes of its own rule.
        communications: (P,) communications to the target, mean over seeds; NaN where a seed did not reach it.
        stationarity: (P,) stationarity at the end, the largest over seeds.
        best: The index of the best factor.
        table: The method at the best factor, as a table of an experiment file.
        runs: The runs at the best factor, one per seed.
    """

    label: str
    scales: np.ndarray
    communications: np.ndarray
    stationarity: np.ndarray
    best: int
    table: dict[str, Any]
    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        return tuned_text(self)

    def _repr_html_(self) -> str:
        return tuned_html(self)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs at the best factor by their label, as figures and reports take them."""
        return (entry_of(self.label, self.runs),)

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the communications to the target against the factor on the step size."""
        return sensitivity_figure([self])

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per factor that was tried."""
        columns = zip(self.scales, self.communications, self.stationarity, strict=True)
        names = ("scale", "communications", "stationarity")
        rows = [dict(zip(names, values, strict=True)) | {"best": i == self.best} for i, values in enumerate(columns)]
        return table_frame([{"method": self.label, **row} for row in rows])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tries to a folder of their own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Replace the result that the folder holds. Nothing else is ever replaced.
        """
        return save_result(self, folder, model=self.runs[0].model, overwrite=overwrite)


def tune(
    problem: Problem,
    *,
    methods: Sequence[str] = METHODS,
    target: float = 1e-10,
    rounds: int = 200,
    scales: Sequence[float] = SCALES,
    seeds: Sequence[int] = (0,),
    L: float | None = None,
    progress: StepFunction | None = None,
) -> list[Tuned]:
    """Find for each method the step with the fewest communications to a target, or else the lowest stationarity.

    Args:
        problem: The problem.
        methods: Labels of `algorithms.variants()`.
        target: The stationarity to reach.
        rounds: The rounds of each try.
        scales: Factors on the step sizes of each method's own rule.
        seeds: Seeds; all of them must reach the target.
        L: The smoothness from which the rules start; None: `theory.smoothness` finds it.
        progress: A function of (method, rounds done, rounds in all).

    Returns:
        The tries of each method, in the order of `methods`.
    """
    positive("target", target, "Give a stationarity, e.g. 1e-10")
    count("rounds", rounds, "Give the rounds of each try, e.g. 200")
    if not len(scales):
        refuse("scales", list(scales), "must hold at least one factor", "Leave it out for 1/4 to 256")
    for scale in scales:
        positive("scales", scale, "Give factors on the step sizes of each method's rule, e.g. [0.5, 1, 2]")
    L = theory.smoothness(problem) if L is None else at_least("L", L, 0, "L is the smoothness of the f_i")
    for method in methods:
        choice("methods", method, variants())
    return [_tune(problem, method, L, target, rounds, scales, seeds, progress) for method in methods]


def _tune(
    problem: Problem,
    label: str,
    L: float,
    target: float,
    rounds: int,
    scales: Sequence[float],
    seeds: Sequence[int],
    progress: StepFunction | None,
) -> Tuned:
    rule = variants()[label].rule

    def build(scale: Any) -> Algorithm:
        return rule(L, problem.agents, scale)

    def show(done: int, total: int, stationarity: float) -> None:
        if progress is not None:
            progress(label, done, total)

    swept = sweep(build, problem, {"scale": list(scales)}, rounds=rounds, seeds=seeds, progress=show)
    communications = swept.costs(target).mean(axis=1)  # NaN where any seed is
    last = np.array([max(_last(run) for run in runs) for runs in swept.runs])
    order = np.lexsort((last, np.where(np.isnan(communications), np.inf, communications)))
    best = int(order[0])
    table = {"label": label} | table_of(build(scales[best]).spec)
    return Tuned(label, np.array(scales), communications, last, best, table, swept.runs[best])


def _last(run: Run) -> float:
    return np.inf if run.diverged is not None else float(run.history["stationarity"][-1])
