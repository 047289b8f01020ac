"""Secant pairs: the last m steps s and changes y of a gradient, and products with the L-BFGS matrix that they make."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.core import Array

CURVED = 1e-10  # a pair counts if <s, y> exceeds this share of ||s|| ||y||


class SecantPairs(NamedTuple):
    """The last m pairs, newest last.

    Attributes:
        steps: The s_k, leaves (m, ...).
        changes: The y_k, leaves (m, ...).
        inverse: (m,) the 1/<s_k, y_k>; 0 where there is no pair.
        scale: <s, y>/<y, y> of the newest pair; 1 before there is one.
    """

    steps: Any
    changes: Any
    inverse: Array
    scale: Array

    @property
    def is_empty(self) -> Array:
        return self.inverse[-1] == 0


def no_pairs(x: Vector, memory: int) -> SecantPairs:
    """Return room for `memory` pairs of vectors like x."""
    room = jax.tree.map(lambda leaf: jnp.zeros((memory, *leaf.shape), leaf.dtype), x)
    number = jnp.zeros(()).dtype
    return SecantPairs(room, room, jnp.zeros(memory, number), jnp.ones((), number))


def add_pair(pairs: SecantPairs, s: Vector, y: Vector) -> SecantPairs:
    """Return the pairs with (s, y) as the newest, or as they are if the gradient did not grow along s."""
    product = s @ y
    counts = product > CURVED * jnp.sqrt((s @ s) * (y @ y))

    def shift(room: Any, new: Any) -> Any:
        return jnp.where(counts, jnp.roll(room, -1, axis=0).at[-1].set(new), room)

    safe = jnp.where(counts, product, 1)
    return SecantPairs(
        jax.tree.map(shift, pairs.steps, s),
        jax.tree.map(shift, pairs.changes, y),
        shift(pairs.inverse, 1 / safe),
        jnp.where(counts, safe / jnp.where(counts, y @ y, 1), pairs.scale),
    )


def times_inverse(pairs: SecantPairs, g: Vector) -> Vector:
    """Return H g, H the L-BFGS matrix of the pairs on top of scale * I (two-loop recursion)."""
    memory = len(pairs.inverse)

    def row(room: Any, k: Array) -> Vector:
        return jax.tree.map(lambda leaf: leaf[k], room)

    def backward(j: Array, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        (q, weights), k = carry, memory - 1 - j
        weight = pairs.inverse[k] * (row(pairs.steps, k) @ q)
        return q - weight * row(pairs.changes, k), weights.at[k].set(weight)

    def forward(k: Array, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        q, weights = carry
        weight = pairs.inverse[k] * (row(pairs.changes, k) @ q)
        return q + (weights[k] - weight) * row(pairs.steps, k), weights

    q, weights = lax.fori_loop(0, memory, backward, (g, jnp.zeros_like(pairs.inverse)))
    return lax.fori_loop(0, memory, forward, (pairs.scale * q, weights))[0]
