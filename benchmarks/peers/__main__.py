"""Install the other libraries, run the tasks with each in turns, and print the times."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.bar import bar
from benchmarks.peers import inputs
from benchmarks.peers.environments import ROOT, NotInstalledError, python_of, reason, version
from benchmarks.peers.roster import CORES, FEDPD, PEERS, Peer, Way
from benchmarks.peers.task import Outcome, Task, save

PASSES = 3
TASKS: dict[str, Callable[[], Task]] = {
    "linear": inputs.linear,
    "cnn": inputs.cnn,
    "flute": inputs.flute,
    "cifar": inputs.cifar,
    "stackoverflow": inputs.stackoverflow,
}
PATIENCE = 1200.0  # seconds that one process may take
WIDTH = 120  # characters of a line, if the output is no terminal


class Contender(NamedTuple):
    peer: Peer
    way: Way
    python: str
    version: str

    @property
    def label(self) -> str:
        return ": ".join(filter(None, (self.peer.name, self.way.label)))


class FailedError(Exception):
    """Says why a process failed."""


class Played(NamedTuple):
    contender: Contender
    outcomes: list[Outcome]  # one per pass
    failure: str | None = None  # why there are no more of them

    @property
    def seconds(self) -> float:
        return float(np.median([outcome.seconds for outcome in self.outcomes]))

    @property
    def loss(self) -> float:
        return self.outcomes[-1].loss


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--passes", type=int, default=PASSES, help="how many times each library runs every task")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="the tasks; by default all")
    arguments = parser.parse_args()
    passes, console = arguments.passes, Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"FedAvg, seconds per round: medians of {passes} processes each, in turns, float32, on {CORES} cores")
    contenders = [one for peer in (FEDPD, *PEERS) for one in installed(peer, console)]
    agree = [run(TASKS[name](), contenders, passes, console) for name in arguments.tasks]
    if not all(agree):
        raise SystemExit("Not everyone computed the same model: the times above compare different things.")


def installed(peer: Peer, console: Console) -> list[Contender]:
    try:
        with console.status(f"installing {peer.name}"):
            python = python_of(peer)
            number = version(python, peer.distribution)
    except NotInstalledError as why:
        console.print(f"{peer.name} could not be installed: {why}", markup=False)
        return []
    return [Contender(peer, way, python, number) for way in peer.ways]


def run(task: Task, contenders: list[Contender], passes: int, console: Console) -> bool:
    """Time and print one task, and return whether all that finished have the same loss."""
    with bar(console) as progress, tempfile.TemporaryDirectory() as folder:
        turns, path = progress.add_task("", total=passes * len(contenders)), Path(folder) / "task.npz"
        save(task, path)

        def tell(contender: Contender) -> None:
            progress.update(turns, description=f"{task.kind}: {contender.label}", advance=1)

        results = measure(path, contenders, passes, tell)
    finished = [played for played in results if played.outcomes]
    console.print(table(task, finished))
    for played in results:
        if played.failure is not None:
            console.print(f"{played.contender.label} failed: {played.failure}", markup=False)
    return all(same_loss(task, played, finished[0]) for played in finished)


def measure(path: Path, contenders: list[Contender], passes: int, tell: Callable[[Contender], None]) -> list[Played]:
    """Return the results. All run in turns, fedpd first, so that other load on the machine affects all of them."""
    results = [Played(contender, []) for contender in contenders]
    for _ in range(passes):
        for i, (contender, outcomes, failure) in enumerate(results):
            tell(contender)
            if failure is None:
                try:
                    outcomes.append(play(contender, path))
                except FailedError as why:
                    results[i] = Played(contender, outcomes, str(why))
    if not results[0].outcomes:
        raise SystemExit(f"fedpd itself failed: {results[0].failure}")
    return results


def play(contender: Contender, path: Path) -> Outcome:
    """Run one contender in a process of its own, and return its result."""
    places = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(places), **contender.way.variables}
    module = ("-m", "benchmarks.peers.play", contender.peer.module, str(path))
    with subprocess.Popen(
        (contender.python, *contender.way.launcher, *module),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=variables,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise FailedError(f"it took more than {PATIENCE:.0f} s") from None
    if process.returncode:
        raise FailedError(reason(stderr))
    return Outcome(**json.loads(stdout.splitlines()[-1]))


def same_loss(task: Task, played: Played, ours: Played) -> bool:
    return abs(played.loss - ours.loss) <= task.rounding * abs(ours.loss)


def table(task: Task, finished: list[Played]) -> Table:
    """Return the table, fedpd first. The quickest of a library's ways is bold."""
    ours = finished[0]
    result = Table(
        title=f"{task.title}: {task.steps} steps of {task.batch} samples; {task.rounds} rounds",
        caption="loss: after the last round, from the same start and batches\nmemory: the main process at its peak",
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("")
    result.add_column("version")
    for heading in ("ms per round", "quickest", "times fedpd's", "loss", "memory"):
        result.add_column(heading, justify="right")
    for played in finished:
        rivals = [one.seconds for one in finished if one.contender.peer is played.contender.peer]
        result.add_row(*cells(task, played, ours), style="bold" if played.seconds == min(rivals) else None)
    return result


def cells(task: Task, played: Played, ours: Played) -> tuple[str, ...]:
    """Return the cells of a row. Times of different computations are not compared: another loss has no ratio."""
    quickest, same = min(outcome.seconds for outcome in played.outcomes), same_loss(task, played, ours)
    ratio = "" if played is ours or not same else f"{played.seconds / ours.seconds:.1f}x"
    loss = f"{played.loss:.6f}" + ("" if same else ": ANOTHER")
    times = (f"{1e3 * played.seconds:.1f}", f"{1e3 * quickest:.1f}")
    memory = f"{max(outcome.memory for outcome in played.outcomes) / 2**20:,.0f} MB"
    return (played.contender.label, played.contender.version, *times, ratio, loss, memory)


if __name__ == "__main__":
    main()
