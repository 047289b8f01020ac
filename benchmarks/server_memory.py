"""Memory of a federation's server, in models: `python -m benchmarks.server_memory`.

The server is this process. It sends and receives messages with Flower's own functions, but by files instead of HTTP.
The clients are in another process. The table has the peak of anonymous memory in each phase, less the memory before the
model was made, divided by the size of the model.
"""

import argparse
import bisect
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpd import algorithms, oracles
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate

ALGORITHM = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.5, iterations=1))
OTHER, BEFORE = "computing", "before"
LAYERS = 4


def start(size: int) -> dict[str, np.ndarray]:
    """Return a model of `size` bytes with equal layers."""
    rng = np.random.default_rng(0)  # Flower sends equal arrays once, so the layers differ
    return {f"layer-{i}": rng.random(size // 4 // LAYERS, np.float32) for i in range(LAYERS)}


def losses(model: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Return the losses of a quadratic, whose gradient is cheap."""
    return sum(((leaf - 0.5) ** 2).mean() for leaf in model.values()) + 0 * batch["x"]


def serve_clients(requests: Connection, folder: Path, agents: int, size: int) -> None:
    """Answer messages, which are files in a folder, until None comes."""

    def local(context: Context) -> Local:
        return Local(losses, {"x": np.zeros(1, np.float32)})

    app = client_app(lambda config: ALGORITHM, lambda config: start(size), local)
    grid = InProcessGrid(app, agents, {}, **{"fedpd-state": str(folder / "state")})
    while (tree := requests.recv()) is not None:
        identity, objects = tree
        contents = {name: (folder / name).read_bytes() for name in objects}
        message = inflate_object_from_contents(identity, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = identity
        reply = grid.deliver(message)
        assert reply is not None
        requests.send(write_objects(reply, folder))


def write_objects(message: Message, folder: Path) -> tuple[str, list[str]]:
    """Write a message as Flower pushes it; return its identity and those of its parts."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = get_all_nested_objects(message)
        names = [tree.object_id for tree in iterate_object_tree(get_object_tree(message))]
        push_objects(objects, partial(_write, folder))
    return message.metadata.message_id, names


def _write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


SAMPLER = """
import sys, time
while True:
    with open(f"/proc/{sys.argv[1]}/status") as file:
        found = next(line for line in file if line.startswith("RssAnon"))
    print(time.monotonic(), int(found.split()[1]) * 1024, flush=True)
    time.sleep(0.001)
"""


class Meter:
    """The peak of this process's anonymous memory in each phase, as a process of its own sees it.

    Args:
        samples: A new file for the samples.
    """

    def __init__(self, samples: Path) -> None:
        self.samples, self.phases = samples, [(time.monotonic(), OTHER)]
        with samples.open("wb") as file:
            self.sampler = subprocess.Popen([sys.executable, "-IS", "-c", SAMPLER, str(os.getpid())], stdout=file)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the peak of this block under a name."""
        outer = self.phases[-1][1]
        self.phases.append((time.monotonic(), phase))
        try:
            yield
        finally:
            self.phases.append((time.monotonic(), outer))

    def peaks(self) -> dict[str, int]:
        """End the measurement, and return the peak of each phase in bytes, and the memory before the first."""
        self.sampler.kill()
        self.sampler.wait()
        rows = [line.split() for line in self.samples.read_text(encoding="ascii").splitlines()[:-1]]
        begins, names = [moment for moment, _ in self.phases], [name for _, name in self.phases]
        found: dict[str, int] = {}
        for moment, size in rows:
            name = names[max(0, bisect.bisect_right(begins, float(moment)) - 1)]
            found[name] = max(found.get(name, 0), int(size))
        return found


class FileGrid(Grid):
    """A grid whose messages are files, answered by another process."""

    def __init__(self, requests: Connection, folder: Path, agents: int, meter: Meter) -> None:
        self.requests, self.folder, self.agents, self.meter = requests, folder, agents, meter
        self.replies: dict[str, tuple[str, list[str]]] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run."""
        return Run.create_empty(1)

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Flower has replaced this function by `Message`."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return range(1, self.agents + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Write the messages, and ask the clients."""
        taken = []
        for message in messages:
            with self.meter.during("sending"):
                identity, names = write_objects(message, self.folder)
            self.requests.send((identity, names))
            self.replies[identity] = self.requests.recv()
            taken.append(identity)
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Read replies as Flower does."""
        found = []
        for asked in [one for one in message_ids if one in self.replies]:
            with self.meter.during("receiving"):
                identity, names = self.replies.pop(asked)
                contents = pull_objects(names, lambda name: (self.folder / name).read_bytes())
                message = inflate_object_from_contents(identity, contents)
                assert isinstance(message, Message)
                message.metadata.__dict__["_message_id"] = identity
                found.append(message)
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))


def measure(size: int, agents: int, rounds: int) -> dict[str, float]:
    """Return the peaks of the phases, in models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        clients = multiprocessing.get_context("spawn").Process(
            target=serve_clients, args=(theirs, folder, agents, size), daemon=True
        )
        clients.start()
        meter = Meter(folder / "samples")
        with meter.during(BEFORE):
            time.sleep(1.0)
        settings = Settings(agents=agents, rounds=rounds, evaluate_every=0, poll=0.01, out=folder / "out")
        federate(FileGrid(ours, folder, agents, meter), ALGORITHM, start(size), settings)
        peaks = meter.peaks()
        ours.send(None)
        clients.join(10)
        return {phase: (peak - peaks[BEFORE]) / size for phase, peak in peaks.items()}


def main() -> None:
    """Print the peaks of a small model, which is the memory of the programs, and of a large one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    measure(2**10, given.agents, 1)  # imports and compiles
    for phase, models in measure(given.megabytes * 10**6, given.agents, given.rounds).items():
        print(f"{phase:12}{models:6.2f} models")


if __name__ == "__main__":
    main()
