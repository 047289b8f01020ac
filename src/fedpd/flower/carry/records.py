"""Converts pytrees to Flower's ArrayRecords and back. Arrays are named by their path and checked; it uses no pickle."""

import math
import re
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Error, RecordDict
from jax.tree_util import FlattenedIndexKey, keystr

from fedpd.base.checks import FedpdError
from fedpd.core import Tree
from fedpd.flower.private import get_all_nested_objects, no_object_id_recompute

LARGE = 2**24  # bytes of a message that is handled with care for the server's memory
ALIGNED = 64  # bytes; JAX uses NumPy arrays that begin at a multiple of it without a copy


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
    """Return a pytree with its arrays in a file if they are large, else as they are.

    The file has no name, and the system removes it with the last use. Its arrays need no memory that the system could
    not take back. JAX reads them without a copy, because they are aligned. So a server can keep the messages of all
    clients until it sums them, in the order of the agents, so that a run can be repeated bit for bit.

    Args:
        tree: A pytree of arrays.
        folder: The folder of the file; None: the system's own.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in leaves]
    if not is_large(tree):
        return tree
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    begins = np.cumsum([0, *(-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays)]).tolist()
    with tempfile.TemporaryFile(dir=folder) as file:
        for array, begin in zip(arrays, begins[:-1], strict=True):
            file.seek(begin)
            array.tofile(file)
        file.truncate(begins[-1])
        whole = np.asarray(np.memmap(file, np.uint8, "r"))
    parts = [whole[begin : begin + array.nbytes] for array, begin in zip(arrays, begins[:-1], strict=True)]
    mapped = [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]
    return jax.tree.unflatten(structure, [new.view(type(old)) for new, old in zip(mapped, arrays, strict=True)])


def is_large(tree: Tree) -> bool:
    """Return whether the arrays of a pytree are handled with care for the server's memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) > LARGE


def arrays_of(content: RecordDict, name: str, what: str) -> ArrayRecord:
    """Return the ArrayRecord with this name; refuse a message that lacks it."""
    try:
        return content.array_records[name]
    except KeyError:
        raise RefusedError(f"{what}: lacks its arrays {name!r}.") from None


def _array(array: Array, like: Any, what: str) -> np.ndarray:
    try:
        found = _view(array)
    except Exception as error:  # the bytes come from elsewhere, so any error of NumPy is possible
        raise RefusedError(f"{what}: is not an array ({type(error).__name__}: {error}).") from None
    if found.shape != like.shape or found.dtype != like.dtype:
        is_, wanted = f"{found.dtype}{list(found.shape)}", f"{like.dtype}{list(like.shape)}"
        raise RefusedError(f"{what}: is {is_}, but must be {wanted}.")
    if jnp.issubdtype(found.dtype, np.inexact) and not np.isfinite(found).all():
        raise RefusedError(f"{what}: holds NaN or infinity.")
    return found


def _view(array: Array) -> np.ndarray:
    """Return the array of a message without a copy of its bytes, as `Array.numpy` reads them."""
    if array.stype != "numpy.ndarray":
        raise TypeError(f"its kind is {array.stype!r}")
    stream = BytesIO(array.data)  # which shares the bytes
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    number = math.prod(shape)
    found = np.frombuffer(array.data, dtype, number, stream.tell()) if number else np.zeros(0, dtype)
    return found.reshape(shape, order="F" if fortran_order else "C")


def serialised_bytes(content: RecordDict) -> int:
    """Return the number of bytes of a message's content as Flower sends it; Flower sends equal arrays once."""
    sizes: dict[str, int] = {}
    with no_object_id_recompute():  # otherwise Flower would hash every part once for every part that contains it
        for record in content.values():
            for array in record.values() if isinstance(record, ArrayRecord) else ():
                sizes |= _sizes_of(array)
            sizes[record.object_id] = len(record.deflate())
        return len(content.deflate()) + sum(sizes.values())


_SIZES: dict[str, dict[str, int]] = {}  # by the hash of an array, the bytes of its parts
MOST_SIZES = 1024


def _sizes_of(array: Array) -> dict[str, int]:
    """Return the bytes of an array's parts, by their hashes; an order to many clients is serialised once for all."""
    known = _SIZES.get(array.object_id)  # Flower keeps the hash while the array is the same
    if known is None:
        known = {name: len(part.deflate()) for name, part in get_all_nested_objects(array).items()}
        if len(_SIZES) >= MOST_SIZES:
            _SIZES.clear()
        _SIZES[array.object_id] = known
    return known


def reason_of(error: Error) -> str:
    """Return the line of a traceback with the error; JAX adds remarks about frames after it."""
    lines = (error.reason or f"error {error.code}").strip().splitlines() or ["an error without a text"]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    return one_line(named[-1] if named else lines[-1])


LONGEST = 500  # characters of a client's text that the server shows


def one_line(text: str) -> str:
    r"""Return a client's text as the server shows it: short, and without line ends and control characters.

    Examples:
        >>> from fedpd.flower.carry.records import one_line
        >>> one_line("no disk\nFinished: 8 rounds")
        'no disk\\nFinished: 8 rounds'
    """
    shown = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:LONGEST])
    return "".join(shown)
