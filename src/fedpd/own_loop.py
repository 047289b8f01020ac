"""The federated part of a training loop of your own.

A method's local work is your loop plus `linear + curvature x` in the gradient, the terms of its `Subproblem`; the rest
of a round (duals, control variates, what is sent) follows from where the loop ends. `local` is for models that are
pytrees of arrays; `fedpd.torch.local` adds the terms to the gradients of an unchanged PyTorch loop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.precision import is_double, scope
from fedpd.base.value import parts_of
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Tree, Work
from fedpd.core.message import opened
from fedpd.oracles import OwnLoop, gd
from fedpd.transforms._lora import Exact
from fedpd.transforms._means import Weighted

MODEL = "Give one that sends a model, such as FedPD"


@dataclass
class Agent:
    """The memory of an agent between rounds, such as its dual. Keep one object per agent, and save it with the agent.

    Attributes:
        state: The state of the method, whose arrays are on the host; None: the agent has not taken part yet.
        rounds: The rounds in which it took part.
        updates: Its local steps in all rounds.
        start: The model from which the run began. Methods that send changes, such as FedADMM, and methods whose server
            sends more than a model need it of an agent that joins after the first round.
    """

    state: Any = None
    rounds: int = 0
    updates: int = 0
    start: Tree = None


@dataclass
class Step:
    """A round of one agent, while its loop runs.

    Attributes:
        start: Where the loop begins.
        linear: The linear term of the local problem; None: there is none.
        curvature: The weight of the quadratic term (curvature/2) ||x||^2; 0: there is none.
        scale: The factor of the loss in the local problem.
        result: Where the loop ended; set it inside the `with` block.
        updates: The local steps that were done.
        length: The sum of the sizes of the local steps, which SCAFFOLD, FedDC and FedCM divide by; None: not known.
        message: What the agent sends, when the block has ended.
    """

    start: Tree
    linear: Tree | None
    curvature: float
    scale: float = 1.0
    result: Tree = None
    updates: int = 0
    length: float | None = None
    message: Tree = None

    def extra(self, x: Tree) -> Tree:
        """Return what a step at x adds to the gradient of the loss: linear + curvature x."""
        if self.scale != 1:
            rule = "is the factor of the loss in this method's local problem, which a sum leaves out"
            refuse("step.scale", self.scale, rule, "Use step.gradient(x, gradient_of_the_loss)")
        return self._terms(x).tree

    def gradient(self, x: Tree, own: Tree) -> Tree:
        """Return the gradient of the local problem at x from that of the loss: scale own + linear + curvature x."""
        own_part = Vector(own) if self.scale == 1 else self.scale * Vector(own)
        return (own_part + self._terms(x)).tree

    def value(self, x: Tree) -> float:
        """Return what the method adds to scale times the loss at x: <linear, x> + (curvature/2) ||x||^2."""
        at = Vector(x)
        pull = 0.0 if self.linear is None else float(Vector(self.linear) @ at)
        return pull + self.curvature / 2 * float(at @ at)

    def _terms(self, x: Tree) -> Vector:
        pull = Vector(jax.tree.map(np.zeros_like, x)) if self.linear is None else Vector(self.linear)
        return pull + self.curvature * Vector(x) if self.curvature else pull


class Outcome(NamedTuple):
    """The end of a loop, its number of steps, and the sum of their sizes (None: not known)."""

    model: Tree
    steps: int
    length: float | None


class Loop:
    """A loop of the user's, before and after it has run. It is equal to itself only, so an oracle may hold it.

    Attributes:
        seen: The local problems that the method posed, with their starts.
        outcome: What the loop did; None: it has not run yet.
    """

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.seen: list[tuple[Subproblem, Vector]] = []
        self.outcome = outcome


class Recorder(Oracle):
    """Stands for the loop when a method prepares a round, and again when it takes note of the outcome."""

    loop: Any  # a Loop

    @property
    def step(self) -> float:
        """The mean size of the loop's steps, for methods that divide by the sum of the step sizes."""
        if self.loop.outcome is None:
            return 1.0
        _, steps, length = self.loop.outcome
        if length is None:
            rule = "the loop did not say how long its steps were, and this method divides by the sum of their sizes"
            refuse("step.length", None, rule, "Set step.length inside the block, e.g. 10 * 0.05")
        if not (steps > 0 and length > 0):
            rule = "must be positive, as the number of steps, step.updates, must be"
            refuse("step.length", length, rule, "Set both to what the loop did, e.g. 10 * 0.05 and 10")
        return length / steps

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        self.loop.seen.append((phi, x))
        if isinstance(jax.tree.leaves(x)[0], jax.core.Tracer):
            rule = "solves several local problems in a round"
            refuse("method", "its local work", rule, "Give a method that solves one")
        if self.loop.outcome is None:
            raise PosedError
        return Vector(self.loop.outcome.model), memory, _work(self.loop.outcome.steps)


