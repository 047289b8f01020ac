"""The server's checkpoint after every communication: state, books and the names of the clients, in one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from tree_math import Vector

from fedpd.base import checkpoint
from fedpd.base.versions import versions
from fedpd.flower.method import ledger as books
from fedpd.flower.method.ledger import Ledger
from fedpd.flower.method.server import Outcome, State, Terms


def save(folder: Path, terms: Terms, identity: Mapping[str, Any], state: State, ledger: Ledger) -> None:
    arrays = checkpoint.flatten("server", state.server) | books.arrays(ledger)
    for number, outcome in state.outcomes.items():
        arrays |= checkpoint.flatten(f"outcome-{number}", outcome.broadcast)
    for agent, message in state.last.items():
        arrays |= checkpoint.flatten(f"last-{agent}", message)
    meta = {
        "run": terms.run,
        "names": terms.names,
        "number": state.number,
        "step": state.step,
        "counted": state.counted,
        "outcomes": {number: outcome.exchange for number, outcome in state.outcomes.items()},
        "last": sorted(state.last),
        "totals": ledger.totals,
        "counts": ledger.counts,
        "versions": versions(),
    }
    checkpoint.save_round(folder, state.number, arrays, {**identity, **meta})


def restore(terms: Terms, arrays: checkpoint.Arrays, meta: Mapping[str, Any]) -> tuple[State, Ledger]:
    server = jax.eval_shape(terms.algorithm.server, Vector(terms.start))
    broadcasts = {int(number): exchange for number, exchange in meta["outcomes"].items()}
    outcomes = {
        n: Outcome(e, checkpoint.unflatten(f"outcome-{n}", terms.shapes.broadcasts[e], arrays))
        for n, e in broadcasts.items()
    }
    message = terms.shapes.messages[0]  # only methods of one exchange count messages again
    last = {agent: checkpoint.unflatten(f"last-{agent}", message, arrays) for agent in meta["last"]}
    state = State(
        checkpoint.unflatten("server", server, arrays), meta["number"], meta["step"], meta["counted"], outcomes, last
    )
    return state, books.restore(arrays, meta["totals"], meta["counts"])
