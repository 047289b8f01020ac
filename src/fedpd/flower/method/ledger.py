"""The history of a federation, in a simulation's columns, and beside them what only a real one has."""

from typing import Any, NamedTuple

import numpy as np

from fedpd.base import checkpoint
from fedpd.engine.costs import Costs
from fedpd.engine.history import History, Totals, extend, start_row
from fedpd.engine.metrics import ACCURACY

# So far, as further columns: bytes as Flower serialised them (all messages, evaluations and repetitions included), and
# answers that did not come in time, were refused, came from clients that had lost their state, or were clipped.
COUNTS = ("wire_bytes_up", "wire_bytes_down", "missing", "refused", "rebuilt", "clipped")
WORK = ("updates", "samples", "senders", "receivers")


class Ledger(NamedTuple):
    """One row a round that ended in a communication, row 0 the start; loss and the like are NaN where not evaluated."""

    history: History
    totals: Totals
    counts: dict[str, int]
    open: dict[str, np.ndarray]  # WORK of the rounds that are not in the history yet: (K, N), (K, N), (K, E), (K, E)


def begin(agents: int, exchanges: int) -> Ledger:
    widths = dict(zip(WORK, (agents, agents, exchanges, exchanges), strict=True))
    return Ledger({}, {}, dict.fromkeys(COUNTS, 0), {name: np.zeros((0, w), np.int64) for name, w in widths.items()})


def first_row(ledger: Ledger, metrics: dict[str, float]) -> Ledger:
    recorded = {name: metrics[name] for name in ACCURACY if name in metrics} | ledger.counts
    loss, stationarity = metrics.get("loss", np.nan), metrics.get("stationarity", np.nan)
    return ledger._replace(history=start_row(loss, stationarity, **recorded))


def count(ledger: Ledger, **more: int) -> Ledger:
    return ledger._replace(counts={name: number + more.get(name, 0) for name, number in ledger.counts.items()})


def add_work(ledger: Ledger, last: int, work: dict[int, tuple[Any, Any]], senders: int, receivers: int) -> Ledger:
    """A communication at step `last`, and the work of the steps up to it of every agent that took part."""
    exchanges = ledger.open["senders"].shape[1]
    done = ledger.totals.get("round", 0)
    length = last // exchanges + 1 - done
    rows = {}
    for name, column in ledger.open.items():
        rows[name] = np.zeros((length, column.shape[1]), np.int64)
        rows[name][: len(column)] = column
    for agent, (updates, samples) in work.items():
        # An agent that was away begins later than the others: its steps are the last ones.
        at = np.arange(last + 1 - len(updates), last + 1) // exchanges - done
        np.add.at(rows["updates"][:, agent], at, updates)
        np.add.at(rows["samples"][:, agent], at, samples)
    rows["senders"][-1, last % exchanges] = senders
    rows["receivers"][-1, last % exchanges] = receivers
    return ledger._replace(open=rows)


def close_rounds(ledger: Ledger, costs: Costs, metrics: dict[str, float]) -> Ledger:
    """The open rounds into the history, of which the last, which ended in a communication, gets a row."""
    length = len(ledger.open["updates"])
    numbers = metrics | {"consensus": 0.0} | ledger.counts
    rounds: dict[str, np.ndarray] = {"communicated": ledger.open["receivers"][:, -1] > 0, **ledger.open}
    rounds |= {name: np.full(length, numbers.get(name, np.nan)) for name in ledger.history if name not in rounds}
    history, totals = extend(ledger.history, ledger.totals, costs, rounds, np.arange(length) == length - 1)
    return ledger._replace(history=history, totals=totals, open={name: c[:0] for name, c in ledger.open.items()})


def arrays(ledger: Ledger) -> checkpoint.Arrays:
    parts = {"history": ledger.history, "open": ledger.open}
    return {f"{kind}.{name}": column for kind, part in parts.items() for name, column in part.items()}


def restore(found: checkpoint.Arrays, totals: Totals, counts: dict[str, int]) -> Ledger:
    parts: dict[str, dict[str, np.ndarray]] = {"history": {}, "open": {}}
    for key, column in found.items():
        kind, _, name = key.partition(".")
        if kind in parts:
            parts[kind][name] = column
    return Ledger(parts["history"], totals, counts, parts["open"])