def _work(steps: int) -> Work:
    """Return the work of a loop, whose samples fedpd does not count. `Work.of` would take 1 ms, on the device."""
    updates: Any = np.int32(steps)
    samples: Any = np.int32(0)
    return Work(updates, samples)


@contextmanager
def local(method: Method, model: Tree, agent: Agent, received: Tree = None) -> Iterator[Step]:
    """Run a loop of your own as the local work of a method, for models that are pytrees of NumPy or JAX arrays.

        with fedpd.local(method, model, agent) as step:
            x = step.start
            for batch in batches:
                x = x - 0.1 * (gradient(x, batch) + step.extra(x))
            step.result, step.updates = x, len(batches)
        send(step.message)

    Args:
        method: The method, whose oracle stands for your loop: `oracles.own_loop()`.
        model: The model that the agent received, in the first round the start.
        agent: What the agent keeps between rounds. It changes when the block ends, and not if the block raises.
        received: What the agent received, if the method's server sends more than a model: `Server.broadcast`. None in
            the first round, and for methods that send a model.

    Yields:
        The round. Set its `result` and `updates` inside the block.

    Raises:
        FedpdError: The method needs more than a local problem, such as full gradients or skipped rounds.
    """
    x = Vector(_on_host(model))
    if agent.state is None:
        check_method(method, x)
        if any(isinstance(part, Weighted) for part in parts_of(method)):
            rule = "weighs agents by a number of samples that a loop does not say"
            refuse("mean", "weighted('samples')", rule, "Leave it out, and give weights to Server.update")
        if method.skips:
            rule = "skips communications, which a loop of your own does not decide"
            refuse("method", method.description, rule, "Give p = 0, or let fedpd.flower.Strategy decide")
    state = _arrived(method, x, agent, received)
    step = begin(method, state, agent.rounds)
    yield step
    if step.result is None:
        refuse("step.result", None, "the loop did not say where it ended", "Set step.result = x inside the block")
    state = finish(method, state, agent.rounds, step)
    with scope(is_double(state)):
        step.message = plain(opened(method.exchanges()[0].send(state)))
    agent.state = _on_host(state)
    agent.rounds += 1
    agent.updates += step.updates


def _arrived(method: Method, x: Vector, agent: Agent, received: Tree) -> Any:
    """Return the state of an agent that has received a model or a broadcast."""
    exchange = method.exchanges()[0]
    with scope(is_double(x)):
        start = x if agent.start is None else Vector(_on_host(agent.start))
        models_only = _sends_models(method)
        if received is None and not models_only and agent.state is not None:
            rule = f"{method.description} sends more than a model"
            refuse("received", None, rule, "Give what the server sent, server.broadcast, as the last argument")
        broadcast = x if received is None else _structured(received, broadcast_like(method, start))
        if agent.state is not None:
            if _form(agent.state) != _form_of(method, *_form(x)):
                rule = "has the state of another method or of a model with other arrays"
                refuse("agent", f"Agent(rounds={agent.rounds})", rule, "Give each method and model agents of its own")
            return exchange.receive(agent.state, broadcast)
        state = method.init(unknown(), start)
        is_first = received is None and (agent.start is None or not models_only)
        return state if is_first else (exchange.missed or exchange.receive)(state, broadcast)


def _form(tree: Tree) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """Return the structure of a tree, and the shapes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(np.shape(leaf) for leaf in leaves)


@lru_cache(maxsize=8)
def _form_of(method: Method, structure: Any, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """Return the form of an agent's state, for a model of this form."""
    return _form(method.init(unknown(), jax.tree.unflatten(structure, [np.zeros(shape) for shape in shapes])))


def _structured(tree: Tree, like: Tree) -> Tree:
    """Return a broadcast or a message, which travels as plain arrays, in the method's own form."""
    leaves, wanted = jax.tree.leaves(_on_host(tree)), jax.tree.leaves(like)
    found, needed = [[np.shape(leaf) for leaf in part] for part in (leaves, wanted)]
    if found != needed:
        rule = f"has arrays of the shapes {found[:4]}, and the method's have {needed[:4]}"
        refuse("received", type(tree).__name__, rule, "Give it as the other side made it")
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def begin(method: Method, state: Any, r: int) -> Step:
    """Return the local problem of an agent in round r, for a loop that has not run yet."""
    phi, first = _posed(method, state, r)
    return Step(
        _on_host(first.tree),
        None if phi.linear is None else _on_host(phi.linear.tree),
        0.0 if phi.curvature is None else float(phi.curvature),
        1.0 if phi.f.scale is None else float(phi.f.scale),
    )


