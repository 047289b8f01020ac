"""An agent on its own machine: an order and what it had saved in, what it saves and says out. Pure functions.

The functions of the method are those of a simulation; only the loop differs: here an agent goes from step to step by
itself until the server wants to hear of it. It keeps its state both before and after the last order's local steps: if
the server did not use its reply (it came too late), the agent was away, and an agent that is away has not moved.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import RecordDict
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import as_numpy, is_double
from fedpd.core import Algorithm, Evaluation, Exchange, Key, Losses, Penalty, Problem, Tree
from fedpd.core.agents import Functions, Shard, agent_key, arrays, local_objective
from fedpd.flower.carry.protocol import Order
from fedpd.flower.carry.records import RefusedError, unpack
from fedpd.flower.method.identity import spec_text
from fedpd.flower.method.shapes import Shapes
from fedpd.problems import from_losses


class Local(NamedTuple):
    """A client's own part of the problem: f_i = w_i sum F, F(x; xi) = losses + penalty, over its samples.

    losses:  (model, batch) -> (B,), the losses of a batch whose leaves are (B, ...).
    data:    its samples, a pytree with leaves (n, ...).
    penalty: (model) -> scalar, what does not depend on a sample.
    weight:  w_i; 1/n unless given, which makes f_i a mean.
    correct: (model, batch) -> (B,), 1 where the model is right: for accuracies, on `data` and on `test`.
    test:    samples that are not trained on, like `data`.
    """

    losses: Losses
    data: Tree
    penalty: Penalty | None = None
    weight: float | None = None
    correct: Losses | None = None
    test: Tree | None = None


class Site(NamedTuple):
    """What a client computes with: the method, and its own f_i."""

    algorithm: Algorithm
    spec: str  # the method's exact spec
    shapes: Shapes
    functions: Functions
    shard: Shard  # of one agent, without the leading axis


class Saved(NamedTuple):
    """What a client keeps: order `number` has been carried out."""

    number: int
    before: Any  # the agent before its local steps
    after: Any
    rebuilt: int
    updates: np.ndarray  # of every step
    samples: np.ndarray


class LostError(FedpdError):
    """That an order cannot be carried out because the state that it goes on from is gone."""


def settle(local: Local | Problem, start: Tree, algorithm: Algorithm, shapes: Shapes, name: str) -> Site:
    """The site of a client, its data checked."""
    problem = local if isinstance(local, Problem) else _problem(local, start, name)
    if problem.agents != 1:
        rule = f"is the problem of {problem.agents} agents, and a client is one"
        refuse("local", problem.name, rule, "Build it from this client's own samples")
    if problem.double and not is_double(start):
        raise FedpdError(
            f"client {name!r} has float64 data, and the model is float32: nothing is cast down silently. "
            "Start from a float64 model, or give the data as float32."
        )
    functions, shard = Functions.of(problem), _first(arrays(problem))
    # An oracle may keep what only this client's own objective has, such as a PyTorch module's buffers.
    agent = jax.eval_shape(partial(with_objective, algorithm.init, functions), shard, Vector(shapes.model))
    return Site(algorithm, spec_text(algorithm), shapes._replace(agent=agent), functions, shard)


def _problem(local: Local, start: Tree, name: str) -> Problem:
    """The problem of this client alone."""
    weights = None if local.weight is None else [local.weight]
    problem = from_losses(local.losses, [local.data], start, penalty=local.penalty, weights=weights, name=name)
    if local.correct is None:
        return problem
    test = local.data if local.test is None else local.test  # some samples must give the test's shapes
    rows = jax.tree.map(lambda leaf: as_numpy(leaf, problem.double, "test")[None], jax.tree.map(np.asarray, test))
    size = 0 if local.test is None else jax.tree.leaves(rows)[0].shape[1]
    return replace(problem, evaluation=Evaluation(local.correct, rows, np.array([size], np.int32)))


def _first(shard: Shard) -> Shard:
    return jax.tree.map(lambda leaf: leaf[0], shard)


@partial(jax.jit, static_argnums=(0, 1))
def with_objective(function: Callable[..., Any], functions: Functions, shard: Shard, *arguments: Any) -> Any:
    """function(f_i, *arguments), compiled once for all clients of a process that are alike."""
    return function(local_objective(functions, shard), *arguments)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _step(exchange: Exchange, e: int, functions: Functions, shard: Shard, agent: Any, r: Any, key: Key) -> Any:
    """Exchange e of round r, up to what is sent: (agent, Work)."""
    f = local_objective(functions, shard)
    return exchange.local(f, agent, r, agent_key(key, r, shard.agent, e))


@partial(jax.jit, static_argnums=0)
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def obey(site: Site, order: Order, content: RecordDict, saved: Saved | None) -> Saved:
    """Carry out an order that is not a repetition."""
    site = site._replace(shard=site.shard._replace(agent=np.int32(order.agent)))  # type: ignore[arg-type]
    agent, rebuilt = _standing(site, order, content, saved)
    before, key = agent, jax.random.key(order.seed, impl="threefry2x32")
    updates, samples = [], []
    exchanges = site.algorithm.exchanges
    for step in range(order.first, order.last + 1):
        r, e = divmod(step, len(exchanges))
        agent, work = _step(exchanges[e], e, site.functions, site.shard, agent, jnp.int32(r), key)
        updates.append(work.updates)
        samples.append(work.samples)
    numbers = [np.array(jax.device_get(column), np.int64) for column in (updates, samples)]
    before, agent = jax.device_get((before, agent))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(agent) if jnp.issubdtype(leaf.dtype, np.inexact)):
        raise FedpdError("the client's local steps diverged, to NaN or infinity. Try a smaller local step.")
    return Saved(order.number, before, agent, rebuilt, *numbers)


def _standing(site: Site, order: Order, content: RecordDict, saved: Saved | None) -> tuple[Any, int]:
    """The agent as it stands at the order's first step, and whether it had to be made anew."""
    lost = order.counted >= 0 and (saved is None or saved.number < order.counted)
    if lost or saved is None:
        if order.number > 0 and "start" not in content.array_records:
            raise LostError("the client's state is gone.")
        agent = _begin(site, content["start" if order.number else "arrays"])
    else:
        agent = saved.after if saved.number == order.counted else saved.before
    # What it has saved after order n has heard of the communications before n; `before` of no later ones either.
    known = -1 if lost or saved is None else saved.number
    for number, e in zip(order.past, order.exchanges, strict=True):
        if number < known:
            continue
        name = "arrays" if number == order.past[-1] else f"past-{number}"
        broadcast = unpack(_arrays(content, name), site.shapes.broadcasts[e], "broadcast")
        exchange = site.algorithm.exchanges[e]
        heard = exchange.absent is None or (number == order.counted and not lost)
        agent = call(exchange.receive if heard else exchange.absent, agent, broadcast)
    rebuild = site.algorithm.away.rebuild
    if lost and rebuild is not None:
        agent = with_objective(rebuild, site.functions, site.shard, agent)
    return agent, int(lost)


def _begin(site: Site, record: Any) -> Any:
    start = unpack(record, Vector(site.shapes.model), "start")
    return with_objective(site.algorithm.init, site.functions, site.shard, start)


def _arrays(content: RecordDict, name: str) -> Any:
    try:
        return content.array_records[name]
    except KeyError:
        raise RefusedError(f"order: lacks its arrays {name!r}.") from None


def message_of(site: Site, order: Order, agent: Any) -> Tree | None:
    """What the agent sends at the order's last step; None where it has nothing to say."""
    exchange = site.algorithm.exchanges[order.last % len(site.algorithm.exchanges)]
    if exchange.speaks is not None and not call(exchange.speaks, agent):
        return None
    return jax.device_get(call(exchange.send, agent))
