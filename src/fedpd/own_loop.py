"""The federated part of a training loop of your own.

A method's local work is your loop plus `linear + curvature x` in the gradient, the terms of its `Subproblem`; the rest
of a round (duals, control variates, what is sent) follows from where the loop ends. `local` is for models that are
pytrees of arrays; `fedpd.torch.local` adds the terms to the gradients of an unchanged PyTorch loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.core import LocalObjective, Method, Oracle, Subproblem, Tree, Work
from fedpd.core.message import opened
from fedpd.core.types import Array, Key


@dataclass
class Agent:
    """The memory of an agent between rounds, such as its dual. Keep one object per agent, and save it with the agent.

    Attributes:
        state: The state of the method, whose arrays are on the host; None: the agent has not taken part yet.
        rounds: The rounds in which it took part.
        updates: Its local steps in all rounds.
    """

    state: Any = None
    rounds: int = 0
    updates: int = 0


@dataclass
class Step:
    """A round of one agent, while its loop runs.

    Attributes:
        start: Where the loop begins.
        linear: The linear term of the local problem; None: there is none.
        curvature: The weight of the quadratic term (curvature/2) ||x||^2; 0: there is none.
        result: Where the loop ended; set it inside the `with` block.
        updates: The local steps that were done.
        message: What the agent sends, when the block has ended.
    """

    start: Tree
    linear: Tree | None
    curvature: float
    result: Tree = None
    updates: int = 0
    message: Tree = None

    def extra(self, x: Tree) -> Tree:
        """Return what a step at x adds to the gradient of the loss: linear + curvature x."""
        pull = Vector(jax.tree.map(np.zeros_like, x)) if self.linear is None else Vector(self.linear)
        return (pull + self.curvature * Vector(x)).tree if self.curvature else pull.tree


class Loop:
    """A loop of the user's, before and after it has run. It is equal to itself only, so an oracle may hold it.

    Attributes:
        seen: The local problems that the method posed, with their starts.
        outcome: Where the loop ended, and its number of steps; None: it has not run yet.
    """

    def __init__(self, outcome: tuple[Tree, int] | None = None) -> None:
        self.seen: list[tuple[Subproblem, Vector]] = []
        self.outcome = outcome


class Recorder(Oracle):
    """Stands for the loop when a method prepares a round, and again when it takes note of the outcome."""

    loop: Any  # a Loop

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        self.loop.seen.append((phi, x))
        if self.loop.outcome is None:
            return x, memory, _work(0)
        model, steps = self.loop.outcome
        return Vector(model), memory, _work(steps)


def _work(steps: int) -> Work:
    """Return the work of a loop, whose samples fedpd does not count. `Work.of` would take 1 ms, on the device."""
    updates: Any = np.int32(steps)
    samples: Any = np.int32(0)
    return Work(updates, samples)


@contextmanager
def local(method: Method, model: Tree, agent: Agent) -> Iterator[Step]:
    """Run a loop of your own as the local work of a method, for models that are pytrees of NumPy or JAX arrays.

        with fedpd.local(method, model, agent) as step:
            x = step.start
            for batch in batches:
                x = x - 0.1 * (gradient(x, batch) + step.extra(x))
            step.result, step.updates = x, len(batches)
        send(step.message)

    Args:
        method: The method, whose oracle stands for your loop: `oracles.own_loop()`.
        model: The model that the agent received.
        agent: What the agent keeps between rounds. It changes when the block ends, and not if the block raises.

    Yields:
        The round. Set its `result` and `updates` inside the block.

    Raises:
        FedpdError: The method needs more than a local problem, such as full gradients or skipped rounds.
    """
    x = Vector(_on_host(model))
    if agent.state is None:
        check_method(method, x)
        state = method.init(objective(x), x)
    else:
        state = method.receive(agent.state, x)
    phi, begin = _solve(method, state, agent, Loop())[1]
    step = Step(
        _on_host(begin.tree),
        None if phi.linear is None else _on_host(phi.linear.tree),
        0.0 if phi.curvature is None else float(phi.curvature),
    )
    yield step
    if step.result is None:
        refuse("step.result", None, "the loop did not say where it ended", "Set step.result = x inside the block")
    state, _ = _solve(method, state, agent, Loop((_on_host(step.result), step.updates)))
    step.message = _on_host(opened(method.send(state)))
    if isinstance(step.message, Vector):
        step.message = step.message.tree
    agent.state = _on_host(state)
    agent.rounds += 1
    agent.updates += step.updates


def check_method(method: Method, x: Vector) -> None:
    """Refuse a method whose local work is more than one local problem, or whose messages are more than a model."""
    if not isinstance(method, Method):
        refuse("method", method, "is no method", "Give e.g. algorithms.fedpd(eta=0.1, oracle=oracles.own_loop())")
    if "oracle" not in {one.name for one in fields(method)}:
        refuse(
            "method", method.description, "has no oracle in whose place your loop runs", "Give e.g. algorithms.fedpd"
        )
    if method.skips:
        rule = "skips communications, which a loop of your own does not decide"
        refuse("method", method.description, rule, "Give p = 0")
    if len(method.exchanges()) != 1:
        refuse("method", method.description, "has several exchanges in a round", "Give a method with one")
    state = method.init(objective(x), x)
    _, broadcast = method.aggregate(method.server(x), opened(method.send(state)), 1.0)
    if not isinstance(broadcast, Vector):
        rule = "its server sends more than a model"
        refuse("method", method.description, rule, "Give one that sends a model, such as FedPD")


def _solve(method: Method, state: Any, agent: Agent, loop: Loop) -> tuple[Any, tuple[Subproblem, Vector]]:
    """Return the state after the local work, and the local problem with its start, as the method's oracle sees them."""
    settings: Any = {"oracle": Recorder(loop=loop)}
    recorded = replace(method, **settings)
    new, _ = recorded.local(objective(method.model(state)), state, jnp.int32(agent.rounds), jax.random.key(0))
    if len(loop.seen) != 1:
        rule = f"solves {len(loop.seen)} local problems in a round"
        refuse("method", method.description, rule, "Give a method that solves one")
    return new, loop.seen[0]