def finish(method: Method, state: Any, r: int, step: Step) -> Any:
    """Return the state after the loop."""
    loop = Loop(Outcome(_on_host(step.result), step.updates, step.length))
    new = _work_with(method, state, r, loop)
    if len(loop.seen) != 1:
        rule = f"solves {len(loop.seen)} local problems in a round"
        refuse("method", method.description, rule, "Give a method that solves one")
    return _on_host(new)


def check_method(method: Method, x: Vector) -> None:
    """Refuse a method whose local work is more than one local problem."""
    if not isinstance(method, Method):
        refuse("method", method, "is no method", "Give e.g. algorithms.fedpd(eta=0.1, oracle=oracles.own_loop())")
    if with_oracle(method, Recorder(loop=Loop())) is None:
        remedy = "Give e.g. algorithms.fedpd or scaffold with oracle=oracles.own_loop()"
        refuse("method", method.description, "has no oracle in whose place your loop runs", remedy)
    if any(isinstance(part, Exact) for part in parts_of(method)):
        rule = "averages products exactly, for which the server changes weights that a loop of your own does not know"
        refuse("method", method.description, rule, "Leave exact_lora out, and freeze lora_A instead (FFA-LoRA)")
    if method.is_personal is not None:
        rule = "keeps some parameters at their agent, which a loop of your own does by itself"
        refuse("method", method.description, rule, "Leave personal out, and give a module without them to the block")
    if len(method.exchanges()) != 1:
        refuse("method", method.description, "has several exchanges in a round", "Give a method with one")
    if method.copies_differ or method.exchanges()[0].mixes:
        rule = "gives every agent its own model, and its server sends none"
        refuse("method", method.description, rule, "Give one whose server sends a model, such as FedPD")
    with scope(is_double(x)):
        state = method.init(unknown(), x)
    step = begin(method, state, 0)
    step.result, step.updates, step.length = step.start, 1, 1.0
    finish(method, state, 0, step)


def has_plain_steps(method: Method) -> bool:
    """Return whether the loop must take plain gradient steps."""
    return any(isinstance(part, Method) and part.plain_steps for part in parts_of(method))


def broadcast_like(method: Method, x: Vector) -> Tree:
    """Return a broadcast of the method, which shows its form."""
    exchange: Any = method.exchanges()[0]
    return exchange.aggregate(method.server(x), opened(exchange.send(method.init(unknown(), x))), 1.0)[1]


@lru_cache(maxsize=8)
def _sends_models(method: Method) -> bool:
    """Return whether the method's server sends a model and nothing else."""
    return isinstance(broadcast_like(method, Vector({"x": np.zeros(1)})), Vector)


def is_own_loop(method: Method) -> bool:
    """Return whether the method's oracle stands for a loop of the user's."""
    return any(isinstance(part, OwnLoop) for part in parts_of(method))


def with_shapes(method: Method) -> Method:
    """Return a method that JAX can trace, with states and messages of the same shapes."""
    return (with_oracle(method, gd(1.0, 1)) or method) if is_own_loop(method) else method


def with_oracle(method: Method, oracle: Oracle) -> Method | None:
    """Return the method with another oracle, also inside of a wrapper; None: it has none."""
    held: dict[str, Any] = {one.name: getattr(method, one.name) for one in fields(method)}
    if isinstance(held.get("method"), Method):
        inner: Any = with_oracle(held["method"], oracle)
        return None if inner is None else replace(method, **{"method": inner})
    settings: Any = {"oracle": oracle}
    return None if held.get("oracle") is None else replace(method, **settings)


class PosedError(Exception):
    """Leaves a method's local work when its local problem is known."""


def _posed(method: Method, state: Any, r: int) -> tuple[Subproblem, Vector]:
    """Return the local problem of a round with its start, as the method's oracle sees them."""
    loop = Loop()
    with suppress(PosedError):
        _work_with(method, state, r, loop)
    if not loop.seen:
        refuse("method", method.description, "solves 0 local problems in a round", "Give a method that solves one")
    phi, x = loop.seen[0]
    if type(phi.f) is not LocalObjective or phi.f.losses is not _unknown:
        rule = "changes the gradients of the loss themselves, which a loop of your own computes"
        refuse("method", method.description, rule, "Change them in your loop, and give a method that does not")
    return phi, x


def _work_with(method: Method, state: Any, r: int, loop: Loop) -> Any:
    """Return the state after the method's local work, in which the loop stands for the oracle."""
    recorded = with_oracle(method, Recorder(loop=loop))
    assert recorded is not None
    with scope(is_double(state)):
        return recorded.exchanges()[0].local(unknown(), state, _round(r), _key())[0]


