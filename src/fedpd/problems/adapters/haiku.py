"""Functions of haiku: the model is haiku's own dict of parameters, and batch statistics stay with the agents."""

from functools import partial
from typing import Any, NamedTuple

import haiku as hk
import jax
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.core import Array, Key, Tree
from fedpd.problems.adapters.adapter import Adapter, differ
from fedpd.problems.classification import Normalisation


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return a transformed function as a function of its parameters.

    Args:
        module: The result of hk.transform of a function of (x) or (x, train), or of hk.transform_with_state of a
            function of (x, train) with hk.BatchNorm.

    Raises:
        FedpdError: If the function has other state than that of hk.BatchNorm, or draws random numbers that `train` does
            not turn off.
    """
    stateful = isinstance(module, hk.TransformedWithState)
    function = module if stateful else hk.with_empty_state(module)
    takes_train = _takes_train(function, example)
    start, state = function.init(jax.random.key(seed), example, **({"train": True} if takes_train else {}))
    start, state = jax.tree.map(np.asarray, (dict(start), dict(state)))
    modes = Modes(function, takes_train, state)
    if _draws(modes, start, example, train=False):
        raise FedpdError(
            "the haiku function draws random numbers (dropout), and nothing turns them off where fedpd measures. Write "
            "it as a function of (x, train)."
        )
    random = takes_train and _draws(modes, start, example, train=True)
    if not state:
        random = random or (takes_train and differ(module, start, example, plain))
        return Adapter(start, partial(_scores, modes), random)
    _check_state(modes, random)
    rule = Normalisation(partial(_statistics, modes), partial(_evaluated, modes))
    return Adapter(start, partial(_normalised, modes), False, rule)


def plain(module: Any, parameters: Tree, x: Array, key: Key | None, train: bool) -> Array:
    """Return the scores as a user of haiku computes them: `module.apply`, in training with the state of `init`."""
    function = module if isinstance(module, hk.TransformedWithState) else hk.with_empty_state(module)
    named = {"train": train} if _takes_train(function, x) else {}
    state = function.init(jax.random.key(0), x, **named)[1]
    return function.apply(parameters, state, key, x, **named)[0]


class Modes(NamedTuple):
    """A transformed function, whether it takes `train`, and the state that it is initialised with."""

    function: Any
    takes_train: bool
    state: Tree

    def __call__(self, parameters: Tree, state: Tree, key: Key | None, x: Array, *, train: bool) -> tuple[Array, Tree]:
        return self.function.apply(parameters, state, key, x, **({"train": train} if self.takes_train else {}))


def _takes_train(function: Any, example: Array) -> bool:
    """Return whether the function takes `train`; haiku hides its arguments, so they are tried."""
    try:
        jax.eval_shape(lambda key: function.init(key, example, train=True), jax.random.key(0))
    except TypeError:
        return False
    return True


def _draws(modes: Modes, start: Tree, example: Array, *, train: bool) -> bool:
    """Return whether the function needs a key: haiku raises a ValueError without one."""
    try:
        jax.eval_shape(lambda start: modes(start, modes.state, None, example, train=train), start)
    except ValueError as error:
        if "rng" not in str(error).lower():
            raise
        return True
    return False


def _check_state(modes: Modes, random: bool) -> None:
    """Refuse state that fedpd cannot keep local, and dropout beside it."""
    for name, own in modes.state.items():
        if set(own) != {"counter", "hidden", "average"}:
            rule = "fedpd supports only the state of hk.BatchNorm"
            refuse("state", name, rule, "Remove it, or use hk.GroupNorm or hk.LayerNorm")
    if not modes.takes_train:
        rule = "has batch normalisation, so it must be a function of (x, train)"
        refuse("module", type(modes.function).__name__, rule, "Call hk.BatchNorm with is_training=train")
    if random:
        raise FedpdError(
            "the haiku function has dropout beside batch normalisation, and `train` turns on both, but fedpd measures "
            "losses without dropout. Use hk.GroupNorm or hk.LayerNorm, or the same network in flax."
        )


def _scores(modes: Modes, parameters: Tree, x: Array, key: Key | None) -> Array:
    return modes(parameters, modes.state, key, x, train=key is not None)[0]


def _normalised(modes: Modes, parameters: Tree, x: Array, key: Key | None) -> Array:
    """Return the scores of a batch that is normalised by its own statistics."""
    return modes(parameters, modes.state, None, x, train=True)[0]


def _statistics(modes: Modes, parameters: Tree, x: Array) -> Tree:
    """Return the batch statistics by the names of the state: haiku's average after the first batch is its own."""
    updated = modes(parameters, modes.state, None, x, train=True)[1]
    return {name: own["average"] for name, own in updated.items()}


def _evaluated(modes: Modes, parameters: Tree, statistics: Tree, x: Array) -> Array:
    state = {name: own | {"average": statistics[name]} for name, own in modes.state.items()}
    return modes(parameters, state, None, x, train=False)[0]
