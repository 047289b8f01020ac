"""Flower's `flower-superexec`, which here survives an answer with HTTP 500 and keeps tokens secret.

A SuperLink answers with 500 if its database is locked for a moment. Flower's SuperExec and SuperNode end with such an
answer, and a ServerApp ends with its SuperExec. Here they ask again, as Flower does for 502, 503 and 504.

It also keeps the work of a client from other users of its machine. A SuperNode and its programs talk over 127.0.0.1,
which every user of the machine can reach. Flower asks for no secret there, and writes the token of a message on a
command line, which every user can read. Here the SuperNode makes a secret at every start, its SuperExec gets it in its
environment and signs its requests with it, and a token travels in a file without a name.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import httpx

from fedpd.flower.private import flower_superexec, retry_statuses, set_superexec

VARIABLE = "FEDPD_SUPEREXEC_SECRET"  # in the environment, which only the same user can read
TOKEN, TOKEN_FILE = "--token", "--token-file"


def new_secret() -> bytes:
    """Return a new secret, which the programs that this process starts find in their environment."""
    secret = os.urandom(32)
    os.environ[VARIABLE] = secret.hex()
    return secret


def take_secret() -> bytes | None:
    """Return the secret from the environment, and remove it: apps do not need it."""
    secret = os.environ.pop(VARIABLE, "")
    return bytes.fromhex(secret) if secret else None


def hide_token(arguments: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return arguments in which a file without a name has taken the place of a token, and its open descriptor."""
    words = list(arguments)
    if TOKEN not in words:
        return words, []
    place = words.index(TOKEN)
    with tempfile.TemporaryFile() as file:
        file.write(words[place + 1].encode())
        file.flush()
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    words[place : place + 2] = [TOKEN_FILE, f"/dev/fd/{descriptor}"]
    return words, [descriptor]


class HiddenTokens:
    """Stands for the module `subprocess` where Flower starts the program of a task: it hides the token."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":  # noqa: N802 - its name there
        """Start a program."""
        words, descriptors = hide_token(arguments)
        try:
            return subprocess.Popen(words, pass_fds=descriptors, **options)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def retry_internal_errors() -> None:
    """Make Flower's clients in this process ask again after HTTP 500, with its own pauses, which grow."""
    retry_statuses(httpx.codes.INTERNAL_SERVER_ERROR)


def keep_secrets() -> None:
    """Use the secret of the SuperNode that has started this process, if there is one, and hide tokens."""
    set_superexec(take_secret(), HiddenTokens())


def main() -> None:
    """Run `flower-superexec`."""
    retry_internal_errors()
    keep_secrets()
    flower_superexec()


if __name__ == "__main__":
    main()
