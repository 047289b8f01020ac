"""The folder of a federation on Flower (`out` of its settings), which the server writes and `fedpd.load` reads.

checkpoints/round-*.safetensors   the server's state, and the history so far
history.parquet                   the history of a finished run
model.safetensors                 the model of a finished run
best.safetensors                  the model of the best evaluation so far
log.txt                           the lines of the server's log
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError
from fedpd.base.saved import pack, unpack
from fedpd.base.spec import Spec
from fedpd.core import Tree
from fedpd.engine.measure.history import History

CHECKPOINTS, HISTORY, MODEL, BEST, LOG = (
    "checkpoints",
    "history.parquet",
    "model.safetensors",
    "best.safetensors",
    "log.txt",
)
ELAPSED = "elapsed"  # the seconds at each row, in a checkpoint
BY_CLIENT = "client"  # the prefix of each client's own values at the newest evaluation
TORCH = "torch"  # the framework of models that are loaded as tensors


class RecordedFederation(NamedTuple):
    """A federation as far as it has come."""

    label: str  # the name of the method in tables and figures
    seed: int
    rounds: int  # the number of rounds when it is finished
    history: History  # the rows so far
    versions: Mapping[str, str]  # the versions of the packages at the server
    elapsed: np.ndarray  # the seconds at each row; NaN if they are not known
    # by the clients' names, the number of the last communication to which each replied; 0 if there is none
    replies: Mapping[str, int]
    # by the clients' names, what each measured at the newest evaluation on its own data, such as test_accuracy; nothing
    # if clients send sums only
    by_client: Mapping[str, Mapping[str, float]]


def is_federation(folder: Path) -> bool:
    """Return whether a folder is that of a federation."""
    return any((folder / CHECKPOINTS).glob("round-*.safetensors")) or (folder / MODEL).is_file()


def read_progress(folder: Path) -> RecordedFederation:
    """Return the rows of a federation up to its last communication.

    Raises:
        FedpdError: The folder has no intact checkpoint.
    """
    found = checkpoint.peek(folder / CHECKPOINTS, "history.", f"{BY_CLIENT}.", ELAPSED)
    if found is None or "label" not in found[1]:
        raise FedpdError(f"{folder}: it has no checkpoint of a federation that can be read. Start the run again.")
    arrays, meta = found
    history, own = _columns(arrays, "history."), _columns(arrays, f"{BY_CLIENT}.")
    done = int(history["round"][-1])
    ended = (folder / MODEL).is_file() and checkpoint.read(folder / MODEL, checkpoint.NOTHING)[1].get("rounds") == done
    rounds = done if ended else max(meta["rounds"], done)
    replies = {name: number + 1 for name, number in zip(meta["names"], meta["counted"], strict=True)}
    each = {
        name: {column: float(values[i]) for column, values in own.items() if np.isfinite(values[i])}
        for i, name in enumerate(meta["names"])
    }
    kept = meta["label"], meta["seed"], rounds, history, meta["versions"], arrays[ELAPSED], replies
    return RecordedFederation(*kept, each if own else {})


def _columns(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): column for name, column in arrays.items() if name.startswith(prefix)}


def write_model(path: Path, model: Tree, spec: Spec, framework: str, meta: Mapping[str, Any]) -> None:
    """Write a model with the structure of its pytree, so that it can be loaded without the user's code.

    Args:
        framework: TORCH: `read_model` returns tensors; "": arrays.
        meta: Further entries: label, algorithm, seed, rounds, run.
    """
    plain, arrays = pack(model, "model", model)
    described, more = pack(spec, "spec")
    known = {"model": plain, "spec": described, "framework": framework}
    checkpoint.write(path, arrays | more, {**meta, **known})


class TrainedModel(NamedTuple):
    """A model of a federation."""

    model: Tree  # the model; its leaves are tensors if it came from a PyTorch module, else arrays
    spec: Spec  # the spec of the method
    meta: Mapping[str, Any]  # the other entries of the file


def read_model(path: Path, like: Tree | None = None) -> TrainedModel:
    """Return the model of a file; `like` has its structure, if the file cannot describe it."""
    arrays, meta = checkpoint.read(path)
    if "model" not in meta:
        raise FedpdError(f"{path}: it holds no model. Give model.safetensors of a federation, or its folder.")
    model, spec = unpack(meta["model"], arrays, like), unpack(meta["spec"], arrays)
    return TrainedModel(as_tensors(model) if meta.get("framework") == TORCH else model, spec, meta)


def as_tensors(model: Mapping[str, np.ndarray]) -> Tree:
    """Return the parameters of a PyTorch module as tensors, for `load_state_dict`; arrays where there is no PyTorch."""
    try:
        import torch
    except ImportError:
        return model
    return {name: torch.from_numpy(np.array(leaf)) for name, leaf in model.items()}
