"""Processor seconds of a communication in one process, by clients and by masks: `python -m benchmarks.in_process`.

The server and all clients are this process (`InProcessGrid`), so a communication without waiting is one number. FedPD
does one local step on a loss that costs nothing. Each case runs several times, in turns, and the table has the smallest
processor time of a communication, in all and of the clients' apps alone. The rest is the server's and Flower's.
"""

import argparse
import logging
import os
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message

from fedpd import algorithms, oracles
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate

ALGORITHM = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=1))
BOUND, DEADLINE = 16.0, 3600.0


class Times(NamedTuple):
    """Processor seconds of one communication: in all, and of the clients' apps."""

    all: float
    clients: float


class Timed(InProcessGrid):
    """Adds up the processor time of the clients' apps."""

    seconds = 0.0

    def deliver(self, message: Message) -> Message | None:
        began = time.process_time()
        reply = super().deliver(message)
        self.seconds += time.process_time() - began
        return reply


def losses(model: Any, batch: Any) -> Any:
    return batch["a"] * model["w"][0]


def local(context: Context) -> Local:
    return Local(losses, {"a": np.ones(1)})


def measure(clients: int, megabytes: float, masks: bool, rounds: int) -> Times:
    """Return the smallest processor time of a communication, without the first two, which compile."""

    def start(config: Any) -> Any:
        return {"w": np.zeros(int(megabytes * 2**20 / 8))}

    def note(number: int, model: Any, row: Any) -> None:
        moments.append((time.process_time(), grid.seconds))

    grid = Timed(client_app(lambda config: ALGORITHM, start, local, secure=masks), clients, {})
    moments: list[tuple[float, float]] = []
    settings = Settings(agents=clients, rounds=rounds + 2, evaluate_every=0, deadline=DEADLINE, poll=0.001)
    federate(grid, ALGORITHM, start(None), settings._replace(secure_range=BOUND * masks), callback=note)
    return Times(*np.diff(np.array(moments), axis=0)[2:].min(axis=0))


def main() -> None:
    """Measure every case in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=2)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cases = [(clients, masks) for clients in given.clients for masks in (False, True)]
    found: dict[tuple[int, bool], Times] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDPD_STATE"] = folder
        for _ in range(given.repetitions):
            for case in cases:
                times = measure(case[0], given.megabytes, case[1], given.rounds)
                found[case] = Times(*map(min, times, found.get(case, times)))
    print(f"{given.megabytes:g} MB, load of this machine {os.getloadavg()[0]:.1f}")
    print(f"{'clients':>8}{'masks':>7}{'seconds':>10}{'of clients':>12}{'per client and MB':>19}")
    for (clients, masks), times in found.items():
        share = times.all / clients / given.megabytes
        print(f"{clients:8}{'yes' if masks else 'no':>7}{times.all:10.2f}{times.clients:12.2f}{share:19.4f}")


if __name__ == "__main__":
    main()
