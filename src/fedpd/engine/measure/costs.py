"""Run one exchange alone, and count the bytes of a communication from the shapes of its messages."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import FedpdError
from fedpd.core import Array, Exchange, Key, LocalObjective, Method, Mixing, Tree, Work, as_sent, opened, vectors_of
from fedpd.core.agents import Functions, Shard, local_objective
from fedpd.transforms import Accountant, ExampleAccountant

Stage = Callable[..., AbstractContextManager[None]]  # (name, round, agent): adds them to the message of an error


class StageError(FedpdError):
    """Raised if a function of a method or a problem fails. It names the round, the stage and the agent."""


@contextmanager
def named_stage(name: str, r: Any, agent: int | None = None) -> Iterator[None]:
    """Replace an error in the `with` block by one that names the stage, the round and the agent (None: the server)."""
    try:
        yield
    except Exception as error:
        who = "at the server" if agent is None else f"of agent {agent}"
        raise StageError(f"round {int(r)}, {name} {who}: {type(error).__name__}: {error}") from error


def unnamed_stage(name: str, r: Any, agent: int | None = None) -> AbstractContextManager[None]:
    """Return a context that does not change errors."""
    return nullcontext()


class Costs(NamedTuple):
    """The costs of a communication."""

    bytes_up: tuple[int, ...]  # the bytes that one agent sends in each exchange of a round
    bytes_down: tuple[int, ...]  # the bytes that one agent receives in each exchange of a round
    privacy: Accountant | None = None  # counts epsilon of the messages; None: they are not private
    examples: ExampleAccountant | None = None  # counts epsilon of a sample; None: the oracle is not private


class ExchangeResult(NamedTuple):
    """The result of one exchange between one agent and the server: the new states, the messages and the work."""

    agent: Any
    server: Any
    message: Tree
    broadcast: Tree
    work: Work


def _mean_of_one(exchange: Exchange, message: Tree) -> Tree:
    """Return what the server makes of one message alone."""
    if exchange.mean is None:
        return message
    return exchange.mean(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message), jnp.ones(1, bool))


def run_exchange(
    exchange: Exchange, f: LocalObjective, agent: Any, server: Any, r: Array, key: Key, stage: Stage = unnamed_stage
) -> ExchangeResult:
    """Run one exchange between one agent and the server, without other agents; `stage` names what fails."""
    with stage("local", 0, 0):
        agent, work = exchange.local(f, agent, r, key)
    with stage("send", 0, 0):
        message = broadcast = vectors_of(exchange.send(agent))  # with a mixing, an agent receives a sum of messages
    if not isinstance(exchange.aggregate, Mixing):
        with stage("aggregate", 0):
            server, broadcast = exchange.aggregate(server, _mean_of_one(exchange, opened(message)), 1.0)
    with stage("receive", 0, 0):
        return ExchangeResult(exchange.receive(agent, broadcast), server, message, broadcast, work)


def exchanged_messages(
    algorithm: Method,
    objective: Callable[[Any], LocalObjective],
    one: Any,
    agent: Any,
    server: Any,
    *,
    evaluate: Callable[..., Any] = jax.eval_shape,
    stage: Stage = unnamed_stage,
) -> list[tuple[Tree, Tree]]:
    """Return the message and the broadcast of each exchange of a round; `evaluate` runs it, with shapes or numbers."""
    messages = []
    for exchange in algorithm.exchanges():

        def run(one: Any, agent: Any, server: Any, exchange: Exchange = exchange) -> ExchangeResult:
            key = jax.random.key(0, impl="threefry2x32")
            return run_exchange(exchange, objective(one), agent, server, jnp.int32(0), key, stage)

        result = evaluate(run, one, agent, server)
        agent, server = result.agent, result.server
        messages.append((result.message, result.broadcast))
    return messages


def message_costs(algorithm: Method, functions: Functions, one: Shard, agent: Any, server: Any, **how: Any) -> Costs:
    """Return the bytes of a method's messages; `how` holds further arguments of `exchanged_messages`."""
    return costs_of(exchanged_messages(algorithm, partial(local_objective, functions), one, agent, server, **how))


def costs_of(messages: list[tuple[Tree, Tree]]) -> Costs:
    """Return the bytes of these pairs of a message and a broadcast."""
    up, down = zip(*((_bytes(message), _bytes(broadcast)) for message, broadcast in messages), strict=True)
    return Costs(up, down)


def _bytes(message: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(as_sent(message)))
