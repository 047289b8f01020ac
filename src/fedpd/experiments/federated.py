"""The folder of a federation on Flower (`out` of its settings), which the server writes and `fedpd.load` reads.

checkpoints/round-*.safetensors   the server's state, and the history so far
history.parquet                   the history of a finished run
model.safetensors                 the model of a finished run
best.safetensors                  the model of the best evaluation so far
log.txt                           the lines of the server's log
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError
from fedpd.base.saved import pack, unpack
from fedpd.base.spec import Spec
from fedpd.core import Tree

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


def is_federation(folder: Path) -> bool:
    """Return whether a folder is that of a federation."""
    return any((folder / CHECKPOINTS).glob("round-*.safetensors")) or (folder / MODEL).is_file()


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


def read_model(path: Path, like: Tree | None = None) -> tuple[Tree, Spec, Mapping[str, Any]]:
    """Return the model of a file, the spec of its method, and the other entries of the file.

    The leaves are tensors if they came from a PyTorch module. `like` has the structure of the model, if the file cannot
    describe it.
    """
    arrays, meta = checkpoint.read(path)
    if "model" not in meta:
        raise FedpdError(f"{path}: it holds no model. Give model.safetensors of a federation, or its folder.")
    model, spec = unpack(meta["model"], arrays, like), unpack(meta["spec"], arrays)
    return as_tensors(model) if meta.get("framework") == TORCH else model, spec, meta


def as_tensors(model: Mapping[str, np.ndarray]) -> Tree:
    """Return the parameters of a PyTorch module as tensors, for `load_state_dict`; arrays where there is no PyTorch."""
    try:
        import torch
    except ImportError:
        return model
    return {name: torch.from_numpy(np.array(leaf)) for name, leaf in model.items()}
