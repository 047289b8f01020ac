"""Losses that JAX cannot trace and that have their own gradient: NumPy code, or another framework.

They become ordinary loss functions: oracles, algorithms, metrics and the rebuilding of a lost dual work unchanged, in a
Flower client and in `fedpd.simulate`. JAX calls back when it needs a value or a gradient.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental.buffer_callback import buffer_callback

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError
from fedpd.core import Array, Losses, Tree

Values = Callable[[Tree, Tree], np.ndarray]  # (model, batch) -> (B,)
WeightedGradient = Callable[[Tree, Tree, np.ndarray], Tree]  # (model, batch, (B,) c) -> gradient of sum_b c_b F_b


def call_back(function: Callable[..., Tree], shapes: Tree, *arguments: Tree) -> Tree:
    """Return function(*arguments), a function of NumPy arrays, inside JAX code. The function must not call JAX itself.

    On a CPU this does not use `jax.pure_callback`, which passes copies that JAX's own threads make. Measured on two
    cores with six million parameters: `pure_callback` did not return when agents were sharded over two devices. On one
    device both work.
    """
    if jax.default_backend() != "cpu":
        return jax.pure_callback(lambda *given: function(*_numpy(given)), shapes, *arguments, vmap_method="sequential")

    def fill(context: Any, out: Tree, *given: Tree) -> None:
        jax.tree.map(lambda place, value: np.copyto(np.asarray(place), value), out, function(*_numpy(given)))

    return buffer_callback(fill, shapes, vmap_method="sequential")(*arguments)


@contextmanager
def explain_callback() -> Iterator[None]:
    """Replace JAX's error about a function that failed when JAX called it back by a sentence.

    Raises:
        FedpdError: A module or a function of NumPy arrays failed. Other errors do not change.
    """
    try:
        yield
    except JaxRuntimeError as error:
        lines = str(error).strip().splitlines()  # the last line is the error of the function
        if "callback" not in lines[0]:
            raise
        remedy = "Check that it computes scores from its parameters, in operations that have gradients"
        raise FedpdError(f"the module failed: {lines[-1].rstrip('.')}. {remedy}.") from error


def external(values: Values, gradient: WeightedGradient) -> Losses:
    """Return a loss function for JAX code from functions of NumPy arrays."""

    @jax.custom_vjp
    def losses(model: Tree, batch: Tree) -> Array:
        shape = jax.ShapeDtypeStruct(jax.tree.leaves(batch)[0].shape[:1], jnp.result_type(*jax.tree.leaves(model)))
        return call_back(values, shape, model, batch)

    def forward(model: Tree, batch: Tree) -> tuple[Array, tuple[Tree, Tree]]:
        return losses(model, batch), (model, batch)

    def backward(both: tuple[Tree, Tree], weights: Array) -> tuple[Tree, None]:
        model, batch = both
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model)
        return call_back(gradient, shapes, model, batch, weights), None

    losses.defvjp(forward, backward)
    return losses


def from_gradient(losses: Values, gradient: Callable[[Tree, Tree], Tree]) -> Losses:
    """Return a loss function for JAX code from NumPy code for the losses and their gradient.

    Args:
        losses: (model, batch) -> (B,), one loss per sample.
        gradient: (model, batch) -> the gradient of their mean, with the shapes of the model.
    """

    def values(model: Tree, batch: Tree) -> np.ndarray:
        returned = losses(_read_only(model), _read_only(batch))
        found = as_array(returned, "the result of losses", "Return one loss per sample")
        rows = len(jax.tree.leaves(batch)[0])
        if found.shape != (rows,):
            raise FedpdError(f"losses returns shape {found.shape}: it must be ({rows},). Return one loss per sample.")
        return found.astype(np.result_type(*jax.tree.leaves(model)), copy=False)

    def weighted(model: Tree, batch: Tree, weights: np.ndarray) -> Tree:
        chosen = weights != 0  # a mean over some samples: their weights are equal, and the others are 0
        if not chosen.any():
            return jax.tree.map(np.zeros_like, model)
        if not chosen.all():
            batch = jax.tree.map(lambda leaf: leaf[chosen], batch)
        if np.ptp(weights[chosen]) > 1e-6 * abs(weights[chosen][0]):
            raise FedpdError(
                "this problem needs a weighted mean of losses, but `gradient` returns that of a plain mean. Use equal "
                "weights."
            )
        return _scaled(model, gradient(_read_only(model), _read_only(batch)), float(weights.sum()))

    return external(values, weighted)


def _scaled(model: Tree, gradient: Tree, factor: float) -> Tree:
    """Return factor * gradient, after a check that it has the shapes of the model."""
    gradient = jax.tree.map(lambda leaf: as_array(leaf, "the result of gradient", "Return numbers"), gradient)
    shapes, wanted = (jax.tree.map(np.shape, tree) for tree in (gradient, model))
    if shapes != wanted:
        raise FedpdError(f"gradient returns shapes {shapes}: they must be the shapes of the model, {wanted}.")
    return jax.tree.map(lambda part, leaf: np.asarray(factor * part, leaf.dtype), gradient, model)


def _read_only(tree: Tree) -> Tree:
    """Return views that cannot be changed: a changed batch would be another batch in the next call."""

    def view(leaf: np.ndarray) -> np.ndarray:
        own = leaf.view()
        own.flags.writeable = False
        return own

    return jax.tree.map(view, tree)


def _numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
