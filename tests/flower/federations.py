"""A small problem, whole in a simulation and split among the clients of an in-process grid whose nodes can be made to
fail."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpd import Algorithm, Problem, algorithms, oracles, problems
from fedpd.core import Tree
from fedpd.flower import Federated, InProcessGrid, Local, Settings, client_app, federate

AGENTS, SAMPLES, DIMENSION = 3, 6, 4  # agents of one size, so that all clients run the same compiled programs
GD = oracles.gd(step=0.2, iterations=3)
FEDPD = algorithms.fedpd(eta=0.5, oracle=GD)  # one object for many tests: it compiles once
Deliver = Callable[[Message], Message | None]


def losses(model: Tree, batch: Tree) -> Any:
    return (batch["a"] @ model["w"] + model["b"] - batch["y"]) ** 2 / 2


def samples(sizes: tuple[int, ...] = (SAMPLES,) * AGENTS) -> list[Any]:
    rng = np.random.default_rng(0)
    return [{"a": rng.normal(size=(n, DIMENSION)), "y": i + rng.normal(size=n)} for i, n in enumerate(sizes)]


def start(config: Any = None) -> Tree:
    return {"w": np.zeros(DIMENSION), "b": np.ones(())}


def whole(sizes: tuple[int, ...] = (SAMPLES,) * AGENTS) -> Problem:
    return problems.from_losses(losses, samples(sizes), start())


def app(algorithm: Algorithm, sizes: tuple[int, ...] = (SAMPLES,) * AGENTS, **options: Any) -> ClientApp:
    def part(context: Context) -> Local:
        return Local(losses, samples(sizes)[int(context.node_config["partition-id"])])

    return client_app(lambda config: algorithm, start, part, **options)


class Fallible(InProcessGrid):
    """Nodes that do to a message what `fault(message, deliver)` says; `deliver` is what a sound node does."""

    def __init__(
        self, algorithm: Algorithm, fault: Callable[[Message, Deliver], Message | None], **options: Any
    ) -> None:
        super().__init__(app(algorithm, **options), AGENTS, {})
        self.fault = fault

    def deliver(self, message: Message) -> Message | None:
        return self.fault(message, super().deliver)


def order_of(message: Message) -> tuple[int, int]:
    """(agent, number) of an order; (-1, -1) of another message."""
    config: Any = message.content.config_records["config"]
    return config.get("fedpd-agent", -1), config.get("fedpd-number", -1)


def run(algorithm: Algorithm, rounds: int, grid: InProcessGrid | None = None, **settings: Any) -> Federated:
    quick: dict[str, Any] = {"deadline": 20.0, "poll": 0.001, "evaluate_every": 0}
    grid = grid or InProcessGrid(app(algorithm), AGENTS, {})
    return federate(grid, algorithm, start(), Settings(**{"agents": AGENTS, "rounds": rounds, **quick, **settings}))


def assert_same(model: Tree, other: Tree, rtol: float = 1e-12) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-14), model, other)
