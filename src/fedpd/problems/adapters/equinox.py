"""Modules of equinox: the model is the module with its floating-point arrays, and None in place of the rest.

The statistics of eqx.nn.BatchNorm stay with the agents.
"""

import inspect
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, below, refuse
from fedpd.core import Array, Key, Tree
from fedpd.problems.adapters.adapter import Adapter
from fedpd.problems.classification import Normalisation


class Modes(NamedTuple):
    """A module without its floating-point arrays, in training, in training without random layers, and in evaluation."""

    train: Any  # the module in training
    quiet: Any  # the same without random layers; batches are still normalised by their own statistics
    judged: Any  # the module in evaluation
    # the state that a call starts from, without statistics; None if the module has no batch normalisation
    state: Any = None
    norms: tuple[Any, ...] = ()  # its layers of batch normalisation


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return an equinox module as a function of its arrays.

    Args:
        module: An equinox module whose __call__ takes one sample and, if it has random layers, `key`. With
            eqx.nn.BatchNorm it takes (sample, state) and returns (scores, state).

    Raises:
        FedpdError: If the module has other state than the statistics of eqx.nn.BatchNorm, or draws random numbers also
            in evaluation.
    """
    module, state = _without_state(module)
    arrays = eqx.partition(module, eqx.is_inexact_array)[0]
    norms = tuple(_batch_norms(module))
    judged = eqx.nn.inference_mode(module)
    every = (_normalised_by_batch(module), _normalised_by_batch(judged), judged)
    train, quiet, judged = (eqx.partition(one, eqx.is_inexact_array)[1] for one in every)
    modes = Modes(train, quiet, judged, state, norms)
    start = jax.tree.map(np.asarray, arrays)
    try:
        jax.eval_shape(partial(_scores, modes), start, example, None)
    except RuntimeError as error:
        if "key" not in str(error):
            raise
        raise FedpdError(
            f"{type(module).__name__} draws random numbers (dropout) also in eqx.nn.inference_mode, where fedpd "
            "measures. Use eqx.nn.Dropout."
        ) from error
    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    rule = Normalisation(partial(_statistics, modes), partial(_evaluated, modes)) if norms else None
    return Adapter(start, partial(_scores, modes), takes_key and _draws(modes, start, example), rule)


def plain(module: Any, arrays: Tree, x: Array, key: Key | None, train: bool) -> Array:
    """Return the scores as a user of equinox computes them: `jax.vmap` of the module, also in inference mode."""
    own, state = _without_state(module)
    own = eqx.combine(arrays, own)
    own = own if train else eqx.nn.inference_mode(own)
    keys = None if key is None else jax.random.split(key, len(x))

    def one(x: Array, key: Key | None) -> Array:
        named = {} if key is None else {"key": key}
        return own(x, **named) if state is None else own(x, state, **named)[0]

    axis = {} if state is None else {"axis_name": _batch_norms(module)[0].axis_name}
    return jax.vmap(one, **axis)(x, keys)


def load(module: Any, model: Tree) -> Any:
    """Return a module with the arrays of a model, and without state."""
    arrays, static = eqx.partition(_without_state(module)[0], eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(jnp.asarray, model), arrays, static)


def _is_norm(node: Any) -> bool:
    return isinstance(node, eqx.nn.BatchNorm)


def _batch_norms(module: Any) -> list[Any]:
    return [node for node in jax.tree.leaves(module, is_leaf=_is_norm) if _is_norm(node)]


def _without_state(module: Any) -> tuple[Any, Any]:
    """Return the module without its state, and a state without statistics, whose keys are the paths of the layers."""

    def is_state(node: Any) -> bool:
        layer = isinstance(node, eqx.nn.StatefulLayer) and not isinstance(node, eqx.nn.Sequential)  # of other layers
        return layer or isinstance(node, eqx.nn.StateIndex)

    for node in jax.tree.leaves(module, is_leaf=is_state):
        if is_state(node) and not _is_norm(node):
            rule = "has state, and fedpd supports only that of eqx.nn.BatchNorm"
            refuse("layer", type(node).__name__, rule, "Use eqx.nn.GroupNorm or eqx.nn.LayerNorm")
    norms = _batch_norms(module)
    for norm in norms:
        below("momentum of eqx.nn.BatchNorm", norm.momentum, 1, "With 1 the statistics never change; 0.99 is usual")
    if len({str(norm.axis_name) for norm in norms}) > 1:
        rule = "must be the same in all layers, because fedpd maps over one axis, the batch"
        refuse("axis_name of eqx.nn.BatchNorm", [norm.axis_name for norm in norms], rule, 'Use axis_name="batch"')
    if not norms:
        return module, None
    fresh = jax.tree.map(lambda node: _with_fresh_state(node) if _is_norm(node) else node, module, is_leaf=_is_norm)
    return eqx.nn.make_with_state(lambda: fresh)()


def _indices(norm: Any) -> tuple[Any, Any]:
    """Return where a layer keeps how often it was called, and where it keeps its statistics."""
    ema = norm.mode == "ema"
    return (norm.ema_first_time_index, norm.ema_state_index) if ema else (norm.batch_counter, norm.batch_state_index)


def _with_fresh_state(norm: Any) -> Any:
    zeros = jnp.zeros((norm.input_size,), float if norm.weight is None else norm.weight.dtype)
    first = jnp.array(True) if norm.mode == "ema" else jnp.array(0)
    new = eqx.nn.StateIndex(first), eqx.nn.StateIndex((zeros, zeros))
    return eqx.tree_at(_indices, norm, new, is_leaf=lambda node: isinstance(node, eqx.nn.StateIndex))


def _normalised_by_batch(module: Any) -> Any:
    """Return the module with batch normalisation as in training."""

    def training(node: Any) -> Any:
        return eqx.nn.inference_mode(node, value=False) if _is_norm(node) else node

    return jax.tree.map(training, module, is_leaf=_is_norm)


def _draws(modes: Modes, start: Tree, example: Array) -> bool:
    """Return whether the module needs a key in training."""
    try:
        jax.eval_shape(lambda: _call(modes, modes.train, start, modes.state, example, None))
    except RuntimeError as error:
        if "key" in str(error):
            return True
        raise
    return False


def _call(modes: Modes, static: Any, arrays: Tree, state: Any, x: Array, key: Key | None) -> tuple[Array, Any]:
    """Return the scores of a batch, and the state after it."""
    module = eqx.combine(arrays, static)
    keys = None if key is None else jax.random.split(key, len(x))

    def one(x: Array, key: Key | None, state: Any) -> Any:
        named = {} if key is None else {"key": key}
        return (module(x, **named), None) if modes.state is None else module(x, state, **named)

    axis = {"axis_name": modes.norms[0].axis_name} if modes.norms else {}
    return jax.vmap(one, in_axes=(0, 0, None), out_axes=(0, None), **axis)(x, keys, state)


def _scores(modes: Modes, arrays: Tree, x: Array, key: Key | None) -> Array:
    return _call(modes, modes.quiet if key is None else modes.train, arrays, modes.state, x, key)[0]


def _statistics(modes: Modes, arrays: Tree, x: Array) -> Tree:
    """Return (mean, variance) of the batch by the path of the layer: "batch" stores m s + (1 - m) b, and s = 0."""
    state = _call(modes, modes.quiet, arrays, modes.state, x, None)[1]

    def measured(norm: Any) -> Any:
        found = state.get(_indices(norm)[1])
        return found if norm.mode == "ema" else jax.tree.map(lambda leaf: leaf / (1 - norm.momentum), found)

    return {_indices(norm)[1].marker: measured(norm) for norm in modes.norms}


def _evaluated(modes: Modes, arrays: Tree, statistics: Tree, x: Array) -> Array:
    state = jax.tree.map(lambda leaf: leaf, modes.state)  # `set` makes the old state invalid
    for norm in modes.norms:
        state = state.set(_indices(norm)[1], statistics[_indices(norm)[1].marker])
    return _call(modes, modes.judged, arrays, state, x, None)[0]
