"""Checkpoints: atomic safetensors files with a checksum, without pickle. A run resumes from the newest intact file."""

import hashlib
import json
import logging
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


def write(path: Path, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write one file with its checksum, atomically."""
    text = json.dumps(meta, sort_keys=True)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # safetensors writes memory order
    with replace_file(path) as file:  # one metadata entry, since safetensors writes several in any order
        save_file(arrays, file.name, {FORMAT: json.dumps({"meta": text, "sha256": _digest(arrays, text)})})


def read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and metadata that `write` wrote; refuse a damaged file or one that fedpd did not write."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: is not a complete safetensors file ({error}).") from None
    if FORMAT not in metadata:
        raise CheckpointError(f"{path}: fedpd did not write it. Give the folder of a run.")
    try:
        envelope = json.loads(metadata[FORMAT])
        intact = envelope["sha256"] == _digest(arrays, envelope["meta"])
    except (ValueError, LookupError, TypeError):  # the metadata itself was altered
        intact = False
    if not intact:
        raise CheckpointError(f"{path}: its checksum does not match: it is damaged or was changed.")
    return arrays, json.loads(envelope["meta"])


def save_round(folder: Path, done: int, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write the checkpoint of a round, and remove all but the newest two."""
    write(folder / f"round-{done:09d}.safetensors", arrays, meta)
    for old in _files(folder)[KEPT:]:
        old.unlink()


def load_newest(folder: Path, identity: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the newest intact checkpoint, or None if there is none; log the damaged ones.

    An intact checkpoint of another run (its `identity` differs) is an error, so that runs are never mixed or
    overwritten.
    """
    refused = ""
    for path in _files(folder):
        try:
            arrays, meta = read(path)
        except CheckpointError as error:
            refused += f"{error} "
            continue
        if refused:
            log.warning("%sfedpd uses the checkpoint before it: %s", refused, path.name)
        _check_identity(path, meta, identity)
        return arrays, meta
    if refused:
        log.warning("%sThere is no other checkpoint: the run starts from the beginning.", refused)
    return None


def _check_identity(path: Path, meta: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another run, and name the differences."""
    labelled = isinstance(meta.get("algorithm"), str)  # fedpd 0.1 identified runs by their labels
    if labelled and isinstance(identity.get("algorithm"), Mapping):
        version = (meta.get("versions") or {}).get("fedpd", "0.1")
        raise CheckpointError(
            f"{path}: fedpd {version} wrote it, and did not record enough to check that it belongs to this run. "
            "Resume it with that version, or choose another folder."
        )
    expected = json.loads(json.dumps(identity))  # as a file has it
    different = list(differences({name: meta.get(name) for name in expected}, expected))
    if different:
        raise CheckpointError(
            f"{path}: it belongs to another run: its {', and '.join(different[:3])}. "
            "Choose another folder, or remove this one."
        )


def peek(folder: Path, *prefixes: str) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays with these prefixes and the metadata of the newest readable checkpoint, to watch a run.

    It does not check the checksum: models may be large, and the run may remove the file at any moment.
    """
    for path in _files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                envelope = json.loads((file.metadata() or {})[FORMAT])
                names = [name for name in file.keys() if name.startswith(prefixes)]  # noqa: SIM118 (not a mapping)
                return {name: file.get_tensor(name) for name in names}, json.loads(envelope["meta"])
        except (SafetensorError, OSError, ValueError, LookupError):
            continue
    return None


def _files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
