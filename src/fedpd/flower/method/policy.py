"""The server's policy for clients that did not reply, and for updates that are too large."""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedpd.core import Tree
from fedpd.flower.carry.collect import Collected
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.method.server import Communication, ServerState
from fedpd.flower.method.settings import OnTimeout

log = logging.getLogger(f"flwr.{__name__}")


def choose_messages(
    communication: Communication, found: Collected, on_timeout: OnTimeout, quorum: int
) -> dict[int, Tree]:
    """Return the messages to average, by agent: the new ones, and the old ones that the policy uses for other agents.

    Args:
        communication: The communication.
        found: The clients' replies.
        on_timeout: The policy.
        quorum: The number of replies that the policies "stale" and "partial" need.

    Raises:
        FederationError: If the policy does not let the run continue.
    """
    setup, state, cohort = communication.setup, communication.state, set(communication.cohort())
    absent = log_absent(state, found)
    answered = {setup.names.index(name): answer.message for name, answer in found.answers.items()}
    messages = {agent: message for agent, message in answered.items() if message is not None}
    if not absent and len(communication.senders()) == len(cohort):
        return messages
    if on_timeout == "fail":
        raise incomplete_error(communication, absent, '; or choose on-timeout = "stale" or "partial"')
    reasons, replied = _reasons(absent), len(cohort.intersection(answered))
    if not replied:
        raise FederationError(f"communication {state.number}: no client replied ({reasons}). Repair them, start again.")
    if replied < quorum:
        raise FederationError(
            f"communication {state.number}: {replied} clients replied, but min-clients is {quorum} "
            f"({reasons}). Repair them and start the run again to resume it."
        )
    if on_timeout == "stale":
        for agent in sorted(cohort):
            if agent not in answered and agent not in state.last:
                name = setup.names[agent]
                raise FederationError(f"client {name!r} has sent no message yet that could be used again ({reasons}).")
            if agent not in answered:
                messages[agent] = state.last[agent]
    return messages


def log_absent(state: ServerState, found: Collected) -> dict[str, str]:
    """Return the clients without a usable reply, and the reasons; write them to the log."""
    absent = found.missing | found.refused
    for name, why in absent.items():
        log.warning("Communication %d does not use client %r: %s", state.number, name, why)
    return absent


def incomplete_error(communication: Communication, absent: Mapping[str, str], otherwise: str = "") -> FederationError:
    """Return the error for a communication that needs all clients that it asks and lacks some."""
    return FederationError(
        f"communication {communication.state.number} lacks {len(absent)} of {len(communication.steps)} clients "
        f"({_reasons(absent)}). Repair them and start the run again to resume it{otherwise}."
    )


def _reasons(absent: Mapping[str, str]) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in absent.items())


def clip(message: Tree, reference: Tree | None, bound: float) -> tuple[Tree, bool]:
    """Return the message, clipped to the distance `bound` from a reference, and whether clipping changed it.

    If messages are models with the shape of the broadcast, as in FedPD, the reference is the newest broadcast, and
    ||x_{0,i}^+ - x_0|| is bounded. Messages that are changes have another structure, and their own norm is bounded.
    """
    kinds: list[Any] = [jax.tree.structure(tree) for tree in (reference, message)]
    is_change = kinds[0] != kinds[1]
    change = message if is_change else jax.tree.map(np.subtract, message, reference)
    norm = np.sqrt(sum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in jax.tree.leaves(change)))
    if norm <= bound:
        return message, False
    change = jax.tree.map(lambda leaf: (leaf * (bound / norm)).astype(leaf.dtype), change)
    return change if is_change else jax.tree.map(np.add, reference, change), True
