"""The live page of a federation on this machine: the curves of its newest run, its clients and its processes.

`fedpd up --dashboard` starts it as one more process of the federation. It only reads the federation's folder.

    python -m fedpd.flower.local.dashboard FOLDER HOST PORT
"""

import sys
from pathlib import Path
from typing import Any

from fedpd.experiments.federated import CHECKPOINTS
from fedpd.flower.local.federation import read
from fedpd.flower.local.programs import find
from fedpd.report import watch

EVERY = 1.0  # the refresh interval in seconds
DEPTH = 3  # the largest number of folders in `out`


def newest_run(folder: Path) -> Path | None:
    """Return the folder of the run with the newest checkpoint; None if there is none."""
    patterns = ["/".join(["*"] * depth + [CHECKPOINTS, "round-*.safetensors"]) for depth in range(1, DEPTH + 1)]
    found: list[tuple[float, Path]] = []
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        try:
            found.append((path.stat().st_mtime, path.parent.parent))
        except FileNotFoundError:  # the run has removed an old one
            continue
    return max(found)[1] if found else None


def state(folder: Path) -> dict[str, Any]:
    """Return what the page shows: the newest run as `watch.state` does, and which processes run."""
    run, federation = newest_run(folder), read(folder)
    shown = {"name": folder.name, **watch.EMPTY} if run is None else watch.state(run)
    members = () if federation is None else federation.members
    return shown | {"processes": [{"name": member.name, "runs": find(member) is not None} for member in members]}


def main(folder: str, host: str, port: str) -> None:
    """Serve the page until this process is ended."""
    watch.server(lambda: state(Path(folder)), host, int(port), EVERY).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
