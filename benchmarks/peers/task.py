"""The task that all libraries compute, as a file, and the result. Only NumPy: each environment imports this."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ALPHA, BETA = 1.0, 0.1  # of the logistic problem's penalty, beta sum_d alpha w_d^2 / (1 + alpha w_d^2)
SCALARS = ("kind", "batch", "step", "rounds", "rounding")


class Task(NamedTuple):
    """FedAvg with one epoch of SGD per agent and round."""

    kind: str  # "linear": penalised logistic regression, or "cnn": fedpd.networks.SmallCNN
    x: np.ndarray  # (N, n, D) features, or (N, n, 28, 28) images
    y: np.ndarray  # (N, n): -1 or +1, or the class
    start: dict[str, np.ndarray]  # by name: "w", or "Conv_0/kernel" as flax has it
    batch: int
    step: float
    rounds: int  # the first one, which compiles and wakes threads, is not timed
    rounding: float  # relative difference of losses after the last round that rounding explains

    @property
    def steps(self) -> int:
        return self.x.shape[1] // self.batch

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1


class Outcome(NamedTuple):
    seconds: float  # per round
    loss: float  # of the model after the last round, the mean over all agents' samples


def save(task: Task, path: Path) -> None:
    arrays: dict[str, Any] = {name: getattr(task, name) for name in ("x", "y", *SCALARS)}
    arrays |= {f"start/{name}": array for name, array in task.start.items()}
    np.savez(path, allow_pickle=False, **arrays)


def load(path: str | Path) -> Task:
    with np.load(path) as file:
        scalars = {name: file[name].item() for name in SCALARS}
        start = {name.removeprefix("start/"): file[name] for name in file.files if name.startswith("start/")}
        return Task(x=file["x"], y=file["y"], start=start, **scalars)


def pace(marks: Sequence[float]) -> float:
    """Return seconds per round: the median time from the end of one round to the end of the next."""
    return float(np.median(np.diff(marks)))
