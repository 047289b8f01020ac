"""Regularisers g for the composite problem f + g, defined by prox(x, t) = argmin_u g(u) + ||u - x||^2/(2t)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_least, refuse
from fedpd.base.spec import Spec, label_of, specified
from fedpd.core import Array


class Regularizer(NamedTuple):
    """A convex function g, defined by its value and its prox.

    Attributes:
        spec: The name and arguments of its factory; only a name for a regulariser of your own.
        value: Returns g(x).
        prox: Returns argmin_u g(u) + ||u - x||^2/(2t), given x and t.
    """

    spec: Spec | str
    value: Callable[[Vector], Array]
    prox: Callable[[Vector, Any], Vector]

    @property
    def description(self) -> str:
        return label_of(self.spec)


@specified
def l1(weight: float) -> Regularizer:
    """Return g(x) = weight ||x||_1, whose prox is soft thresholding."""
    at_least("weight", weight, 0, "0 is no regulariser")

    def prox(x: Vector, t: Any) -> Vector:
        return jax.tree.map(lambda leaf: jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - weight * t, 0), x)

    return Regularizer("l1", lambda x: weight * _sum(x, jnp.abs), prox)


@specified
def l2(weight: float) -> Regularizer:
    """Return g(x) = (weight/2) ||x||^2, whose prox shrinks x."""
    at_least("weight", weight, 0, "0 is no regulariser")
    return Regularizer("l2", lambda x: weight / 2 * (x @ x), lambda x, t: x / (1 + weight * t))


@specified
def box(low: float, high: float) -> Regularizer:
    """Return g(x) = 0 where every entry lies in [low, high], and infinity elsewhere; its prox clips x."""
    if not low <= high:
        refuse("low, high", (low, high), "low must be at most high", "Give the bounds of every entry")

    def outside(leaf: Array) -> Array:
        return jnp.where((leaf < low) | (leaf > high), jnp.inf, 0.0)

    def prox(x: Vector, t: Any) -> Vector:
        return jax.tree.map(lambda leaf: jnp.clip(leaf, low, high), x)

    return Regularizer("box", lambda x: _sum(x, outside), prox)


@specified
def group_l1(weight: float) -> Regularizer:
    """Return g(x) = weight sum ||row||: the rows of each leaf (its last axis) are groups that vanish together."""
    at_least("weight", weight, 0, "0 is no regulariser")

    def norms(leaf: Array) -> Array:
        return jnp.sqrt(jnp.sum(leaf * leaf, axis=-1, keepdims=True))

    def shrink(leaf: Array, t: Any) -> Array:
        norm = norms(leaf)
        return leaf * jnp.maximum(1 - weight * t / jnp.where(norm > 0, norm, 1), 0)

    return Regularizer(
        "group_l1",
        lambda x: weight * _sum(x, norms),
        lambda x, t: jax.tree.map(lambda leaf: shrink(jnp.atleast_1d(leaf), t).reshape(leaf.shape), x),
    )


def proximal_step(regularizer: Regularizer | None, x: Vector, t: Any) -> Vector:
    """Return prox_{t g}(x), or x itself if there is no regulariser."""
    return x if regularizer is None else regularizer.prox(x, t)


def _sum(x: Vector, function: Callable[[Array], Array]) -> Array:
    return sum((jnp.sum(function(leaf)) for leaf in jax.tree.leaves(x)), jnp.zeros(()))
