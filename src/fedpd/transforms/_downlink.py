"""The way from the server to the agents: the server sends C(broadcast - y), and everyone adds it to y.

The method's agents receive y. At a fixed point y is the broadcast, so a compressed way down adds no error to it. An
agent that misses a change has an old y, so the method needs all agents in every communication.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.core import Array, LocalObjective, Method, Mixing, Tree, Update, opened, vectors_of
from fedpd.transforms._chain import Transform, pack_vector
from fedpd.transforms._uplink import parts_of


class Held(NamedTuple):
    """The state of the server for the broadcasts of an exchange.

    Attributes:
        whole: y in the structure of the broadcast; a part that is not a vector travels as it is.
        number: The number of broadcasts so far, from which the random numbers of the transforms come.
    """

    whole: Tree
    number: Array


def start_held(shapes: Tree, x: Vector) -> Tree:
    """Return y at the start: x^0 for the first vector of a broadcast, 0 for all others."""
    parts, structure = parts_of(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
    first = next((i for i, part in enumerate(parts) if isinstance(part, Vector)), -1)
    return jax.tree.unflatten(structure, [x if i == first else part for i, part in enumerate(parts)])


def pack_broadcast(transforms: tuple[Transform, ...], held: Held, broadcast: Tree) -> tuple[Held, Update]:
    """Return what the server keeps, and the change that it sends."""
    parts, structure = parts_of(broadcast)
    old, _ = parts_of(held.whole)
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), held.number)
    changes = []
    for i, (part, y) in enumerate(zip(parts, old, strict=True)):
        packable = isinstance(part, Vector)
        changes.append(pack_vector(transforms, part - y, jax.random.fold_in(key, i)) if packable else part)
    update = restored(held.whole, jax.tree.unflatten(structure, changes))
    return Held(update.whole, held.number + 1), update


def restored(whole: Tree, change: Tree) -> Update:
    """Return the broadcast from y and the change that travelled."""
    parts, structure = parts_of(change)
    old, _ = parts_of(whole)
    added = [y + opened(part) if isinstance(y, Vector) else part for part, y in zip(parts, old, strict=True)]
    return Update(change, jax.tree.unflatten(structure, added))


def broadcast_shapes(algorithm: Method, x: Vector) -> tuple[Tree, ...]:
    """Return the shapes of the broadcast of each exchange. They do not depend on the samples, so there are none."""

    def round_of(x: Vector) -> tuple[Tree, ...]:
        f = LocalObjective.without_samples(x)
        agent, server, found = algorithm.init(f, x), algorithm.server(x), []
        for exchange in algorithm.exchanges():
            assert not isinstance(exchange.aggregate, Mixing)  # `wrap` refuses it
            agent, _ = exchange.local(f, agent, jnp.int32(0), jax.random.key(0, impl="threefry2x32"))
            server, broadcast = exchange.aggregate(server, vectors_of(exchange.send(agent)), 1.0)
            agent = exchange.receive(agent, broadcast)
            found.append(broadcast)
        return tuple(found)

    return jax.eval_shape(round_of, x)
