"""The `flower-superexec` that Flower starts: it runs the SuperExec as its child, and starts it again when it dies.

Nothing else does. A SuperNode starts its SuperExec once and does not look at it again: without the SuperExec, the node
stays online and answers no message. systemd sees only the SuperNode, and `fedpd up` has no systemd.

This file imports nothing of fedpd and runs without site-packages, so it costs 11 MB of memory. With Flower's modules it
would cost 70 MB, for every SuperNode of a machine.

    python -IS supervisor.py ARGUMENTS OF flower-superexec
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

SUPEREXEC = "fedpd.flower.warm.superexec"
FIRST, LONGEST = 1.0, 60.0  # seconds before the first start after a death, and at most
GRACE = 7.0  # seconds for the SuperExec to end; Flower's programs force their end after 5 s
WANTED = (0, 2)  # exit codes of a SuperExec that was asked to end, and of a wrong command line


def main(arguments: Sequence[str]) -> int:
    """Run the SuperExec until it ends by itself, and return its exit code; end it when this process gets a signal."""

    def end(number: int, frame: object) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, end)
    return supervise([sys.executable, "-m", SUPEREXEC, *with_parent(arguments)])


def with_parent(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a process with which the SuperExec ends: that of its SuperNode, or else this one."""
    return [*arguments] if "--parent-pid" in arguments else [*arguments, "--parent-pid", str(os.getpid())]


def supervise(command: Sequence[str], first: float = FIRST, longest: float = LONGEST) -> int:
    """Run a program, and start it again when it dies; return its exit code when it has ended as wanted.

    Args:
        command: The program and its arguments.
        first: Seconds before the first new start. Each further pause is twice as long.
        longest: Seconds of the longest pause. A program that ran longer than this starts with `first` again.
    """
    pause = first
    while True:
        began = time.monotonic()
        code = run(command)
        if code in WANTED:
            return code
        if time.monotonic() - began > longest:
            pause = first
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        print(f"The SuperExec ended with {why}. It starts again in {pause:g} s.", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(2 * pause, longest)


def run(command: Sequence[str]) -> int:
    """Return the exit code of a program; end it if this process is to end."""
    child = subprocess.Popen(command)
    try:
        return child.wait()
    finally:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
