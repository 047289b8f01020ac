"""Where the time of a communication goes in a real federation: `python -m benchmarks.deployed`.

It starts a SuperLink and N SuperNodes on this machine and runs the app of `fedpd new-app`, first with Flower's own
programs (a new process for every message) and then with fedpd's warm processes. It reports the seconds and the CPU
seconds of each program per communication, without the first communications, which import and compile.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from fedpd.flower import local
from fedpd.flower.local import LocalFederation, programs
from fedpd.flower.local.new_app import new_app

PARTS = ("SuperLink", "ServerApp", "SuperNodes", "ClientApps")
FLOWERS_OWN = {"FEDPD_WARM": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}
SKIPPED = 2  # communications that import and compile
POLL = 0.05
LONGEST = 500.0


class Usage(NamedTuple):
    """The use of a machine per communication.

    Attributes:
        seconds: The median of the seconds between two communications.
        cpu: CPU seconds per communication, by part.
    """

    seconds: float
    cpu: dict[str, float]


def part_of(process: psutil.Process) -> str:
    """Return the part of the federation that a process belongs to."""
    words = " ".join(process.cmdline())
    if "flwr-clientapp" in words:
        return "ClientApps"
    if "flwr-serverapp" in words:
        return "ServerApp"
    return "SuperLink" if "superlink" in words else "SuperNodes"


class Meter:
    """The CPU seconds of all processes of a federation, also of those that have ended."""

    def __init__(self, federation: LocalFederation) -> None:
        self.heads = [psutil.Process(member.pid) for member in federation.members]
        self.seen: dict[int, tuple[str, float]] = {}

    def totals(self) -> dict[str, float]:
        """Return the CPU seconds so far, by part."""
        for process in (one for head in self.heads for one in (head, *head.children(recursive=True))):
            try:
                times = process.cpu_times()
                self.seen[process.pid] = part_of(process), times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return {part: sum(cpu for which, cpu in self.seen.values() if which == part) for part in PARTS}


def measure(federation: LocalFederation, app: Path, rounds: int) -> Usage:
    """Run the app and return its use of the machine."""
    meter, out = Meter(federation), federation.folder / "results"
    words = f"agents={federation.agents} rounds={rounds} evaluate-every=0"
    programs.flwr(federation.home, "run", str(app), programs.CONNECTION, "--run-config", words)
    moments: list[tuple[float, dict[str, float]]] = []
    began = time.monotonic()
    while len(moments) < rounds:
        if time.monotonic() > began + LONGEST:
            raise SystemExit(f"the run did not end within {LONGEST:g} s: see {federation.folder / 'logs'}")
        totals = meter.totals()
        names = [path.stem for path in (out / "checkpoints").glob("round-*.safetensors")]
        if max((int(name.removeprefix("round-")) for name in names), default=0) > len(moments):
            moments.append((time.monotonic(), totals))
        time.sleep(POLL)
    kept = moments[SKIPPED:]
    pauses = [after[0] - before[0] for before, after in pairwise(kept)]
    cpu = {part: (kept[-1][1][part] - kept[0][1][part]) / len(pauses) for part in PARTS}
    return Usage(median(pauses), cpu)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start in this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main() -> None:
    """Measure both ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", default="torch", help="jax, torch or numpy")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    print(f"{given.framework}, {given.agents} clients, load of this machine {os.getloadavg()[0]:.1f}")
    print(f"{'':24}{'seconds':>10}" + "".join(f"{'CPU ' + part:>16}" for part in PARTS))
    for label, values in (("Flower's own programs", FLOWERS_OWN), ("fedpd's warm processes", {})):
        with tempfile.TemporaryDirectory() as folder, environment(values):
            app = Path(folder) / "measured-app"
            new_app(app, given.framework)
            federation = local.up(Path(folder) / "federation", given.agents)
            try:
                usage = measure(federation, app, given.rounds)
            finally:
                local.down(federation.folder)
        numbers = "".join(f"{usage.cpu[part]:16.2f}" for part in PARTS)
        print(f"{label:24}{usage.seconds:10.1f}{numbers}", flush=True)


if __name__ == "__main__":
    main()
