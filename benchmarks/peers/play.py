"""Run one task with one library, in its own Python: `python -m benchmarks.peers.play fedjax task.npz`.

It prints one line of JSON. The library is a module here with a function `play(Task) -> Outcome`. It is imported,
and not run as a script, so that processes which it starts find its functions by their names.
"""

import json
import os
import resource
import sys
from importlib import import_module

from benchmarks.peers import task


def main(name: str, path: str) -> None:
    outcome = import_module(f"benchmarks.peers.{name}").play(task.load(path))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if os.environ.get("RANK", "0") == "0":  # of several processes that torchrun started, one reports
        print(json.dumps(outcome._replace(memory=memory)._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
