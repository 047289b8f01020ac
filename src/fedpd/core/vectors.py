"""The type names that the whole package uses, and the algebra of models.

Choices, norms, running means, and stacks, whose leaves have one more axis in front.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector as Vector

Array = jax.Array
AnyArray = jax.Array | np.ndarray  # on the host a NumPy array, in a compiled program a JAX array
Key = Array
Tree = Any  # a pytree of arrays
Losses = Callable[[Tree, Tree], Array]  # (model, batch of B samples) -> (B,) losses F(x; xi)
Penalty = Callable[[Tree], Array]  # (model) -> the part of F that does not depend on a sample
RandomLosses = Callable[[Tree, Tree, Key], Array]  # the losses of a model with random layers, drawn from a key
Statistics = Callable[[Tree, Tree], Tree]  # (model, batch) -> the statistics that normalise the batch


NEWEST = 5.0  # the newest model has the weight 5/(r + 5) in a running mean


def choose(condition: Array, one: Any, other: Any) -> Any:
    """Return one state or the other."""
    return jax.tree.map(partial(jnp.where, condition), one, other)


def norm(x: Vector) -> Array:
    """Return the Euclidean norm of x."""
    return jnp.sqrt(x @ x)


def in_precision_of(x: Vector, number: Array) -> Array:
    """Return the number in the precision of x, so that it does not change that of a product."""
    return number.astype(jax.tree.leaves(x)[0].dtype)


def running_mean(mean: Vector, x: Vector, r: Array) -> Vector:
    """Return w + 5/(r + 5) (x - w), the running mean w after x, its r-th model."""
    return jax.tree.map(lambda w, x: (w + NEWEST / (r + NEWEST) * (x - w)).astype(w.dtype), mean, x)


def empty_stack(x: Vector, number: int) -> Vector:
    """Return `number` models of the shape of x, all of them 0."""
    return jax.tree.map(lambda leaf: jnp.zeros((number, *jnp.shape(leaf)), jnp.result_type(leaf)), x)


def put(stack: Vector, slot: Array, x: Vector) -> Vector:
    """Return the stack with the model x in place `slot`."""
    return jax.tree.map(lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new, slot, 0), stack, x)


def row(stack: Vector, slot: Array) -> Vector:
    """Return the model in place `slot`."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, slot, 0, keepdims=False), stack)


def push(stack: Vector, x: Vector) -> Vector:
    """Return the stack with x in front and without its last model."""
    return jax.tree.map(lambda leaf, new: jnp.concatenate([new[None], leaf[:-1]]), stack, x)


def mix(stack: Vector, weights: Array) -> Vector:
    """Return sum_k weights_k x_k."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), stack)


def dots(stack: Vector, other: Vector) -> Array:
    """Return the inner products <x_k, y_k> with the models of another stack, or <x_k, y> with a single model y."""

    def of_leaf(leaf: Array, other: Array) -> Array:
        return jnp.sum((leaf * other).reshape(len(leaf), -1), axis=1)

    return jnp.asarray(sum(jax.tree.leaves(jax.tree.map(of_leaf, stack, other))), float)


def gram(stack: Vector) -> Array:
    """Return the matrix of the inner products <x_k, x_l>."""

    def of_leaf(leaf: Array) -> Array:
        rows = leaf.reshape(len(leaf), -1)
        return rows @ rows.T

    return jnp.asarray(sum(map(of_leaf, jax.tree.leaves(stack))), float)
