"""Flower's `flower-superexec`, which here survives an answer with HTTP 500 and keeps tokens secret.

A SuperLink answers with 500 if its database is locked for a moment. Flower's SuperExec and SuperNode end with such an
answer, and a ServerApp ends with its SuperExec. Here they ask again, as Flower does for 502, 503 and 504.

It signs its requests with the secret of its SuperNode, and starts programs without their tokens on the command line
(see `tokens`).
"""

import sys
from typing import Any

import httpx
from flwr.supercore.cli import flower_superexec
from flwr.supercore.retry import http_retry
from flwr.supercore.superexec.executor import subprocess_executor

from fedpd.flower.warm.tokens import HiddenTokens, take_secret


def retry_internal_errors() -> None:
    """Make Flower's clients in this process ask again after HTTP 500, with its own pauses, which grow."""
    known = http_retry._RETRYABLE_STATUS_CODES
    http_retry._RETRYABLE_STATUS_CODES = known | {httpx.codes.INTERNAL_SERVER_ERROR}


def keep_secrets() -> None:
    """Use the secret of the SuperNode that has started this process, if there is one, and hide tokens."""
    program: Any = sys.modules["flwr.supercore.cli.flower_superexec"]  # the package has a function of this name
    run, secret = program.run_superexec, take_secret()

    def run_with_secret(**options: Any) -> None:
        run(**(options | {"superexec_auth_secret": options["superexec_auth_secret"] or secret}))

    program.run_superexec = run_with_secret
    setattr(subprocess_executor, "subprocess", HiddenTokens())  # noqa: B010 - mypy: a module has no such type


def main() -> None:
    """Run `flower-superexec`."""
    retry_internal_errors()
    keep_secrets()
    flower_superexec()


if __name__ == "__main__":
    main()
