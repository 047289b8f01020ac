"""Flower's `flower-superexec`, which here survives an answer with HTTP 500 and keeps tokens secret.

A SuperLink answers with 500 if its database is locked for a moment. Flower's SuperExec and SuperNode end with such an
answer, and a ServerApp ends with its SuperExec. Here they ask again, as Flower does for 502, 503 and 504.

It signs its requests with the secret of its SuperNode, and starts programs without their tokens on the command line
(see `tokens`).
"""

import httpx

from fedpd.flower.private import flower_superexec, retry_statuses, set_superexec
from fedpd.flower.warm.tokens import HiddenTokens, take_secret


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
