"""What a communicated round moves, read off the messages' own shapes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.core import Algorithm, Exchange, LocalObjective, Mixing, Tree
from fedpd.core.agents import Functions, Shard, local_objective


class Costs(NamedTuple):
    """Bytes of one agent's message, and of one broadcast as an agent fetches it, for each exchange of a round."""

    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]


def conversation(
    algorithm: Algorithm, objective: Callable[[Any], LocalObjective], one: Any, agent: Any, server: Any
) -> list[tuple[Tree, Tree]]:
    """What `send` and `aggregate` return in each exchange of a round: (message, broadcast); shapes in, shapes out.

    objective(one) -> f_i of an agent.
    """
    said = []
    for exchange in algorithm.exchanges:

        def talk(one: Any, agent: Any, server: Any, exchange: Exchange = exchange) -> tuple[Any, Any, Tree, Tree]:
            key = jax.random.key(0, impl="threefry2x32")
            agent, _ = exchange.local(objective(one), agent, jnp.int32(0), key)
            message = exchange.send(agent)
            if isinstance(exchange.aggregate, Mixing):
                broadcast = message  # what an agent fetches is a sum of messages
            else:
                server, broadcast = exchange.aggregate(server, message, 1.0)
            return exchange.receive(agent, broadcast), server, message, broadcast

        agent, server, message, broadcast = jax.eval_shape(talk, one, agent, server)
        said.append((message, broadcast))
    return said


def message_costs(algorithm: Algorithm, functions: Functions, one: Shard, agent: Any, server: Any) -> Costs:
    return costs_of(conversation(algorithm, partial(local_objective, functions), one, agent, server))


def costs_of(said: list[tuple[Tree, Tree]]) -> Costs:
    up, down = zip(*((_bytes(message), _bytes(broadcast)) for message, broadcast in said), strict=True)
    return Costs(up, down)


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
