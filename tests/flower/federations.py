"""A small problem, whole in a simulation and split among the clients of an in-process grid."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from fedpd import Algorithm, Problem, problems
from fedpd.core import Tree
from fedpd.flower import Federated, InProcessGrid, Local, Settings, client_app, federate

SIZES = (5, 8, 3)
AGENTS, DIMENSION = len(SIZES), 4


def losses(model: Tree, batch: Tree) -> Any:
    return (batch["a"] @ model["w"] + model["b"] - batch["y"]) ** 2 / 2


def samples(dtype: Any = np.float64) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"a": rng.normal(size=(n, DIMENSION)).astype(dtype), "y": (i + rng.normal(size=n)).astype(dtype)}
        for i, n in enumerate(SIZES)
    ]


def start(config: Any = None, dtype: Any = np.float64) -> Tree:
    return {"w": np.zeros(DIMENSION, dtype), "b": np.ones((), dtype)}


def whole(dtype: Any = np.float64) -> Problem:
    return problems.from_losses(losses, samples(dtype), start(dtype=dtype))


def part(context: Context) -> Local:
    return Local(losses, samples()[int(context.node_config["partition-id"])])


def app(make: Callable[[], Algorithm], **options: Any) -> ClientApp:
    return client_app(lambda config: make(), start, part, **options)


def run(make: Callable[[], Algorithm], rounds: int, grid: InProcessGrid | None = None, **settings: Any) -> Federated:
    grid = grid or InProcessGrid(app(make), AGENTS, {})
    quick = {"deadline": 5.0, "poll": 0.001}
    return federate(grid, make(), start(), Settings(agents=AGENTS, rounds=rounds, **{**quick, **settings}))
