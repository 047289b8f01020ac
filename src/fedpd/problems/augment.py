"""Random changes of the features of training batches (augmentation), which fedpd never measures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from fedpd.base.checks import FedpdError, check_takes, refuse
from fedpd.base.precision import is_double, scope
from fedpd.core import Array, Key, Tree
from fedpd.data.federated import Federated

Augment = Callable[[Key, Tree], Tree]  # (key, x (B, ...)) -> x


def augmented(apply: Any, random: Any, augment: Augment) -> Any:
    """Return (model, x, key) -> the outputs on augmented features.

    Args:
        apply: (model, x) -> the outputs without random layers.
        random: (model, x, key) -> the outputs in training; None: the model has no random layers.
        augment: As for `network`.
    """
    return partial(_on_augmented, apply, random, augment)


def _on_augmented(apply: Any, random: Any, augment: Augment, model: Tree, x: Tree, key: Key) -> Array:
    first, second = jax.random.split(key)
    x = augment(first, x)
    return apply(model, x) if random is None else random(model, x, second)


def check_augment(augment: Any, data: Federated) -> None:
    """Refuse an augmentation that does not return features of the shape and type that it gets."""
    remedy = "Give e.g. lambda key, x: jnp.where(jax.random.bernoulli(key, shape=(len(x), 1, 1)), x, x[:, :, ::-1])"
    check_takes("augment", augment, 2, "Write it as a function of (key, x)")
    x = (data.train[0] if isinstance(data.train, list) else data.train.sample)["x"]
    given = jax.tree.map(_three_samples, x)
    with scope(is_double(given)):
        wanted = jax.eval_shape(lambda x: x, given)
        try:
            found = jax.eval_shape(augment, jax.random.key(0), wanted)
        except Exception as error:
            raise FedpdError(f"augment fails for x of shape {jax.tree.map(np.shape, x)}: {error}. {remedy}.") from error
    one, other = (jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree) for tree in (found, wanted))
    if one != other:
        refuse("result of augment", one, f"must be {other}, as x", remedy)


def _three_samples(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((3, *leaf.shape[1:]), np.float32 if leaf.dtype == np.uint8 else leaf.dtype)
