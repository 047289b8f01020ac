"""Bring a run back from a backup: at the server, and at clients that have gone further than the server's backup.

A server that resumes from a backup repeats communications that its clients have done. A client refuses that: otherwise
a server could ask for the same communication again with other data. So the person who runs the client decides, with one
command. It puts the state of the backup in place if the server can use it, and otherwise sets the newer state aside;
the client then rebuilds its state from the server's model, as after a loss.

    fedpd restore OUT --from BACKUP                                     # at the server
    fedpd restore STATE --run RUN --number N --from BACKUP              # at a client
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpd.base import checkpoint
from fedpd.base.atomic import held, replace_file
from fedpd.base.checks import FedpdError, refuse
from fedpd.experiments.federated import CHECKPOINTS

RUN = re.compile(r"[0-9a-f-]{1,80}")  # the identity of a run, which is the name of a client's file


def restore_server(out: Path, backup: Path | None) -> str:
    """Put the run of a backup into the folder `out`, and return what to do next.

    Args:
        out: The run's folder at the server, as its setting `out` names it.
        backup: A copy of that folder; None: it is in `out` already.

    Raises:
        FedpdError: The backup has no intact checkpoint, or `out` has a run already, or a server writes to it.
    """
    meta = _newest(out if backup is None else backup)
    if backup is not None:
        if any((out / CHECKPOINTS).glob("round-*.safetensors")):
            refuse("OUT", str(out), "has checkpoints already", "Move the folder away, or restore into a new one")
        with held(out):
            shutil.copytree(backup, out, dirs_exist_ok=True)
    with held(out):
        _newest(out)
    names, number, run = meta["names"], meta["number"], meta["run"]
    return (
        f"{out} continues the run of {len(names)} clients ({', '.join(names)}) after {number} communications.\n"
        "Clients that have done more refuse to repeat them. At each client, with its folder of states:\n"
        f"  fedpd restore STATE --run {run} --number {number}\n"
        "Add --from BACKUP if the client has a copy of STATE from the time of the server's backup: the run then "
        "continues exactly.\nThen start the run again with the same out."
    )


def _newest(folder: Path) -> dict[str, Any]:
    """Return the metadata of the newest intact checkpoint of a server's folder."""
    for path in sorted((folder / CHECKPOINTS).glob("round-*.safetensors"), reverse=True):
        with suppress(checkpoint.CheckpointError):
            meta = checkpoint.read(path)[1]
            if {"names", "number", "run"} <= meta.keys():
                return meta
    rule, remedy = f"has no intact checkpoint of a federation in {CHECKPOINTS}/", "Give an older copy of the run's out"
    raise FedpdError(f"{folder} {rule}. {remedy}.")


def restore_client(states: Path, run: str, number: int, backup: Path | None) -> str:
    """Let a client repeat the communications of a run from `number` on, and return what it did.

    Args:
        states: The client's folder of states (`state` in its kit).
        run: The identity of the run, as `restore_server` shows it.
        number: The number of communications in the server's backup.
        backup: A copy of the client's folder; None: there is none.

    Raises:
        FedpdError: There is no state of this run, or the state in the backup is damaged.
    """
    if not RUN.fullmatch(run):
        refuse("--run", run, "is not the identity of a run", "Copy it from what fedpd restore shows at the server")
    if number < 0:
        refuse("--number", number, "must be a number of communications", "Copy it from the server's fedpd restore")
    found = {path.relative_to(folder) for folder in (states, backup) if folder for path in _files(folder, run)}
    if not found:
        rule = f"has no state of run {run}"
        refuse("STATE", str(states), rule, "Give the client's folder of states; without a state it needs no restore")
    return "\n".join(_restore_state(states, place, number, backup) for place in sorted(found))


def _files(folder: Path, run: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"**/{run}.safetensors") if path.is_file())


def _restore_state(states: Path, place: Path, number: int, backup: Path | None) -> str:
    """Restore one client's file, `place` below its folder of states, and return what was done."""
    name, own = place.parent.name, states / place
    done = _communication(own) if own.exists() else None
    copy = None if backup is None or not (backup / place).exists() else _communication(backup / place)
    if done is not None and done <= number:
        return f"client {name!r}: its state is of communication {done}, so it needs no restore."
    aside = ""
    if done is not None:
        kept = own.with_name(f"{own.name}.number-{done}")
        own.replace(kept)
        aside = f" The newer state is in {kept}; remove it when the run has continued."
    if copy is None or copy > number:
        why = (
            "there is no copy of its state" if copy is None else f"its copy is of communication {copy}, which is later"
        )
        return (
            f"client {name!r}: {why}. It rebuilds its state from the server's model, and the history counts that in "
            f"the column rebuilt.{aside}"
        )
    assert backup is not None
    with replace_file(own) as file:
        file.write((backup / place).read_bytes())
    return f"client {name!r}: it continues from its copy, of communication {copy}.{aside}"


def _communication(path: Path) -> int:
    """Return the number of the last order in a client's file, after a check of the whole file."""
    meta = checkpoint.read(path)[1]
    if not isinstance(meta.get("number"), int):
        raise FedpdError(f"{path}: is not the state of a client. Give the client's folder of states.")
    return int(meta["number"])
