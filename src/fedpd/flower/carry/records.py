"""Converts pytrees to Flower's ArrayRecords and back. Arrays are named by their path and checked; it uses no pickle."""

import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Error, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from jax.tree_util import FlattenedIndexKey, keystr

from fedpd.base.checks import FedpdError
from fedpd.core import Tree

LARGE = 2**24  # bytes of a message or an array that is handled with care for the server's memory


class RefusedError(FedpdError):
    """A message must not be used. The text says why."""


def pack(tree: Tree) -> ArrayRecord:
    """Return a pytree as named arrays: "w" for a model {"w": ...}, "1/w" for the second of two such models."""
    return ArrayRecord({name: Array(np.asarray(leaf, order="C")) for name, leaf in leaves_by_name(tree).items()})


def leaves_by_name(tree: Tree) -> dict[str, Any]:
    """Return the leaves of a pytree, in order, by the names that `pack` gives them."""
    return dict(zip(_names(tree), jax.tree.leaves(tree), strict=True))


def _names(tree: Tree) -> list[str]:
    """Return the paths without the wrappers (`Vector`) of models, or the whole paths if that is ambiguous."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    short = [tuple(key for key in path if key != FlattenedIndexKey(0)) for path in paths]
    names = [keystr(path, simple=True, separator="/") or "x" for path in short]
    return names if len(set(names)) == len(names) else [keystr(path) for path in paths]


def unpack(record: ArrayRecord, like: Tree, what: str) -> Tree:
    """Return the pytree that `pack` turned into a record.

    Args:
        record: The named arrays.
        like: A pytree with the structure, shapes and types that the arrays must have.
        what: The name of the arrays in error messages.

    Raises:
        RefusedError: If names, shapes or types differ, or an array holds NaN or infinity.
    """
    structure, wanted = jax.tree.structure(like), leaves_by_name(like)
    if set(record) != set(wanted):
        lacking, foreign = sorted(set(wanted) - set(record)), sorted(set(record) - set(wanted))
        raise RefusedError(f"{what}: lacks the arrays {lacking}, and has {foreign}, which do not belong to it.")
    return jax.tree.unflatten(
        structure, [_array(record[name], leaf, f"{what}, {name}") for name, leaf in wanted.items()]
    )


def stored(tree: Tree, folder: Path | None) -> Tree:
    """Return a pytree whose large leaves are in files without a name, which the system removes with the last use.

    The server sums messages in the order of the agents, whatever the order in which they come, so that a run can be
    repeated bit for bit. Until then they need no memory.

    Args:
        tree: A pytree of arrays.
        folder: The folder of the files; None: the system's own.
    """
    return jax.tree.map(lambda leaf: _mapped(leaf, folder) if leaf.nbytes > LARGE else leaf, tree)


def _mapped(array: np.ndarray, folder: Path | None) -> np.ndarray:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape)


def arrays_of(content: RecordDict, name: str, what: str) -> ArrayRecord:
    """Return the ArrayRecord with this name; refuse a message that lacks it."""
    try:
        return content.array_records[name]
    except KeyError:
        raise RefusedError(f"{what}: lacks its arrays {name!r}.") from None


def _array(array: Array, like: Any, what: str) -> np.ndarray:
    try:
        found = array.numpy()
    except Exception as error:  # the bytes come from elsewhere, so any error of NumPy is possible
        raise RefusedError(f"{what}: is not an array ({type(error).__name__}: {error}).") from None
    if found.shape != like.shape or found.dtype != like.dtype:
        is_, wanted = f"{found.dtype}{list(found.shape)}", f"{like.dtype}{list(like.shape)}"
        raise RefusedError(f"{what}: is {is_}, but must be {wanted}.")
    if jnp.issubdtype(found.dtype, np.inexact) and not np.isfinite(found).all():
        raise RefusedError(f"{what}: holds NaN or infinity.")
    return found


def serialised_bytes(content: RecordDict) -> int:
    """Return the number of bytes of a message's content as Flower sends it; Flower sends equal arrays once."""
    with no_object_id_recompute():  # otherwise Flower would hash every part once for every part that contains it
        return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())


def reason_of(error: Error) -> str:
    """Return the line of a traceback with the error; JAX adds remarks about frames after it."""
    lines = (error.reason or f"error {error.code}").strip().splitlines()
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    return named[-1] if named else lines[-1]
