"""Pytrees as Flower's ArrayRecords and back: arrays named by their path, checked one by one; no pickle, no ravel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedpd.checkpoint import flatten
from fedpd.checks import FedpdError
from fedpd.core import Tree


class RefusedError(FedpdError):
    """A message that must not be used, and why."""


def pack(tree: Tree) -> ArrayRecord:
    """A pytree as named arrays: "[0].tree['w']"."""
    return ArrayRecord({name: Array(leaf) for name, leaf in flatten("", tree).items()})


def unpack(record: ArrayRecord, like: Tree, what: str) -> Tree:
    """The pytree of the structure, shapes and types of `like` that `pack` has packed; anything else is refused."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    if set(record) != set(wanted):
        lacking, foreign = sorted(set(wanted) - set(record)), sorted(set(record) - set(wanted))
        raise RefusedError(f"{what}: lacks the arrays {lacking} and has {foreign}, which do not belong to it.")
    leaves = [_array(record[name], leaf, f"{what} {name}") for name, leaf in wanted.items()]
    return jax.tree.unflatten(structure, leaves)


def _array(array: Array, like: Any, what: str) -> np.ndarray:
    try:
        found = array.numpy()
    except Exception as error:  # bytes of anyone's making: whatever NumPy says of them, they are refused
        raise RefusedError(f"{what}: is not an array ({type(error).__name__}: {error}).") from None
    if found.shape != like.shape or found.dtype != like.dtype:
        is_, wanted = f"{found.dtype}{list(found.shape)}", f"{like.dtype}{list(like.shape)}"
        raise RefusedError(f"{what}: is {is_} where {wanted} belongs.")
    if jnp.issubdtype(found.dtype, np.inexact) and not np.isfinite(found).all():
        raise RefusedError(f"{what}: holds NaN or infinity.")
    return found


def serialised_bytes(content: RecordDict) -> int:
    """The bytes of a message's content as Flower sends it: equal arrays are sent once."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
