"""Run one task with one library, in its own Python: `python -m benchmarks.peers.play fedjax task.npz`.

It prints one line of JSON. The library is a module here with a function `play(Task) -> Outcome`. It is imported,
and not run as a script, so that processes which it starts find its functions by their names.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.peers import task


def main(name: str, path: str) -> None:
    outcome = import_module(f"benchmarks.peers.{name}").play(task.load(path))
    if os.environ.get("RANK", "0") == "0":  # of several processes that torchrun started, one reports
        print(json.dumps(outcome._replace(memory=peak_memory())._asdict()))


def peak_memory() -> int:
    """Return the bytes of this process at its peak; 0 where there is no /proc.

    `resource.getrusage` would not do: on Linux its peak is at least the size of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
