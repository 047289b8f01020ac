"""Flower's `flower-supernode` with shorter pauses, which survives an answer with HTTP 500.

Flower's SuperNode sleeps 3 s when there is no message and 0.5 s while its ClientApp works, and has no setting for it.
Here the first pauses after a message are short and double up to 3 s: the next order usually comes soon after a reply,
and a SuperNode without work asks the SuperLink as rarely as before. FEDPD_WARM=0 restores Flower's pauses.
"""

import os
import time

from fedpd.flower.private import flower_supernode, replace_pauses
from fedpd.flower.warm import log
from fedpd.flower.warm.superexec import retry_internal_errors

WORKING = 0.1  # seconds between two checks whether the ClientApp has replied
FIRST = 0.25  # seconds until the first check for the next order


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
    """Change Flower's SuperNode in this process: its log, retries, and shorter pauses unless FEDPD_WARM=0."""
    log.prepare()
    retry_internal_errors()
    if os.environ.get("FEDPD_WARM", "") != "0":
        replace_pauses(Pauses())


def main() -> None:
    """Run `flower-supernode`."""
    prepare()
    flower_supernode()


if __name__ == "__main__":
    main()
