"""What the server does about clients that did not answer, and about answers that move the mean too far."""

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedpd.core import Tree
from fedpd.flower.carry.collect import Collected
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.method.server import State, Terms

log = logging.getLogger(f"flwr.{__name__}")


def counted_messages(
    terms: Terms, state: State, expected: list[int], found: Collected, on_timeout: str
) -> dict[int, Any]:
    """The messages that make up the mean, by agent: of all that answered, and by the policy of the others."""
    absent = tell_absent(state, found)
    silent = {terms.names.index(name): answer.message for name, answer in found.answers.items()}
    messages = {agent: message for agent, message in silent.items() if message is not None}
    if not absent and len(expected) == len(terms.names):
        return messages
    reasons = "; ".join(f"{name!r}: {why}" for name, why in absent.items())
    if on_timeout == "fail":
        raise incomplete(terms, state, absent, '; or choose on-timeout = "stale" or "partial"')
    if not found.answers:
        raise FederationError(f"communication {state.number}: nobody answered ({reasons}). Mend them and start again.")
    if on_timeout == "stale":
        for agent in range(len(terms.names)):
            if agent not in silent and agent not in state.last:
                name = terms.names[agent]
                raise FederationError(f"client {name!r} has sent nothing yet that could stand in for it ({reasons}).")
            if agent not in silent:
                messages[agent] = state.last[agent]
    return messages


def tell_absent(state: State, found: Collected) -> dict[str, str]:
    """Who did not answer as asked, and why, into the log too."""
    absent = found.missing | found.refused
    for name, why in absent.items():
        log.warning("Client %r is not counted in communication %d: %s", name, state.number, why)
    return absent


def incomplete(terms: Terms, state: State, absent: Mapping[str, str], otherwise: str = "") -> FederationError:
    """That a communication which needs all clients lacks some."""
    reasons = "; ".join(f"{name!r}: {why}" for name, why in absent.items())
    return FederationError(
        f"communication {state.number} lacks {len(absent)} of {len(terms.names)} clients ({reasons}). Mend them "
        f"and start the run again, which resumes it{otherwise}."
    )


def clip(message: Tree, reference: Tree | None, bound: float) -> tuple[Tree, bool]:
    """`message`, at most `bound` away from `reference` (from 0 where there is none), and whether it had to be clipped.

    The reference is the newest broadcast where messages are models of the same shape, as in FedPD: then what is bounded
    is ||x_{0,i}^+ - x_0||. Messages that are changes are bounded themselves.
    """
    kinds: list[Any] = [jax.tree.structure(tree) for tree in (reference, message)]
    zero = kinds[0] != kinds[1]
    moved = message if zero else jax.tree.map(np.subtract, message, reference)
    norm = np.sqrt(sum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in jax.tree.leaves(moved)))
    if norm <= bound:
        return message, False
    moved = jax.tree.map(lambda leaf: (leaf * (bound / norm)).astype(leaf.dtype), moved)
    return moved if zero else jax.tree.map(np.add, reference, moved), True
