"""Regularisers g for the composite problem f + g, defined by prox(x, t) = argmin_u g(u) + ||u - x||^2/(2t)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_least, refuse
from fedpd.base.value import Value, makes
from fedpd.core import Array


class Regularizer(Value):
    """A convex function g, defined by its value and its prox."""

    def value(self, x: Vector) -> Array:
        """Return g(x)."""
        self.needs("value(self, x)")

    def prox(self, x: Vector, t: Any) -> Vector:
        """Return argmin_u g(u) + ||u - x||^2/(2t)."""
        self.needs("prox(self, x, t)")


class L1(Regularizer):
    weight: float

    def value(self, x: Vector) -> Array:
        return self.weight * _sum(x, jnp.abs)

    def prox(self, x: Vector, t: Any) -> Vector:
        return jax.tree.map(lambda leaf: jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - self.weight * t, 0), x)


@makes(L1)
def l1(weight: float) -> Regularizer:
    """Return g(x) = weight ||x||_1, whose prox is soft thresholding."""
    return L1(weight=at_least("weight", weight, 0, "0 is no regulariser"))


class L2(Regularizer):
    weight: float

    def value(self, x: Vector) -> Array:
        return self.weight / 2 * (x @ x)

    def prox(self, x: Vector, t: Any) -> Vector:
        return x / (1 + self.weight * t)


@makes(L2)
def l2(weight: float) -> Regularizer:
    """Return g(x) = (weight/2) ||x||^2, whose prox shrinks x."""
    return L2(weight=at_least("weight", weight, 0, "0 is no regulariser"))


class Box(Regularizer):
    low: float
    high: float

    def value(self, x: Vector) -> Array:
        return _sum(x, lambda leaf: jnp.where((leaf < self.low) | (leaf > self.high), jnp.inf, 0.0))

    def prox(self, x: Vector, t: Any) -> Vector:
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.low, self.high), x)


@makes(Box)
def box(low: float, high: float) -> Regularizer:
    """Return g(x) = 0 where every entry lies in [low, high], and infinity elsewhere; its prox clips x."""
    if not low <= high:
        refuse("low, high", (low, high), "low must be at most high", "Give the bounds of every entry")
    return Box(low=low, high=high)


class GroupL1(Regularizer):
    weight: float

    def value(self, x: Vector) -> Array:
        return self.weight * _sum(x, _norms)

    def prox(self, x: Vector, t: Any) -> Vector:
        def shrink(leaf: Array) -> Array:
            rows = jnp.atleast_1d(leaf)
            norm = _norms(rows)
            return (rows * jnp.maximum(1 - self.weight * t / jnp.where(norm > 0, norm, 1), 0)).reshape(leaf.shape)

        return jax.tree.map(shrink, x)


@makes(GroupL1)
def group_l1(weight: float) -> Regularizer:
    """Return g(x) = weight sum ||row||: the rows of each leaf (its last axis) are groups that vanish together."""
    return GroupL1(weight=at_least("weight", weight, 0, "0 is no regulariser"))


def proximal_step(regularizer: Regularizer | None, x: Vector, t: Any) -> Vector:
    """Return prox_{t g}(x), or x itself if there is no regulariser."""
    return x if regularizer is None else regularizer.prox(x, t)


def _sum(x: Vector, function: Callable[[Array], Array]) -> Array:
    return sum((jnp.sum(function(leaf)) for leaf in jax.tree.leaves(x)), jnp.zeros(()))


def _norms(leaf: Array) -> Array:
    return jnp.sqrt(jnp.sum(leaf * leaf, axis=-1, keepdims=True))
