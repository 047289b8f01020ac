"""The history of a federation: a simulation's columns, and counts that only a real federation has."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedpd.base import checkpoint
from fedpd.engine.measure.columns import COLUMNS, EPSILON, FEDERATED, SAMPLE
from fedpd.engine.measure.costs import Costs
from fedpd.engine.measure.history import History, Totals, extend, start_row
from fedpd.experiments.federated import BY_CLIENT, ELAPSED

# Further columns, counted from the start of the run. Serialised bytes include evaluations and repetitions.
COUNTS = tuple(column.name for column in FEDERATED)
WORK = ("updates", "samples", "senders", "receivers")
Counts = Mapping[str, int]


class Ledger(NamedTuple):
    """The history and the counts of a run so far.

    Attributes:
        history: One row per round that ended with a communication, and row 0 for the start; metrics are NaN in rows
            without an evaluation.
        totals: The sums that the next row continues.
        counts: The current values of `COUNTS`.
        pending: `WORK` of the K rounds that are not in the history yet: (K, N), (K, N), (K, E), (K, E).
        elapsed: The seconds of wall time at each row. They are not in the history, which is equal for equal runs.
        epsilon: The largest epsilon of a sample that a client has spent by its own account.
        by_client: By column, each client's own value at the newest evaluation, NaN where it is not known: (N,).
    """

    history: History
    totals: Totals
    counts: dict[str, int]
    pending: dict[str, np.ndarray]
    elapsed: np.ndarray
    epsilon: float = 0.0
    by_client: Mapping[str, np.ndarray] = MappingProxyType({})


def new_ledger(agents: int, exchanges: int) -> Ledger:
    """Return a ledger without a row."""
    widths = dict(zip(WORK, (agents, agents, exchanges, exchanges), strict=True))
    pending = {name: np.zeros((0, width), np.int64) for name, width in widths.items()}
    return Ledger({}, {}, dict.fromkeys(COUNTS, 0), pending, np.zeros(0))


def add_first_row(ledger: Ledger, costs: Costs, metrics: Mapping[str, float]) -> Ledger:
    """Return the ledger with row 0, the start."""
    usual = {name: metrics.get(name, np.nan) for name in ("loss", "stationarity")}
    recorded = {name: value for name, value in metrics.items() if name not in usual and name not in COLUMNS}
    recorded |= {} if costs.privacy is None else {EPSILON.name: 0.0}
    return ledger._replace(history=start_row(**usual, **recorded, **ledger.counts))


def add_counts(ledger: Ledger, **more: int) -> Ledger:
    """Return the ledger with these numbers added to its counts."""
    return ledger._replace(counts={name: number + more.get(name, 0) for name, number in ledger.counts.items()})


def add_work(
    ledger: Ledger, last: int, work: Mapping[int, tuple[list[int], list[int], list[int]]], senders: int, receivers: int
) -> Ledger:
    """Return the ledger with a communication at step `last`.

    Args:
        ledger: The ledger before.
        last: The step of the communication.
        work: By agent, its steps up to `last`, and the updates and samples of each.
        senders: The number of agents that sent a message.
        receivers: The number of agents that receive the broadcast.
    """
    exchanges = ledger.pending["senders"].shape[1]
    done = ledger.totals.get("round", 0)
    length = last // exchanges + 1 - done
    rows = {}
    for name, column in ledger.pending.items():
        rows[name] = np.zeros((length, column.shape[1]), np.int64)
        rows[name][: len(column)] = column
    for agent, (steps, updates, samples) in work.items():
        at = np.array(steps) // exchanges - done
        np.add.at(rows["updates"][:, agent], at, updates)
        np.add.at(rows["samples"][:, agent], at, samples)
    rows["senders"][-1, last % exchanges] = senders
    rows["receivers"][-1, last % exchanges] = receivers
    return ledger._replace(pending=rows)


def close_rounds(ledger: Ledger, costs: Costs, metrics: Mapping[str, float]) -> Ledger:
    """Return the ledger with its pending rounds added to the history, as one row for the last of them."""
    length = len(ledger.pending["updates"])
    numbers = {SAMPLE.name: 0, **metrics, "consensus": 0.0, **ledger.counts}
    rounds: dict[str, np.ndarray] = {"communicated": ledger.pending["receivers"][:, -1] > 0, **ledger.pending}
    rounds |= {name: np.full(length, numbers.get(name, np.nan)) for name in ledger.history if name not in rounds}
    history, totals = extend(ledger.history, ledger.totals, costs, rounds, np.arange(length) == length - 1)
    empty = {name: column[:0] for name, column in ledger.pending.items()}
    return ledger._replace(history=history, totals=totals, pending=empty)


def ledger_arrays(ledger: Ledger) -> checkpoint.Arrays:
    """Return the arrays of a ledger, for a checkpoint."""
    parts = {"history": ledger.history, "pending": ledger.pending, BY_CLIENT: ledger.by_client}
    columns = {f"{kind}.{name}": column for kind, part in parts.items() for name, column in part.items()}
    return columns | {ELAPSED: ledger.elapsed}


def restore_ledger(found: checkpoint.Arrays, totals: Totals, counts: dict[str, int], epsilon: float) -> Ledger:
    """Return the ledger of a checkpoint."""
    parts: dict[str, dict[str, np.ndarray]] = {"history": {}, "pending": {}, BY_CLIENT: {}}
    for key, column in found.items():
        kind, _, name = key.partition(".")
        if kind in parts:
            parts[kind][name] = column
    return Ledger(parts["history"], totals, counts, parts["pending"], found[ELAPSED], epsilon, parts[BY_CLIENT])
