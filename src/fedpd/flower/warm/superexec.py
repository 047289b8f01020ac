"""Flower's `flower-superexec`, which here survives an answer with HTTP 500.

A SuperLink answers with 500 if its database is locked for a moment. Flower's SuperExec and SuperNode end with such an
answer, and a ServerApp ends with its SuperExec. Here they ask again, as Flower does for 502, 503 and 504.
"""

import httpx

from fedpd.flower.private import flower_superexec, retry_statuses


def retry_internal_errors() -> None:
    """Make Flower's clients in this process ask again after HTTP 500, with its own pauses, which grow."""
    retry_statuses(httpx.codes.INTERNAL_SERVER_ERROR)


def main() -> None:
    """Run `flower-superexec`."""
    retry_internal_errors()
    flower_superexec()


if __name__ == "__main__":
    main()
