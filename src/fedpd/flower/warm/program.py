"""Writes the programs that belong before Flower's own on PATH: its client program, its SuperNode and its SuperExec."""

import shlex
import sys
from pathlib import Path

from fedpd.base.atomic import replace_file
from fedpd.flower.warm import shim

CLIENT, NODE, EXECUTOR = "flwr-clientapp", "flower-supernode", "flower-superexec"


def write_programs(folder: Path) -> Path:
    """Write the programs to a folder, and return the folder.

    `flwr-clientapp` keeps one process warm per SuperNode (see `shim`), `flower-supernode` pauses less (see
    `supernode`), and `flower-superexec` survives an error of its server (see `superexec`). They use this Python.
    """
    own = Path(sys.executable).absolute().parent / CLIENT
    _write(folder / CLIENT, [sys.executable, "-IS", str(Path(shim.__file__).absolute()), str(own)])
    _write(folder / NODE, [sys.executable, "-m", "fedpd.flower.warm.supernode"])
    _write(folder / EXECUTOR, [sys.executable, "-m", "fedpd.flower.warm.superexec"])
    return folder


def _write(path: Path, command: list[str]) -> None:
    with replace_file(path) as file:
        file.write(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode())
    path.chmod(0o700)
