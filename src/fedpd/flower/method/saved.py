"""The server's checkpoint after every communication: one file with its state, the ledger and the clients' names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from tree_math import Vector

from fedpd.base import checkpoint
from fedpd.base.versions import versions
from fedpd.flower.method.ledger import Ledger, ledger_arrays, restore_ledger
from fedpd.flower.method.server import Outcome, ServerSetup, ServerState


def save_server(
    folder: Path,
    setup: ServerSetup,
    identity: Mapping[str, Any],
    state: ServerState,
    ledger: Ledger,
    shown: Mapping[str, Any],
) -> None:
    """Write the checkpoint of a communication; `shown` are entries that only `fedpd watch` and `fedpd report` read."""
    arrays = checkpoint.flatten("server", state.server) | ledger_arrays(ledger)
    for number, outcome in state.outcomes.items():
        arrays |= checkpoint.flatten(f"outcome-{number}", outcome.broadcast)
    for agent, message in state.last.items():
        arrays |= checkpoint.flatten(f"last-{agent}", message)
    meta = {
        "run": setup.run,
        "names": setup.names,
        "sizes": list(setup.sizes),
        "number": state.number,
        "step": state.step,
        "counted": state.counted,
        "outcomes": {number: outcome.exchange for number, outcome in state.outcomes.items()},
        "last": sorted(state.last),
        "totals": ledger.totals,
        "counts": ledger.counts,
        "versions": versions(),
    }
    checkpoint.save_round(folder, state.number, arrays, {**shown, **identity, **meta})


def restore_server(
    setup: ServerSetup, arrays: checkpoint.Arrays, meta: Mapping[str, Any]
) -> tuple[ServerState, Ledger]:
    """Return the state and the ledger of a checkpoint."""
    server = jax.eval_shape(setup.algorithm.server, Vector(setup.start))
    broadcasts = {int(number): exchange for number, exchange in meta["outcomes"].items()}
    outcomes = {
        n: Outcome(e, checkpoint.unflatten(f"outcome-{n}", setup.shapes.broadcasts[e], arrays))
        for n, e in broadcasts.items()
    }
    message = setup.shapes.messages[0]  # only methods with one exchange can use messages again
    last = {agent: checkpoint.unflatten(f"last-{agent}", message, arrays) for agent in meta["last"]}
    state = ServerState(
        checkpoint.unflatten("server", server, arrays), meta["number"], meta["step"], meta["counted"], outcomes, last
    )
    return state, restore_ledger(arrays, meta["totals"], meta["counts"])
