"""What a communicated round moves, read off the messages' own shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.core import Algorithm, Exchange, LocalObjective, Tree


class Costs(NamedTuple):
    """Bytes of one agent's message, and of one broadcast as an agent fetches it, for each exchange of a round."""

    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]


def message_costs(algorithm: Algorithm, f: LocalObjective, agent: Any, server: Any) -> Costs:
    """What `send` and `aggregate` return, shapes only."""
    up, down = [], []
    for exchange in algorithm.exchanges:

        def talk(agent: Any, server: Any, exchange: Exchange = exchange) -> tuple[Any, Any, Tree, Tree]:
            agent, _ = exchange.local(f, agent, jnp.int32(0), jax.random.key(0, impl="threefry2x32"))
            message = exchange.send(agent)
            server, broadcast = exchange.aggregate(server, message, 1.0)
            return exchange.receive(agent, broadcast), server, message, broadcast

        agent, server, message, broadcast = jax.eval_shape(talk, agent, server)
        up.append(_bytes(message))
        down.append(_bytes(broadcast))
    return Costs(tuple(up), tuple(down))


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
