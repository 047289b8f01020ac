"""Modules of equinox: the model is the module with its floating-point arrays, and None in place of the rest."""

import inspect
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.core import Array, Key, Tree
from fedpd.problems.adapters.adapter import Adapter


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return an equinox module as a function of its arrays.

    Args:
        module: An equinox module whose __call__ takes one sample and, if it has random layers, `key`.
        example: One sample, (1, ...).
        backend: Not used.
        seed: Not used: the module comes initialised.

    Raises:
        FedpdError: If the module has state, such as the statistics of eqx.nn.BatchNorm.
    """
    stateful = [one for one in _submodules(module) if isinstance(one, eqx.nn.StatefulLayer | eqx.nn.StateIndex)]
    if stateful:
        rule = "has state, which fedpd does not support for equinox"
        refuse("layer", type(stateful[0]).__name__, rule, "Use eqx.nn.GroupNorm or eqx.nn.LayerNorm")
    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    start = jax.tree.map(np.asarray, arrays)
    quiet = eqx.partition(eqx.nn.inference_mode(module), eqx.is_inexact_array)[1]
    try:
        jax.eval_shape(partial(_scores, quiet, static), start, example, None)
    except RuntimeError as error:
        if "key" not in str(error):
            raise
        raise FedpdError(
            f"{type(module).__name__} draws random numbers (dropout) also in eqx.nn.inference_mode, where fedpd "
            "measures. Use eqx.nn.Dropout."
        ) from error
    return Adapter(start, partial(_scores, quiet, static), takes_key and _draws(static, start, example))


def load(module: Any, model: Tree) -> Any:
    """Return a module with the arrays of a model."""
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(jnp.asarray, model), arrays, static)


def _submodules(module: Any) -> list[Any]:
    def is_state(node: Any) -> bool:
        return isinstance(node, eqx.nn.StatefulLayer | eqx.nn.StateIndex)

    return jax.tree.leaves(module, is_leaf=is_state)


def _draws(static: Any, start: Tree, example: Array) -> bool:
    """Return whether the module needs a key in training."""
    try:
        jax.eval_shape(lambda: jax.vmap(eqx.combine(start, static))(example))
    except RuntimeError as error:
        if "key" in str(error):
            return True
        raise
    return False


def _scores(quiet: Any, static: Any, arrays: Tree, x: Array, key: Key | None) -> Array:
    if key is None:
        return jax.vmap(eqx.combine(arrays, quiet))(x)
    module = eqx.combine(arrays, static)
    return jax.vmap(lambda one, own: module(one, key=own))(x, jax.random.split(key, len(x)))
