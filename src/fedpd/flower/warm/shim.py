"""The `flwr-clientapp` that Flower starts for every message: it hands the message to one warm process per SuperNode.

Flower starts this program by name, and imports of JAX and PyTorch take seconds. This file imports nothing of fedpd and
runs without site-packages, so it starts in milliseconds. It connects to the warm process of its SuperNode
(`fedpd.flower.warm.process`). If there is none, this process becomes the warm process. It runs Flower's own program
if FEDPD_WARM=0, if the warm process is busy, or if the warm process ends before it has taken the message.

    python -IS shim.py FLOWERS_OWN_PROGRAM ARGUMENTS OF flwr-clientapp
"""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

READY_SECONDS = 2.0  # time for an idle warm process to accept a message
READY, TAKEN, DONE, FAILED = b"r", b"t", b"0", b"1"  # what the warm process sends


def main(program: str, arguments: Sequence[str], seconds: float = READY_SECONDS) -> int:
    """Hand a message to the warm process if it is ready in time, and return the exit code of the ClientApp."""
    wanted = os.environ.get("FEDPD_WARM", "") != "0" and hasattr(socket, "AF_UNIX")
    if not wanted or "--parent-pid" not in arguments or "--allow-runtime-dependency-installation" in arguments:
        run_cold(program, arguments)
    place = socket_path(arguments)
    try:
        connection = connect(place, seconds)
    except (FileNotFoundError, ConnectionError):
        run(sys.executable, ["-m", "fedpd.flower.warm.process", program, *arguments])
    except OSError:  # busy for another message
        run_cold(program, arguments)
    with connection:
        if not hand_over(connection, with_token(arguments)):
            run_cold(program, arguments)
        return 0 if receive(connection) == DONE else 1


def socket_path(arguments: Sequence[str]) -> Path:
    """Return the socket of the warm process of a SuperNode, which starts its programs from one SuperExec."""
    home = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser()
    return home / "fedpd-warm" / f"{arguments[list(arguments).index('--parent-pid') + 1]}.sock"


def with_token(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the token itself in place of its file, which the warm process cannot open."""
    words = list(arguments)
    if "--token-file" in words:
        place = words.index("--token-file")
        words[place : place + 2] = ["--token", Path(words[place + 1]).read_text(encoding="utf-8")]
    return words


def connect(place: Path, seconds: float) -> socket.socket:
    """Return a connection to the warm process after it has said, within some seconds, that it is ready.

    Raises:
        OSError: If there is none, or it is busy.
    """
    before = os.open(".", os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(place.parent)  # the path of a socket may have 107 bytes, and FLWR_HOME may have more
        connection.settimeout(seconds)
        connection.connect(place.name)
        if connection.recv(1) != READY:
            raise ConnectionRefusedError("the warm process ends")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    finally:
        os.fchdir(before)
        os.close(before)
    return connection


def hand_over(connection: socket.socket, arguments: Sequence[str]) -> bool:
    """Send the arguments, and return whether the warm process has taken the message."""
    try:
        connection.sendall("\0".join(arguments).encode())
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return receive(connection) == TAKEN


def receive(connection: socket.socket) -> bytes:
    """Return the next sign of the warm process; nothing if it has died."""
    try:
        return connection.recv(1)
    except OSError:
        return b""


def run_cold(program: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Flower's own program."""
    run(program, arguments)


def run(program: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a program."""
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
