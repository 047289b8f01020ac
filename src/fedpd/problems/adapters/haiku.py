"""Functions of haiku's `hk.transform`: the model is haiku's own dict of parameters."""

from functools import partial
from typing import Any

import haiku as hk
import jax
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.core import Array, Key, Tree
from fedpd.problems.adapters.adapter import Adapter


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return a transformed function as a function of its parameters.

    Args:
        module: The result of hk.transform of a function of (x) or (x, train).
        example: One sample, (1, ...).
        backend: Not used.
        seed: The seed of the initialisation.

    Raises:
        FedpdError: If the function has state, or draws random numbers that `train` does not turn off.
    """
    if not isinstance(module, hk.Transformed):
        rule = "fedpd supports functions of hk.transform, without state"
        refuse("module", type(module).__name__, rule, "Use hk.transform and a network without hk.BatchNorm")
    takes_train = _takes_train(module, example)
    start = module.init(jax.random.key(seed), example, **({"train": True} if takes_train else {}))
    if _draws(module, start, example, {"train": False} if takes_train else {}):
        raise FedpdError(
            "the haiku function draws random numbers (dropout), and nothing turns them off where fedpd measures. Write "
            "it as a function of (x, train)."
        )
    random = takes_train and _draws(module, start, example, {"train": True})
    return Adapter(jax.tree.map(np.asarray, start), partial(_scores, module, takes_train), random)


def _takes_train(module: Any, example: Array) -> bool:
    """Return whether the function takes `train`; hk.transform hides its arguments, so they are tried."""
    try:
        jax.eval_shape(lambda key: module.init(key, example, train=True), jax.random.key(0))
    except TypeError:
        return False
    return True


def _draws(module: Any, start: Tree, example: Array, mode: dict[str, bool]) -> bool:
    """Return whether the function needs a key: haiku raises a ValueError without one."""
    try:
        jax.eval_shape(lambda start: module.apply(start, None, example, **mode), start)
    except ValueError as error:
        if "rng" not in str(error).lower():
            raise
        return True
    return False


def _scores(module: Any, takes_train: bool, parameters: Tree, x: Array, key: Key | None) -> Array:
    return module.apply(parameters, key, x, **({"train": key is not None} if takes_train else {}))
