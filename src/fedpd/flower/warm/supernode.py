"""Flower's `flower-supernode` with shorter pauses, which survives errors and keeps its work from other users.

Flower's SuperNode sleeps 3 s when there is no message and 0.5 s while its ClientApp works, and has no setting for it.
Here the first pauses after a message are short and double up to 3 s: the next order usually comes soon after a reply,
and a SuperNode without work asks the SuperLink as rarely as before. FEDPD_WARM=0 restores Flower's pauses.

It asks again after HTTP 500 (see `superexec`) and after errors of TLS (see `fleet`). If its loop ends all the same, it
ends what it has started and starts again, as the same process: Flower's own process would live on without its loop.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import psutil

from fedpd.flower.private import flower_supernode, protect_runtime, replace_pauses
from fedpd.flower.warm import log
from fedpd.flower.warm.fleet import NotAdmittedError, persist
from fedpd.flower.warm.superexec import retry_internal_errors
from fedpd.flower.warm.tokens import new_secret

own_log = logging.getLogger(f"flwr.{__name__}")

WORKING = 0.1  # seconds between two checks whether the ClientApp has replied
FIRST = 0.25  # seconds until the first check for the next order
PAUSE = "FEDPD_RESTART_PAUSE"  # in the environment of a process that starts again: the seconds to wait before that
SHORTEST, LONGEST = 1.0, 60.0
GRACE = 7.0  # seconds for the SuperExec and its programs to end


class Pauses:
    """Stands for the module `time` in Flower's loop, which only sleeps."""

    def __init__(self) -> None:
        self.pause = FIRST

    def sleep(self, seconds: float) -> None:
        """Sleep for at most the time that Flower asks for; Flower asks for less than 1 s only while there is work."""
        if seconds < 1.0:
            self.pause = FIRST
            time.sleep(min(seconds, WORKING))
        else:
            time.sleep(min(seconds, self.pause))
            self.pause = min(2 * self.pause, seconds)


def prepare() -> None:
    """Change Flower's SuperNode in this process: its log, retries, a secret, and shorter pauses unless FEDPD_WARM=0."""
    log.prepare()
    retry_internal_errors()
    persist()
    protect_runtime(new_secret())
    if os.environ.get("FEDPD_WARM", "") != "0":
        replace_pauses(Pauses())


def run(loop: Callable[[], object] | None = None) -> NoReturn:
    """Run a SuperNode's loop, and start this program again when the loop has ended by itself.

    A signal ends the process, as Flower does it.

    Args:
        loop: Runs until it fails; None: Flower's SuperNode.
    """
    loop = loop or flower_supernode
    pause = float(os.environ.pop(PAUSE, 0.0))
    time.sleep(pause)
    began = time.monotonic()
    try:
        loop()
        own_log.error("The SuperNode's loop has ended.")
    except NotAdmittedError as error:
        own_log.error("Failed to activate SuperNode. %s", error)
    pause = SHORTEST if time.monotonic() - began > LONGEST else min(max(2 * pause, SHORTEST), LONGEST)
    own_log.error("It starts again in %g s.", pause)
    start_again(pause)


def start_again(pause: float) -> NoReturn:
    """End what this process has started, and replace it by the same program, which waits before it begins."""
    started = psutil.Process().children(recursive=True)
    for child in started:
        try:
            child.terminate()
        except psutil.NoSuchProcess:
            continue
    for child in psutil.wait_procs(started, timeout=GRACE)[1]:
        child.kill()
    os.environ[PAUSE] = f"{pause:g}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Run `flower-supernode`."""
    prepare()
    run()


if __name__ == "__main__":
    main()
