"""Targets that end a run: the values that columns of the history have to reach."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpd.base.checks import as_number, nearest, refuse
from fedpd.engine.measure.columns import KNOWN, Column
from fedpd.engine.measure.history import History
from fedpd.engine.measure.measurements import Measurements

Until = Mapping[str, float]
ACCURACIES = tuple(name for name in KNOWN if "accuracy" in name)


class Target(NamedTuple):
    """A column and the value that it has to reach."""

    column: Column
    value: float


def make_targets(until: Until | None, columns: Sequence[Column]) -> tuple[Target, ...]:
    """Return the targets that `until` names; () if there are none."""
    example = 'Give e.g. until={"stationarity": 1e-10}'
    if until is None:
        return ()
    if not isinstance(until, Mapping) or not until:
        refuse("until", until, "must map names of columns to values", example)
    known = {column.name: column for column in columns if column.better is not None}
    for name, value in until.items():
        if name in {column.name for column in columns} - set(known):
            rule = "this column does not say whether less or more is better"
            refuse("until", name, rule, 'Make it with Column(..., better="less") or better="more"')
        if name not in known:
            refuse("until", name, "the run does not measure this column", nearest(name, known))
        check_target(name, as_number(f"until[{name!r}]", value, example))
    return tuple(Target(known[name], float(value)) for name, value in until.items())


def check_target(name: str, value: float) -> None:
    """Refuse an accuracy above 1, such as 90 for 90 %: no run reaches it."""
    if name in ACCURACIES and value > 1:
        remedy = f"Give {value / 100:g} for {value:g} %" if value <= 100 else "Give e.g. 0.9 for 90 %"
        refuse(name, value, "must be at most 1, because an accuracy is a share of the samples", remedy)


def target_values(targets: Sequence[Target], columns: Sequence[Column], double: bool) -> np.ndarray:
    """Return the target of each column, (columns,), for the compiled rounds; NaN if a column has none.

    In float32, a target is rounded so that it is not easier to reach. Comparisons on the device and on the host then
    agree.
    """
    values = {target.column.name: _rounded(target, double) for target in targets}
    return np.array([values.get(column.name, np.nan) for column in columns], np.float64 if double else np.float32)


def _rounded(target: Target, double: bool) -> np.float64 | np.float32:
    if double:
        return np.float64(target.value)
    upward, single = target.column.better == "more", np.float32(target.value)
    easier = single < target.value if upward else single > target.value
    return np.nextafter(single, np.float32(np.inf if upward else -np.inf)) if easier else single


def are_reached(targets: Sequence[Target], measurements: Sequence[Measurements]) -> bool:
    """Return whether every seed that did not diverge has a row in which all targets are reached."""
    running = [one.history for one in measurements if one.diverged is None]
    return bool(targets) and all(has_row(targets, history) for history in running)


def has_row(targets: Sequence[Target], history: History) -> bool:
    """Return whether a history has a row in which all targets are reached."""

    rows = [target.column.reaches(history[target.column.name], target.value) for target in targets]
    return bool(np.all(rows, axis=0).any())
