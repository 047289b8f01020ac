"""Writes the programs that belong before Flower's own on PATH: its client program, its SuperNode and its SuperExec."""

import shlex
import sys
import sysconfig
from pathlib import Path

from fedpd.base.atomic import replace_file
from fedpd.flower.warm import shim, supervisor

CLIENT, NODE, EXECUTOR = "flwr-clientapp", "flower-supernode", "flower-superexec"
LINK = "flower-superlink"
STATUS = "/v1/fedpd/node"  # the path at which a SuperLink says how it sees the node that asks


def write_programs(folder: Path) -> Path:
    """Write the programs to a folder, and return the folder.

    `flwr-clientapp` keeps one process warm per SuperNode (see `shim`), `flower-supernode` pauses less (see
    `supernode`), `flower-superexec` survives an error of its server and starts again after a crash (see `superexec`
    and `supervisor`), and `flower-superlink` refuses replies that are too large (see `superlink`). They all use
    this Python.
    """
    own = str(bin_folder() / CLIENT)
    _write(folder / CLIENT, [sys.executable, "-IS", str(Path(shim.__file__).absolute()), own])
    _write(folder / NODE, [sys.executable, "-m", "fedpd.flower.warm.supernode"])
    _write(folder / EXECUTOR, superexec_command())
    _write(folder / LINK, superlink_command())
    return folder


def bin_folder() -> Path:
    """Return the folder of Flower's programs: beside this Python, or where its pip installs programs.

    The two differ for the Python of Debian and Ubuntu (/usr/bin and /usr/local/bin), and for `pip install --user`.
    """
    beside = Path(sys.executable).absolute().parent
    others = (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return next((folder for folder in (beside, *map(Path, others)) if (folder / CLIENT).exists()), beside)


def superexec_command() -> list[str]:
    """Return the command of a SuperExec that starts again when it dies, without its arguments."""
    return [sys.executable, "-IS", str(Path(supervisor.__file__).absolute())]


def superlink_command() -> list[str]:
    """Return the command of a SuperLink with fedpd's limits, without its arguments."""
    return [sys.executable, "-m", "fedpd.flower.warm.superlink"]


def _write(path: Path, command: list[str]) -> None:
    with replace_file(path) as file:
        file.write(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode())
    path.chmod(0o700)
