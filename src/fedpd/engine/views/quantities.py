"""The columns of a report: the costs that runs spent, and the quantities that they measured."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedpd.engine.measure.columns import KNOWN, NETWORK, Column, column_of
from fedpd.engine.views.entries import Entry, Measured, last_value, measured_rows
from fedpd.engine.views.numbers import short_number

BYTES = Column("bytes", "bytes sent and received, all agents together", "bytes", "cost", np.int64, "bytes", log=True)
SECONDS = Column("seconds", "seconds of wall time, compilation included", "seconds", "cost", unit="s")
COSTS = {column.name: column for column in (column_of("communications"), column_of("samples"), BYTES, SECONDS)}
MAIN = "stationarity"  # the quantity that a report begins with


def cost_values(run: Measured) -> dict[str, np.ndarray]:
    """Return the costs of a run, one value per row of its history: those of `COSTS`, and its time if it has a clock."""
    history = run.history
    derived = {BYTES.name: history["bytes_up"] + history["bytes_down"], SECONDS.name: run.elapsed}
    timed = (NETWORK.name,) if NETWORK.name in history else ()
    return {name: derived[name] if name in derived else history[name] for name in (*COSTS, *timed)}


def shared_quantities(entries: Sequence[Entry]) -> list[Column]:
    """Return the quantities that all runs measured at least once, the main one first and the user's own last."""
    runs = [run for entry in entries for run in entry.runs]
    names = dict.fromkeys((*KNOWN, *runs[0].history))
    shared = [column_of(name) for name in names if all(name in run.history for run in runs)]
    values = [column for column in shared if column.kind == "value"]
    columns = [column for column in values if all(len(measured_rows(run, column.name)) for run in runs)]
    others = [column.name for column in columns if column.name != "consensus"]
    first = MAIN if MAIN in others else "".join(others[:1])  # a federation may evaluate only columns of the user's own
    return sorted(columns, key=lambda column: column.name != first)


def drawn_quantities(entries: Sequence[Entry]) -> list[Column]:
    """Return the quantities of tables and printed figures: all but the consensus gap, which is mostly zero."""
    return [column for column in shared_quantities(entries) if column.name != "consensus"]


def known_costs(entries: Sequence[Entry]) -> list[Column]:
    """Return all costs, without the seconds if no run has recorded them."""
    timed = any(np.isfinite(run.elapsed).any() for entry in entries for run in entry.runs)
    return [column for column in shared_costs(entries).values() if timed or column is not SECONDS]


def shared_costs(entries: Sequence[Entry]) -> dict[str, Column]:
    """Return `COSTS`, and the simulated seconds if all runs have a clock."""
    clocked = all(NETWORK.name in run.history for entry in entries for run in entry.runs)
    return COSTS | ({NETWORK.name: NETWORK} if clocked else {})


def heading(column: Column) -> str:
    """Return the heading of a column of a table, such as "stationarity ‖∇f‖²" or "test accuracy"."""
    name = column.name.replace("_", " ")
    return column.symbol if " " in column.symbol else f"{name} {column.symbol}".strip()


def axis_label(column: Column) -> str:
    """Return the label of an axis of a small figure: the words up to their first comma."""
    return column.words.partition(",")[0]


def value_text(column: Column, value: float) -> str:
    """Return a measured value for a table, such as "1.25e-10", "0.3412" or "97.3%"."""
    if column.unit == "share":
        return f"{value:.1%}"
    return f"{value:.2e}" if column.log else f"{value:.4g}"


def last_text(run: Measured, name: str) -> str:
    """Return the last value of a column that was measured, for a table; "not measured" if there is none."""
    return value_text(column_of(name), last_value(run, name)) if len(measured_rows(run, name)) else "not measured"


def cost_text(column: Column, value: float) -> str:
    """Return a cost for a table, such as "1,200", "192 M", "9.6 MB" or "4.52 s"."""
    if column is NETWORK and value >= 7200:
        return f"{value / 3600:,.1f} h"
    if column.unit == "s":
        return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"
    if column.log:
        return short_number(value, "B" if column.unit == "bytes" else "")
    return f"{value:,.0f}"


def target_text(quantity: str, value: float, digits: int = 3) -> str:
    """Return a value of a quantity for a sentence, such as "1e-10" or "91%"."""
    return f"{100 * value:.{digits}g}%" if column_of(quantity).unit == "share" else f"{value:.{digits}g}"


def goal(quantity: str, target: float) -> str:
    """Return a target in symbols, such as "‖∇f‖² ≤ 1e-10"."""
    column = column_of(quantity)
    sign = "≥" if column.better == "more" else "≤"
    return f"{column.symbol or column.name} {sign} {target_text(quantity, target, 12)}"


def last_costs(runs: Iterable[Measured]) -> dict[str, float]:
    """Return the costs of runs at their ends, as means over the seeds."""
    each = [cost_values(run) for run in runs]
    shared = [name for name in each[0] if all(name in costs for costs in each)]
    return {name: float(np.mean([costs[name][-1] for costs in each])) for name in shared}
