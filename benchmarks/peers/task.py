"""The task that all libraries compute, as a file, and the result. Only NumPy: each environment imports this."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ALPHA, BETA = 1.0, 0.1  # of the logistic problem's penalty, beta sum_d alpha w_d^2 / (1 + alpha w_d^2)
ARRAYS = ("x", "y", "sizes", "cohorts")
SCALARS = ("kind", "title", "batch", "steps", "step", "rounding")


class Task(NamedTuple):
    """FedAvg, in which the agents of a round take the same number of SGD steps, each through its samples in order.

    An agent that comes to the end of its samples starts again with its first one. The server takes the plain mean of
    the agents' models.
    """

    kind: str  # the model: "linear", "cnn", "softmax", "cifar" or "tags"
    title: str
    x: np.ndarray  # (M, ...) the samples of all agents, one agent after another
    y: np.ndarray  # (M,): -1 or +1, or the class
    sizes: np.ndarray  # (N,) the agents' numbers of samples
    cohorts: np.ndarray  # (rounds, K) the agents that take part in each round
    start: dict[str, np.ndarray]  # by name: "w", or "Conv_0/kernel" as flax has it
    batch: int
    steps: int  # per agent and round
    step: float
    rounding: float  # relative difference of losses after the last round that rounding explains

    @property
    def rounds(self) -> int:
        """The number of rounds. The first one, which compiles and wakes threads, is not timed."""
        return len(self.cohorts)

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def taking_part(self) -> np.ndarray:
        """The agents that take part in any round, in ascending order."""
        return np.unique(self.cohorts)

    def samples(self, agents: Iterable[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return the x and y of each agent's steps in a round, (steps * batch, ...)."""
        ends = np.cumsum(self.sizes, dtype=np.int64)

        def rows(agent: int) -> Any:
            size, taken = int(self.sizes[agent]), self.batch * self.steps
            first = int(ends[agent]) - size
            return slice(first, first + taken) if taken <= size else first + np.arange(taken) % size

        return {int(i): (self.x[rows(int(i))], self.y[rows(int(i))]) for i in agents}

    def last_samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the x and y of all agents of the last round, on which all libraries compute the final loss."""
        parts = self.samples(self.cohorts[-1]).values()
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


class Outcome(NamedTuple):
    seconds: float  # per round
    loss: float  # of the model after the last round, the mean over `Task.last_samples`
    memory: int = 0  # bytes of the main process at its peak


def save(task: Task, path: Path) -> None:
    arrays: dict[str, Any] = {name: getattr(task, name) for name in (*ARRAYS, *SCALARS)}
    arrays |= {f"start/{name}": array for name, array in task.start.items()}
    np.savez(path, allow_pickle=False, **arrays)


def load(path: str | Path) -> Task:
    with np.load(path) as file:
        arrays = {name: file[name] for name in ARRAYS} | {name: file[name].item() for name in SCALARS}
        start = {name.removeprefix("start/"): file[name] for name in file.files if name.startswith("start/")}
        return Task(start=start, **arrays)


def pace(marks: Sequence[float]) -> float:
    """Return seconds per round: the median time from the end of one round to the end of the next."""
    return float(np.median(np.diff(marks)))