@lru_cache(maxsize=1)
def _round(r: int) -> Array:
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.int32(r))


@cache
def unknown() -> LocalObjective:
    """Return an f_i that nobody can evaluate: only the loop knows it."""
    with jax.ensure_compile_time_eval():
        return LocalObjective.without_samples(Vector(np.zeros(1)))._replace(losses=_unknown)


@cache
def _key() -> Key:
    """Return a key, for methods that take one. Their oracle, the loop, draws its own numbers."""
    with jax.ensure_compile_time_eval():
        return jax.random.key(0)


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
        model: The model that agents have when they have received the last broadcast.
        state: What the server keeps.
        broadcast: What the agents receive next, if the server sends more than a model; else, and at the start, None.
    """

    method: Method
    model: Tree
    state: Any = field(init=False)
    broadcast: Tree = field(init=False, default=None)

    def __post_init__(self) -> None:
        x = Vector(_on_host(self.model))
        check_method(self.method, x)
        with scope(is_double(x)):
            self._agent = _on_host(self.method.init(unknown(), x))
            self.state = _on_host(self.method.server(x))

    @property
    def result(self) -> Tree:
        """The model of the run: that of the agents, or the one that only the server has, as with FedACG."""
        return self.model if self.method.delivers is None else plain(self.method.delivers(self.state))

    def update(self, messages: list[Tree], share: float = 1.0, weights: Sequence[float] | None = None) -> Tree:
        """Return the model that the agents receive next, from the messages of those that took part.

        Args:
            messages: The messages, `step.message` of each agent.
            share: The share of all agents that took part. Below 1, methods need their form for absent agents,
                `method.partial()`.
            weights: The weight of each message in the mean, such as the agents' numbers of samples, which are then the
                weights of the f_i; None: equal weights. With absent agents, give the share of the sum of the weights.
        """
        if not messages:
            refuse("messages", messages, "must hold the message of at least one agent", "Give step.message of each")
        if share < 1:
            self._check_partial(share)
        exchange: Any = self.method.exchanges()[0]
        with scope(is_double(self._agent)):
            like = opened(exchange.send(self._agent))
            parts = [_structured(message, like) for message in messages]
            mean = jax.tree.map(lambda *leaves: np.asarray(np.average(leaves, axis=0, weights=weights)), *parts)
            state, broadcast = exchange.aggregate(self.state, mean, share)
            self.model = plain(self.method.model(exchange.receive(self._agent, broadcast)))
        self.state = _on_host(state)
        self.broadcast = None if isinstance(broadcast, Vector) else plain(broadcast)
        return self.model

    def _check_partial(self, share: float) -> None:
        """Refuse absent agents if the method is not in its form for them."""
        form = self.method.partial()
        if type(form) is not type(self.method):
            rule = f"is below 1, and {self.method.description} is in its form for agents that are always present"
            refuse("share", share, rule, "Give method.partial() to the server and to the agents")
        if self.method.needs_everyone:
            rule = f"is below 1, and {self.method.description} needs all agents"
            refuse("share", share, rule, "Wait for all messages, or give e.g. algorithms.fedpd(...).partial()")
        if not self._is_superseded():
            rule = f"is below 1, and an absent agent needs two broadcasts of {self.method.description}"
            refuse(
                "share", share, rule, "Use fedpd.flower, which keeps them, or give e.g. algorithms.fedpd(...).partial()"
            )

    def _is_superseded(self) -> bool:
        """Return whether the newest broadcast replaces all that an earlier one leaves at an agent, tried on numbers."""
        rng = np.random.default_rng(0)

        def drawn(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: rng.uniform(1, 2, np.shape(leaf)).astype(np.asarray(leaf).dtype), tree)

        exchange = self.method.exchanges()[0]
        with scope(is_double(self._agent)):
            like = broadcast_like(self.method, Vector(self.model))
            agent, earlier, newest = drawn(self._agent), drawn(like), drawn(like)
            missed = exchange.missed or exchange.receive
            both, one = [missed(exchange.receive(agent, first), newest) for first in (earlier, newest)]
        return all(map(np.array_equal, jax.tree.leaves(both), jax.tree.leaves(one)))


def plain(tree: Tree) -> Tree:
    """Return a message or a broadcast as arrays on the host, without the wrappers of models."""
    host = _on_host(tree)
    return jax.tree.map(lambda part: part.tree if _is_vector(part) else part, host, is_leaf=_is_vector)


def _is_vector(part: Any) -> bool:
    return isinstance(part, Vector)