def objective(x: Vector) -> LocalObjective:
    """Return an f_i that nobody can evaluate: only the loop knows it."""
    plain = LocalObjective.without_samples(x)
    return plain._replace(losses=_unknown)


def _unknown(*_: Any) -> NoReturn:
    refuse(
        "method",
        "its local work",
        "needs gradients of f_i outside of the loop",
        "Give one whose local work is your loop, such as FedPD",
    )


def _on_host(tree: Tree) -> Tree:
    return jax.tree.map(np.asarray, tree)


@dataclass
class Server:
    """The server of a method, for loops of your own in one program.

    Attributes:
        method: The method.
        state: What the server keeps.
    """

    method: Method
    model: Tree
    state: Any = field(init=False)

    def __post_init__(self) -> None:
        x = Vector(_on_host(self.model))
        check_method(self.method, x)
        self.state = self.method.server(x)

    def update(self, messages: list[Tree], share: float = 1.0) -> Tree:
        """Return the model that the agents receive next, from the messages of those that took part.

        Args:
            messages: The messages, `step.message` of each agent.
            share: The share of all agents that took part. Below 1, methods need their form for absent agents,
                `method.partial()`.
        """
        if not messages:
            refuse("messages", messages, "must hold the message of at least one agent", "Give step.message of each")
        mean = jax.tree.map(lambda *parts: np.mean(parts, axis=0), *messages)
        mean = jax.tree.map(np.asarray, mean)
        plain = Vector(mean) if not isinstance(mean, Vector | tuple) else mean
        self.state, broadcast = self.method.aggregate(self.state, plain, share)
        self.model = _on_host(broadcast.tree if isinstance(broadcast, Vector) else broadcast)
        return self.model
