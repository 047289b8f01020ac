"""Checkpoints: atomic safetensors files with a checksum, without pickle. A run resumes from the newest intact file."""

import hashlib
import json
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError
from fedpd.base.spec import differences

log = logging.getLogger(__name__)

FORMAT = "fedpd-1"
NOTHING = "\0"  # no array has a name that begins so
DAMAGED = "damaged-"  # comes before the name of a file that cannot be read
CHANGED = "its checksum does not match: it is damaged or was changed. Use a copy of it, or run again in another folder."
KEPT = 2  # the newest checkpoint, and the one before it in case the newest is damaged
Arrays = dict[str, np.ndarray]


class CheckpointError(FedpdError):
    """A checkpoint cannot be used. The message says why."""


def flatten(prefix: str, tree: Any) -> Arrays:
    """Return a pytree as named arrays, such as "agents.x.tree['w']"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def unflatten(prefix: str, like: Any, arrays: Arrays) -> Any:
    """Return the pytree that `flatten` turned into arrays; `like` gives its structure, shapes and types."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        name = prefix + jax.tree_util.keystr(path)
        found = arrays.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            wanted = f"{leaf.dtype}{list(leaf.shape)}"
            raise CheckpointError(f"the checkpoint has {has}, but {name} must be {wanted}. Start in another folder.")
        leaves.append(found)
    return jax.tree.unflatten(structure, leaves)


def fingerprint(*trees: Any) -> str:
    """Return a hash of arrays: names, types, shapes and bytes."""
    return _digest({name: leaf for i, tree in enumerate(trees) for name, leaf in flatten(str(i), tree).items()})


def _digest(arrays: Arrays, text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # without a copy: states can be gigabytes
    return digest.hexdigest()


def _digest_of(name: str, array: np.ndarray) -> str:
    return _digest({name: array})


def write(path: Path, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write one file with the checksums of its metadata and of each array, atomically."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # safetensors writes memory order
    sums = {name: _digest_of(name, arrays[name]) for name in sorted(arrays)}
    text = json.dumps({"meta": meta, "arrays": sums}, sort_keys=True)
    with replace_file(path) as file:  # one metadata entry, since safetensors writes several in any order
        try:
            save_file(arrays, file.name, {FORMAT: json.dumps({"text": text, "sha256": _digest({}, text)})})
        except SafetensorError as error:  # e.g. the disk is full
            raise OSError(str(error)) from None


def read(path: Path, *prefixes: str) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the metadata that `write` wrote.

    Args:
        prefixes: Read only the arrays whose names begin with one of these; none: read all.

    Raises:
        CheckpointError: The file is damaged, or fedpd did not write it.
    """
    try:
        if not path.is_file():  # safe_open waits for ever at a pipe
            raise OSError("No such file" if not path.exists() else "it is not a file")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            found = sorted(file.keys())
            arrays = {name: file.get_tensor(name) for name in found if not prefixes or name.startswith(prefixes)}
    except (SafetensorError, OSError) as error:
        remedy = "Give the folder of a run, or write the file again"
        raise CheckpointError(f"{path}: is not a complete safetensors file ({error}). {remedy}.") from None
    if FORMAT not in metadata:
        raise CheckpointError(f"{path}: fedpd did not write it. Give the folder of a run.")
    try:
        envelope = json.loads(metadata[FORMAT])
        content = json.loads(envelope["text"])
        sums, meta = content["arrays"], content["meta"]
        intact = envelope["sha256"] == _digest({}, envelope["text"]) and sorted(sums) == found
        intact = intact and all(sums[name] == _digest_of(name, array) for name, array in arrays.items())
    except (ValueError, LookupError, TypeError):  # the metadata itself was altered
        intact = False
    if not intact:
        raise CheckpointError(f"{path}: {CHANGED}")
    return arrays, meta


def save_round(folder: Path, done: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write the checkpoint of a round, and remove all but the newest two."""
    write(folder / f"round-{done:09d}.safetensors", arrays, meta)
    for old in _files(folder)[KEPT:]:
        old.unlink()


def load_newest(folder: Path, identity: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the newest intact checkpoint, or None if there is none.

    Damaged files are logged and renamed, so that they never count as one of the newest checkpoints. An intact
    checkpoint of another run (its `identity` differs) is an error, so that runs are never mixed or overwritten.
    """
    refused: dict[Path, str] = {}
    found = None
    for path in _files(folder):
        try:
            found = path, *read(path)
            break
        except CheckpointError as error:
            refused[path] = str(error)
    if found is not None:
        _check_identity(found[0], found[2], identity)
    if refused:
        then = "there is no other checkpoint, and the run starts from the beginning"
        then = then if found is None else f"the run continues from {found[0].name}"
        log.warning("%s fedpd renamed it to %s*; %s.", " ".join(refused.values()), DAMAGED, then)
        for path in refused:
            path.replace(path.with_name(DAMAGED + path.name))
    return None if found is None else found[1:]


def _check_identity(path: Path, meta: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another run, and name the differences."""
    expected = as_read(identity)
    different = list(differences({name: meta.get(name) for name in expected}, expected))
    if different:
        raise CheckpointError(
            f"{path}: it belongs to another run: its {', and '.join(different[:3])}. "
            f"{_about_python(meta)}Choose another folder, or remove this one."
        )


def _about_python(meta: Mapping[str, Any]) -> str:
    """Return a sentence if another version of Python wrote a checkpoint, in which some functions have another hash."""
    wrote, now = (meta.get("versions") or {}).get("python", ""), platform.python_version()
    if wrote.split(".")[:2] in ([""], now.split(".")[:2]):
        return ""
    return (
        f"Python {wrote} wrote it, and this is {now}: functions without a source file differ between the two. Resume "
        f"it with Python {wrote}, or put your functions into a file. "
    )


def as_read(meta: Any) -> Any:
    """Return metadata as a file gives it back, e.g. lists in place of tuples."""
    return json.loads(json.dumps(meta))


def peek(folder: Path, *prefixes: str) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays with these prefixes and the metadata of the newest readable checkpoint, to watch a run.

    Only these arrays and the metadata are read and checked: models may be large. A file may disappear at any moment,
    because the run removes old ones.
    """
    for path in _files(folder):
        try:
            return read(path, *(prefixes or (NOTHING,)))
        except CheckpointError:
            continue
    return None


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
