"""Runs by label, the input of figures, tables and reports."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedpd.engine.measure.divergence import Divergence
from fedpd.engine.measure.history import History


class Measured(Protocol):
    """The part of a `Run` that figures and tables need.

    Attributes:
        seed: The seed.
        history: The measured rows.
        elapsed: The seconds at each row; NaN if they are not known.
        diverged: When it diverged, if it did.
    """

    @property
    def seed(self) -> int: ...
    @property
    def history(self) -> History: ...
    @property
    def elapsed(self) -> np.ndarray: ...
    @property
    def diverged(self) -> Divergence | None: ...


class Entry(NamedTuple):
    """The runs of a method, one per seed, with their rows so far.

    Attributes:
        label: The name of the method in tables and figures.
        runs: Its runs.
        rounds: The number of rounds of a finished run.
    """

    label: str
    runs: tuple[Measured, ...]
    rounds: int

    @property
    def done(self) -> int:
        """Return the number of rounds that all seeds have done, apart from those that diverged."""
        return min(int(run.history["round"][-1]) for run in self.runs if run.diverged is None or self.diverged)

    @property
    def diverged(self) -> bool:
        """Return whether all seeds diverged."""
        return all(run.diverged is not None for run in self.runs)

    @property
    def finished(self) -> bool:
        """Return whether there are no more rounds to come."""
        return self.diverged or self.done >= self.rounds

    @property
    def usable(self) -> tuple[Measured, ...]:
        """Return the runs that did not diverge; all of them if every one did."""
        return tuple(run for run in self.runs if run.diverged is None) or self.runs


def entry_of(label: str, runs: Sequence[Measured]) -> Entry:
    """Return the entry of finished runs."""
    return Entry(label, tuple(runs), max(int(run.history["round"][-1]) for run in runs))


def measured_rows(run: Measured, name: str) -> np.ndarray:
    """Return the numbers of the rows in which a column was measured.

    A federation evaluates its model only in some rows; in the others its columns are NaN. The last row of a run that
    diverged was measured, also if it is NaN.
    """
    values = run.history[name]
    measured = ~np.isnan(values)
    if run.diverged is not None:
        measured[-1] = True
    return np.flatnonzero(measured)


def measured_values(run: Measured, name: str) -> np.ndarray:
    """Return the values of a column in the rows in which it was measured, in order; see `measured_rows`."""
    return run.history[name][measured_rows(run, name)]


def last_value(run: Measured, name: str) -> float:
    """Return the last value of a column that was measured; NaN if there is none."""
    values = measured_values(run, name)
    return float(values[-1]) if len(values) else float("nan")
