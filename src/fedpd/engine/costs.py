"""Count the bytes that a communicated round moves, from the shapes of its messages."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Mixing, Tree, Work
from fedpd.core.agents import Functions, Shard, local_objective
from fedpd.engine.stages import Stage, unnamed_stage


class Costs(NamedTuple):
    """Bytes of one agent's message, and of one broadcast as an agent fetches it, for each exchange of a round."""

    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]


class Played(NamedTuple):
    """One exchange of a single agent with the server: the states after it, what was sent, and the work."""

    agent: Any
    server: Any
    message: Tree
    broadcast: Tree
    work: Work


def play_exchange(
    exchange: Exchange, f: LocalObjective, agent: Any, server: Any, r: Array, key: Key, stage: Stage = unnamed_stage
) -> Played:
    """Play one exchange of an agent that is alone with the server; `stage` names whatever fails."""
    with stage("local", 0, 0):
        agent, work = exchange.local(f, agent, r, key)
    with stage("send", 0, 0):
        message = broadcast = exchange.send(agent)  # of a mixing, an agent fetches a sum of messages
    if not isinstance(exchange.aggregate, Mixing):
        with stage("aggregate", 0):
            server, broadcast = exchange.aggregate(server, message, 1.0)
    with stage("receive", 0, 0):
        return Played(exchange.receive(agent, broadcast), server, message, broadcast, work)


def conversation(
    algorithm: Algorithm,
    objective: Callable[[Any], LocalObjective],
    one: Any,
    agent: Any,
    server: Any,
    *,
    evaluate: Callable[..., Any] = jax.eval_shape,
    stage: Stage = unnamed_stage,
) -> list[tuple[Tree, Tree]]:
    """Return what `send` and `aggregate` return in each exchange of a round: (message, broadcast).

    Args:
        algorithm: The method.
        objective: Makes f_i of `one`.
        one: What an agent's objective is made of.
        agent: The agent's state.
        server: The server's state.
        evaluate: Calls a function: by shapes alone, or on numbers.
        stage: Names whatever fails.
    """
    said = []
    for exchange in algorithm.exchanges:

        def play(one: Any, agent: Any, server: Any, exchange: Exchange = exchange) -> Played:
            key = jax.random.key(0, impl="threefry2x32")
            return play_exchange(exchange, objective(one), agent, server, jnp.int32(0), key, stage)

        played = evaluate(play, one, agent, server)
        agent, server = played.agent, played.server
        said.append((played.message, played.broadcast))
    return said


def message_costs(algorithm: Algorithm, functions: Functions, one: Shard, agent: Any, server: Any, **how: Any) -> Costs:
    """Return the bytes of a method's messages; `how` is passed on to `conversation`."""
    return costs_of(conversation(algorithm, partial(local_objective, functions), one, agent, server, **how))


def costs_of(said: list[tuple[Tree, Tree]]) -> Costs:
    up, down = zip(*((_bytes(message), _bytes(broadcast)) for message, broadcast in said), strict=True)
    return Costs(up, down)


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
