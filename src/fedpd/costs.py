"""What a communicated round moves, read off the messages' own shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.core import Algorithm, LocalObjective, Tree


class Costs(NamedTuple):
    """Of one round in which everybody communicates."""

    exchanges: int
    bytes_up: int
    bytes_down: int


def message_costs(algorithm: Algorithm, f: LocalObjective, agent: Any, server: Any, agents: int) -> Costs:
    """The bytes that `agents` agents send and receive: what `send` and `aggregate` return, shapes only."""
    up = down = 0
    for exchange in algorithm.exchanges:

        def talk(agent: Any, server: Any, exchange: Any = exchange) -> tuple[Any, Any, Tree, Tree]:
            agent, _ = exchange.local(f, agent, jnp.int32(0), jax.random.key(0, impl="threefry2x32"))
            message = exchange.send(agent)
            server, broadcast = exchange.aggregate(server, message)
            return exchange.receive(agent, broadcast), server, message, broadcast

        agent, server, message, broadcast = jax.eval_shape(talk, agent, server)
        up, down = up + _bytes(message), down + _bytes(broadcast)
    return Costs(len(algorithm.exchanges), agents * up, agents * down)


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
