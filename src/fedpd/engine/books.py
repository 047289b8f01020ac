"""Books keep the history and the counts of each variant of a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.engine.costs import Costs
from fedpd.engine.divergence import Divergence, is_healthy
from fedpd.engine.history import History, Totals, extend, start_row
from fedpd.engine.rounds import Rows

Row = dict[str, Any]


class Books(NamedTuple):
    """The history of one variant, and what is counted beside it.

    Attributes:
        history: The measured rows.
        totals: The costs so far, measured or not.
        updates: (N,) local steps of each agent in all rounds together.
        diverged: When and why the variant ended early; None: it did not.
    """

    history: History
    totals: Totals
    updates: np.ndarray
    diverged: Divergence | None = None


def open_books(agents: int, metrics: dict[str, Any]) -> Books:
    """Return the books at the start, with what was measured there."""
    return Books(start_row(**metrics), {}, np.zeros(agents, np.int64))


def enter_rounds(
    books: Books,
    rows: Rows,
    done: int,
    every: int,
    last: int,
    costs: Costs,
    explain: Callable[[int, float], Divergence],
) -> Books:
    """Return the books after a chunk of rounds, up to where the variant diverged if it did.

    Args:
        books: The books after `done` rounds; those of a variant that has diverged stay as they are.
        rows: What the rounds did, leaves (K, ...).
        done: How many rounds there were before.
        every: Rounds between two measured ones.
        last: The last round of the run, which is measured in any case.
        costs: Bytes of the messages.
        explain: Makes of (round, stationarity) what to say of a divergence.
    """
    if books.diverged is not None:
        return books
    agents = len(books.updates)
    communicated, senders, receivers, work = rows.rounds
    numbers = done + 1 + np.arange(len(communicated))
    measured = (numbers % every == 0) | (numbers == last)
    rounds: dict[str, Any] = {
        "communicated": communicated,
        "senders": senders,
        "receivers": receivers,
        "updates": work.updates[:, :agents],
        "samples": work.samples[:, :agents],
        **rows.metrics,
    }
    bad = np.flatnonzero(measured & ~is_healthy(books.history, dict(rows.metrics)))
    diverged = None
    if len(bad):
        end = bad[0] + 1
        diverged = explain(int(numbers[bad[0]]), float(rows.metrics["stationarity"][bad[0]]))
        rounds, measured = {name: column[:end] for name, column in rounds.items()}, measured[:end]
    history, totals = extend(books.history, books.totals, costs, rounds, measured)
    return Books(history, totals, books.updates + rounds["updates"].sum(axis=0, dtype=np.int64), diverged)


def rows_since(history: History, seconds: np.ndarray, since: int, **about: Any) -> list[Row]:
    """Return the rows after round `since` (-1: all), each a dict of plain numbers, beside what `about` says."""
    new = history["round"] > since
    columns = {name: column[new].tolist() for name, column in history.items()} | {"seconds": seconds[new].tolist()}
    return [about | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def variant(tree: Any, i: int, many: bool) -> Any:
    """Return the part of variant i of arrays that have a leading axis of variants, if there are several."""
    return jax.tree.map(lambda leaf: leaf[i], tree) if many else tree
