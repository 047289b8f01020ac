"""What a communicated round moves, read off the messages' own shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.agents import Functions, Shard, local_objective
from fedpd.core import Algorithm, Exchange, Tree


class Costs(NamedTuple):
    """Bytes of one agent's message, and of one broadcast as an agent fetches it, for each exchange of a round."""

    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]


def message_costs(algorithm: Algorithm, functions: Functions, one: Shard, agent: Any, server: Any) -> Costs:
    """What `send` and `aggregate` return; shapes in, shapes out."""
    up, down = [], []
    for exchange in algorithm.exchanges:

        def talk(one: Shard, agent: Any, server: Any, exchange: Exchange = exchange) -> tuple[Any, Any, Tree, Tree]:
            f, key = local_objective(functions, one), jax.random.key(0, impl="threefry2x32")
            agent, _ = exchange.local(f, agent, jnp.int32(0), key)
            message = exchange.send(agent)
            server, broadcast = exchange.aggregate(server, message, 1.0)
            return exchange.receive(agent, broadcast), server, message, broadcast

        agent, server, message, broadcast = jax.eval_shape(talk, one, agent, server)
        up.append(_bytes(message))
        down.append(_bytes(broadcast))
    return Costs(tuple(up), tuple(down))


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
