"""Partial participation and stragglers: which agents are present in a round, and which part of their steps they do.

An absent agent neither computes nor sends. When it returns, it receives the newest broadcast (`Exchange.absent` if the
method has it, else `Exchange.receive`). The simulator counts the bytes of a broadcast for the agents that are present.
The server averages over the agents that sent, and knows their share of all agents. If no agent is present, the round
changes nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, positive, refuse
from fedpd.core import Array, Key

PRESENCE, EFFORT = 2, 3  # the first fold into a run's key, for these draws


class Participation(NamedTuple):
    """A rule for who is present.

    Attributes:
        kind: "cohort", "size", "probability" or "schedule".
        numbers: K, the number of agents per round; K and (N,) sums of sizes; (N,) probabilities; or (rounds, N) who is
            present.
    """

    kind: str
    numbers: Any


def participation_rule(participation: Any, agents: int, rounds: int) -> Participation | None:
    """Return `participation` as a rule; None if all agents are always present."""
    remedy = "Give a share in (0, 1], one probability per agent, or an array (rounds, N) of who is present"
    if not isinstance(participation, list | tuple) and np.ndim(participation) == 0:
        positive("participation", participation, remedy)
        if participation > 1:
            refuse("participation", participation, "must be at most 1", remedy)
        number = max(1, round(float(participation) * agents))
        return None if number == agents else Participation("cohort", np.int32(number))
    numbers = as_array(participation, "participation", remedy)
    if numbers.shape == (agents,) and numbers.dtype != bool:
        if not ((numbers > 0) & (numbers <= 1)).all():
            refuse("participation", numbers.tolist(), "probabilities must lie in (0, 1]", remedy)
        return None if (numbers == 1).all() else Participation("probability", numbers.astype(np.float32))
    if numbers.shape != (rounds, agents) or not np.isin(numbers, (0, 1)).all():
        rule = f"must have the shape ({agents},), or ({rounds}, {agents}) with entries 0 and 1"
        refuse("participation", f"array of shape {numbers.shape}", rule, remedy)
    return None if numbers.all() else Participation("schedule", numbers.astype(bool))


def straggler_rule(stragglers: Any) -> np.float32 | None:
    """Return the probability that an agent is a straggler in a round; None if there are no stragglers."""
    remedy = "Give the probability that an agent does only some of its local steps in a round, e.g. 0.5"
    if at_least("stragglers", stragglers, 0, remedy) > 1:
        refuse("stragglers", stragglers, "must be at most 1", remedy)
    return np.float32(stragglers) if stragglers else None


def effort(probability: Array, key: Key, r: Array, agents: int) -> Array:
    """Return the fraction of the local steps that each agent does in round r, (N,): 1, or uniform in (0, 1]."""
    key = jax.random.fold_in(jax.random.fold_in(key, EFFORT), r)
    who, how_much = jax.random.uniform(key, (2, agents), jnp.float32)
    return jnp.where(who < probability, 1 - how_much, 1)


def effort_of(probability: Array, key: Key, r: Array, agent: Array) -> Array:
    """Return the fraction of the local steps that one agent does in round r, if some agents are absent.

    The cost does not depend on the number of agents, as it does for `effort`.
    """
    for word in (EFFORT, r, agent):
        key = jax.random.fold_in(key, word)
    who, how_much = jax.random.uniform(key, (2,), jnp.float32)
    return jnp.where(who < probability, 1 - how_much, 1)
