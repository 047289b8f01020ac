"""A client's own file with its state and its last order, written atomically and with a checksum.

Flower saves `context.state` only after the client has sent its reply, and removes it with a SuperNode or a run. A
client could then lose its state after its reply. Here the file is on disk before the client replies:
FOLDER/NAME/RUN.safetensors, where RUN is the identity of the run (the same after a resume). The reply follows from the
state, so the client can compute it again.

The disk space is bounded: a client keeps the files of its newest runs, and of others only while they are in use. Arrays
that an order has not changed are in the file once.
"""

import logging
import math
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import jax
import numpy as np
from flwr.app import Context

from fedpd.base import checkpoint
from fedpd.flower.carry.protocol import Order
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.method.agent import SavedAgent
from fedpd.flower.method.shapes import Shapes

log = logging.getLogger(f"flwr.{__name__}")  # a child of Flower's logger, so that the lines go to the same place

NEWEST, MOST = 2, 8  # a client keeps the state of its newest runs, and of at most this many
IN_USE_SECONDS = 24 * 3600.0  # other runs are in use if they had an order within this time
BEFORE, AFTER = "state[0]", "state[1]"  # the names of arrays before and after the local steps
WORK = ("updates", "samples")
FOLDER = "fedpd-state"  # the key of a SuperNode's configuration with the folder for states


def folder(context: Context, name: str) -> Path:
    """Return the folder of a client's state: from its node's configuration, the environment, or in the home folder."""
    place = context.node_config.get(FOLDER) or os.environ.get("FEDPD_STATE") or Path.home() / ".fedpd" / "clients"
    return Path(str(place)) / quote(name, safe=" ").replace(".", "%2E")


def file(folder: Path, run: str) -> Path:
    """Return the file of a run; refuse a name that is not the identity of a run."""
    if not re.fullmatch(r"[0-9a-f-]{1,80}", run):  # it comes from the server and becomes a file name
        raise RefusedError(f"order: run = {run!r} is not the identity of a run.")
    return folder / f"{run}.safetensors"


def check_disk(folder: Path, shapes: Shapes) -> None:
    """Refuse to start if the disk has no room for the client's state: two states, and two more while they are replaced.

    Raises:
        RefusedError: If there is too little room, or the folder cannot be written.
    """
    state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.agent))
    needed = 4 * state + 2**20
    try:
        free = free_bytes(folder)
    except OSError as error:
        raise RefusedError(f"{folder}: the client cannot write its state there ({error.strerror}).") from None
    if free < needed:
        raise RefusedError(
            f"{folder}: has {free / 1e6:.0f} MB left, but the client's state needs {needed / 1e6:.0f} MB."
        )


def free_bytes(folder: Path) -> int:
    """Return the room on the disk of a folder, which is created; raise OSError if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return shutil.disk_usage(folder).free


def load(path: Path, shapes: Shapes, order: Order | None = None) -> SavedAgent | None:
    """Return the client's saved state of a run; None if there is none, or if the file is damaged (which is logged).

    Args:
        path: The file.
        shapes: The shapes of the state.
        order: The order that continues from the state. If it does not continue from the state before the last local
            steps, that state is neither read nor checked, and `before` is None.
    """
    if not path.exists():
        return None
    try:
        arrays, meta = checkpoint.read(path, AFTER, *WORK)
        after, before = checkpoint.unflatten(AFTER, shapes.agent, arrays), None
        if order is None or meta["number"] not in (order.number, order.used):
            same = {name: arrays[AFTER + name.removeprefix(BEFORE)] for name in meta.get("unchanged", ())}
            before = checkpoint.unflatten(BEFORE, shapes.agent, checkpoint.read(path, BEFORE)[0] | same)
    except checkpoint.CheckpointError as error:
        log.warning("The client's state is lost: %s", error)
        return None
    updates, samples = (arrays[name] for name in WORK)
    return SavedAgent(meta["number"], before, after, meta["rebuilt"], updates, samples, meta.get("sent", True))


def save(path: Path, saved: SavedAgent) -> None:
    """Write a client's state in a run, and remove the files of runs that are no longer in use."""
    arrays = checkpoint.flatten("state", (saved.before, saved.after))
    unchanged = [
        name
        for name, array in arrays.items()
        if name.startswith(BEFORE) and _same_bits(array, arrays[AFTER + name.removeprefix(BEFORE)])
    ]
    arrays = {name: array for name, array in arrays.items() if name not in set(unchanged)}
    arrays |= {"updates": saved.updates, "samples": saved.samples}
    meta = {"number": saved.number, "rebuilt": saved.rebuilt, "sent": saved.sent, "unchanged": unchanged}
    checkpoint.write(path, arrays, meta)
    _remove_old_runs(path.parent)


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def _remove_old_runs(folder: Path) -> None:
    """Remove the states of runs that are neither among the newest nor in use."""
    times = {path: path.stat().st_mtime for path in folder.glob("*.safetensors")}
    runs = sorted(times, key=lambda path: times[path], reverse=True)
    for place, old in enumerate(runs):
        if place >= NEWEST and (place >= MOST or times[old] < time.time() - IN_USE_SECONDS):
            log.info("The client removes its state of an old run, %s.", old.stem)
            old.unlink(missing_ok=True)
