"""A client's own file: its state and the last order that it carried out, written atomically, with a checksum.

Flower's `context.state` is saved after the reply is sent, and does not outlive a SuperNode or a run, so a client could
have answered and then lost its state. Here a file is on disk before the reply leaves: FOLDER/NAME/RUN.safetensors, RUN
the identity of the run (the same after a resume). The reply is a function of the state and is made again from it.
"""

import logging
import os
import re
from pathlib import Path
from urllib.parse import quote

from flwr.app import Context

from fedpd.base import checkpoint
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.method.agent import SavedAgent
from fedpd.flower.method.shapes import Shapes

log = logging.getLogger(f"flwr.{__name__}")  # beside Flower's own lines, wherever they go

KEPT = 8  # runs whose state a client keeps: the newest
FOLDER = "fedpd-state"  # the key of a SuperNode's configuration that says where


def folder(context: Context, name: str) -> Path:
    """Return where a client keeps its state: by its node's configuration, the environment, or in the home folder."""
    place = context.node_config.get(FOLDER) or os.environ.get("FEDPD_STATE") or Path.home() / ".fedpd" / "clients"
    return Path(str(place)) / quote(name, safe=" ").replace(".", "%2E")


def file(folder: Path, run: str) -> Path:
    """Return the file of a run; a name that is not the identity of a run is refused."""
    if not re.fullmatch(r"[0-9a-f-]{1,80}", run):  # it becomes a file name, and comes from elsewhere
        raise RefusedError(f"order: run = {run!r} is not the identity of a run.")
    return folder / f"{run}.safetensors"


def load(path: Path, shapes: Shapes) -> SavedAgent | None:
    """Return what the client has saved of a run; None if there is nothing, or the file is damaged (which is logged)."""
    if not path.exists():
        return None
    try:
        arrays, meta = checkpoint.read(path)
        before, after = checkpoint.unflatten("state", (shapes.agent, shapes.agent), arrays)
    except checkpoint.CheckpointError as error:
        log.warning("The client's state is lost: %s", error)
        return None
    return SavedAgent(meta["number"], before, after, meta["rebuilt"], arrays["updates"], arrays["samples"])


def save(path: Path, saved: SavedAgent) -> None:
    """Write what a client keeps of a run, and remove the files of its oldest runs."""
    arrays = checkpoint.flatten("state", (saved.before, saved.after))
    arrays |= {"updates": saved.updates, "samples": saved.samples}
    checkpoint.write(path, arrays, {"number": saved.number, "rebuilt": saved.rebuilt})
    runs = sorted(path.parent.glob("*.safetensors"), key=lambda other: other.stat().st_mtime, reverse=True)
    for old in runs[KEPT:]:
        old.unlink(missing_ok=True)
