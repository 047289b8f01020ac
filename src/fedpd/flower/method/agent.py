"""An agent on its own machine, as pure functions from an order and a saved state to a new state and a message.

The functions of the method are the same as in a simulation. Only the loop differs: here an agent does all steps up to
the next communication by itself. It keeps its state both before and after the local steps of the last order. If the
server did not use its reply (it came too late), the agent counts as absent, and an absent agent keeps its old state.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import as_numpy, is_double
from fedpd.core import (
    Evaluation,
    Key,
    Losses,
    Method,
    Metric,
    Penalty,
    Problem,
    RandomLosses,
    Statistics,
    Tree,
    Update,
    Work,
    count_samples,
    vectors_of,
)
from fedpd.core.agents import BLOCK, Functions, Shard, agent_key, arrays, block_for, local_objective, objective_in_round
from fedpd.engine.checks import check_batch, check_random_layers
from fedpd.engine.privacy import private_oracle
from fedpd.flower.carry.protocol import Order
from fedpd.flower.carry.records import RefusedError, arrays_of, leaves_by_name, unpack
from fedpd.flower.method.identity import spec_text
from fedpd.flower.method.privacy import as_deployed
from fedpd.flower.method.shapes import Shapes
from fedpd.problems import from_losses
from fedpd.problems.evaluation import check_metrics
from fedpd.problems.second_opinion import check_tests, check_training


class Local(NamedTuple):
    """A client's own part of the problem: f_i = w_i sum F, F(x; xi) = losses + penalty, over its samples.

    Attributes:
        losses: (model, batch) -> (B,), the losses of a batch with leaves (B, ...).
        data: The client's samples, a pytree with leaves (n, ...).
        penalty: (model) -> scalar, the part of F that does not depend on a sample.
        weight: w_i; None: 1/n, which makes f_i a mean.
        correct: (model, batch) -> (B,), 1 where the model is right, for accuracies on `data` and on `test`.
        test: Test samples, in the form of `data`.
        metrics: More to measure on `test`, {name: (model, batch) -> (B, ...)}; see `fedpd.problems.Metric`.
        statistics: (model, batch) -> the statistics that `losses` normalises the batch by (batch normalisation). Then
            `correct`, `metrics` and `test_losses` receive (model, the client's own statistics) in place of the model.
        test_losses: (model, batch) -> (B,), the losses of test samples; None: `losses`.
        random: (model, batch, key) -> (B,), the losses in training, if they have random numbers (dropout), which come
            from the key; None: `losses`.
        check: Whether to check the functions once, as for `problems.from_losses`.
    """

    losses: Losses
    data: Tree
    penalty: Penalty | None = None
    weight: float | None = None
    correct: Losses | None = None
    test: Tree | None = None
    metrics: Mapping[str, Losses | Metric] | None = None
    statistics: Statistics | None = None
    test_losses: Losses | None = None
    random: RandomLosses | None = None
    check: bool = True


class ClientSetup(NamedTuple):
    """The constants of a client, which are the same in all rounds.

    Attributes:
        algorithm: The method.
        spec: Its exact spec, as JSON.
        shapes: The shapes of the agent's state and of the messages.
        functions: The functions of the client's own f_i, `without_frozen`.
        shard: The arrays of its own f_i, without the leading axis of agents.
        frozen: The part of the model that is not trained; None: all of it is.
        epsilon: The largest epsilon of a sample by the method itself; None: the method gives the noise.
    """

    algorithm: Method
    spec: str
    shapes: Shapes
    functions: Functions
    shard: Shard
    frozen: Tree | None = None
    epsilon: float | None = None


class SavedAgent(NamedTuple):
    """The state that a client saves after it has carried out an order.

    Attributes:
        number: The number of the order.
        before: The agent's state before the local steps; None if it was not read.
        after: The agent's state after them.
        rebuilt: 1 if the state had been lost and was rebuilt.
        updates: The local updates of every step.
        samples: The samples of every step.
        sent: Whether the agent took part in the communication itself, and not only in skipped rounds before it.
        arrays: The hash of the order's arrays under masks, from which the client masks its change; "": there were none.
    """

    number: int
    before: Any
    after: Any
    rebuilt: int
    updates: np.ndarray
    samples: np.ndarray
    sent: bool = True
    arrays: str = ""


class LostStateError(FedpdError):
    """The client cannot carry out an order, because it has lost the state that the order continues from."""


def set_up_client(
    local: Local | Problem, start: Tree, algorithm: Method, shapes: Shapes, name: str, rounds: int = 1
) -> ClientSetup:
    """Return the constants of a client, after a check of its data; a private oracle has its noise for T `rounds`."""
    problem = local if isinstance(local, Problem) else _problem(local, start, name)
    (functions, frozen), shard = Functions.of(problem).without_frozen(), _first(arrays(problem))
    try:
        _check_fits(problem, functions, start, algorithm, name)
    except FedpdError as error:  # it holds no samples, so the server may know it
        raise RefusedError(str(error)) from None
    frozen = jax.tree.map(jnp.asarray, frozen)
    # An oracle may keep data that only this client's objective has, such as the buffers of a PyTorch module.
    agent = jax.eval_shape(
        partial(call_with_objective, "init", functions, algorithm), frozen, shard, Vector(shapes.model)
    )
    size = int(problem.sizes[0])
    oracle = private_oracle(algorithm)
    epsilon = None if oracle is None else oracle.epsilon
    algorithm, spec = as_deployed(algorithm, size, rounds), spec_text(algorithm)
    return ClientSetup(algorithm, spec, shapes._replace(agent=agent), functions, shard, frozen, epsilon)


def _check_fits(problem: Problem, functions: Functions, start: Tree, algorithm: Method, name: str) -> None:
    """Refuse a problem that no client can have, or that does not go with the model and the method."""
    if problem.agents != 1:
        rule = f"must be a problem with one agent, but has {problem.agents}"
        refuse("local", problem.name, rule, "Build it from this client's own samples")
    if problem.double and not is_double(start):
        raise RefusedError(
            f"client {name!r} has float64 data, but the model is float32, and fedpd does not reduce the precision. "
            "Start from a float64 model, or give the data as float32."
        )
    check_random_layers(algorithm, problem)
    check_batch(algorithm, problem)
    for metric_name, metric in functions.metrics:
        if metric.over == "samples" and (metric.of_sum is not None or metric.of_all is not None):
            rule = "is no mean over samples, and clients send sums only"
            refuse("metric", metric_name, rule, 'Give over="agents", for the mean of the clients\' own metrics')


def _problem(local: Local, start: Tree, name: str) -> Problem:
    """Return the problem of this client alone."""
    weights = None if local.weight is None else [local.weight]
    try:
        block = None if local.statistics is None else BLOCK
        if block is None and local.random is not None:
            block = block_for(np.array([len(jax.tree.leaves(local.data)[0])]))  # as in a simulation
        own: dict[str, Any] = {"penalty": local.penalty, "weights": weights, "block": block, "name": name}
        problem = from_losses(local.losses, [local.data], start, **own, check=False)
        problem = replace(problem, statistics=local.statistics, random=local.random)
        problem = check_training(problem) if local.check else problem
    except FedpdError as error:  # a problem of one agent calls it agent 0, a name that nobody here knows
        raise FedpdError(str(error).replace("agent 0", f"client {name!r}")) from None
    if local.correct is None and local.test is None and not local.metrics:
        return problem
    test = local.data if local.test is None else local.test  # without test samples, the training data give the shapes
    rows = jax.tree.map(lambda leaf: as_numpy(leaf, problem.double, "test")[None], jax.tree.map(np.asarray, test))
    size = 0 if local.test is None else jax.tree.leaves(rows)[0].shape[1]
    own = {name: one if isinstance(one, Metric) else Metric(one) for name, one in (local.metrics or {}).items()}
    sizes = np.array([size], np.int32)
    evaluation = Evaluation(local.correct, rows, sizes, local.test_losses, metrics=tuple(own.items()))
    problem = check_metrics(replace(problem, evaluation=evaluation))
    return check_tests(problem) if local.check else problem


def _first(shard: Shard) -> Shard:
    return jax.tree.map(lambda leaf: leaf[0], shard)


@partial(jax.jit, static_argnums=(0, 1))
def call_with_objective(
    name: str, functions: Functions, method: Method, frozen: Tree | None, shard: Shard, *arguments: Any
) -> Any:
    """Return method.name(f_i, *arguments), compiled once for all clients of a process with the same functions."""
    return getattr(method, name)(local_objective(functions.with_frozen(frozen), shard), *arguments)


@partial(jax.jit, static_argnums=(0, 1))
def _local_step(
    e: int,
    functions: Functions,
    method: Method,
    frozen: Tree | None,
    shard: Shard,
    agent: Any,
    r: Any,
    key: Key,
) -> Any:
    """Return (agent, Work) of exchange e of round r, before the agent sends its message."""
    f = objective_in_round(functions.with_frozen(frozen), shard, key, r)
    return method.exchanges()[e].local(f, agent, r, agent_key(key, r, shard.agent, e))


@partial(jax.jit, static_argnums=0)
def call_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), compiled."""
    return function(*arguments)


@partial(jax.jit, static_argnums=(0, 1))
def call_exchange(name: str, e: int, method: Method, *arguments: Any) -> Any:
    """Return what a function of a method's exchange e returns, compiled once for equal methods."""
    return getattr(method.exchanges()[e], name)(*arguments)


def check_one_step(setup: ClientSetup) -> None:
    """Trace one local step without numbers, so that shapes and types that do not fit show before the first order."""
    agent = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), setup.shapes.agent)
    key = jax.random.key(0, impl="threefry2x32")
    step = partial(_local_step, 0, setup.functions, setup.algorithm)
    jax.eval_shape(step, setup.frozen, setup.shard, agent, 0, key)


def carry_out(setup: ClientSetup, order: Order, content: RecordDict, saved: SavedAgent | None) -> SavedAgent:
    """Return the client's state after the local steps of a new order.

    Args:
        setup: The constants of the client.
        order: The order.
        content: The message with the order and the broadcasts.
        saved: The client's saved state; None if there is none.

    Raises:
        LostStateError: If the client has lost its state, and the message does not contain what is needed to rebuild it.
        FedpdError: If the local steps diverged.
    """
    setup = setup._replace(shard=setup.shard._replace(agent=jnp.int32(order.agent)))
    given = setup.functions, setup.algorithm, setup.frozen, setup.shard
    make = partial(call_with_objective, "init", *given)
    rebuild = None if setup.algorithm.rebuild is None else partial(call_with_objective, "rebuild", *given)
    agent, rebuilt = agent_at_first_step(setup.algorithm, setup.shapes, order, content, saved, make, rebuild)
    before, key = agent, jax.random.key(order.seed, impl="threefry2x32")
    works = []
    exchanges = len(setup.algorithm.exchanges())
    for step in order.steps:
        r, e = divmod(step, exchanges)
        local = setup.functions, setup.algorithm, setup.frozen, setup.shard
        agent, work = _local_step(e, *local, agent, jnp.int32(r), key)
        works.append(work)
    done = Work(*np.array(jax.device_get(works), np.int64).reshape(-1, len(Work._fields)).T)
    before, agent = jax.device_get((before, agent))
    check_finite(agent)
    counts = np.asarray(done.updates), count_samples(done)
    return SavedAgent(order.number, before, agent, rebuilt, *counts, order.sends)


def check_finite(agent: Any) -> None:
    """Refuse a state that diverged."""
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(agent) if jnp.issubdtype(leaf.dtype, np.inexact)):
        raise RefusedError("the client's local steps diverged to NaN or infinity. Try a smaller local step size.")


def agent_at_first_step(
    method: Method,
    shapes: Shapes,
    order: Order,
    content: RecordDict,
    saved: SavedAgent | None,
    make: Callable[[Vector], Any],
    rebuild: Callable[[Any], Any] | None,
) -> tuple[Any, int]:
    """Return the agent's state at the order's first step, and 1 if it had to be rebuilt, else 0.

    Args:
        method: The method.
        shapes: The shapes of its states and messages.
        order: The order.
        content: The message with the order and the broadcasts.
        saved: The client's saved state; None if there is none.
        make: The start -> the state of an agent there.
        rebuild: The state of an agent that lost its own, as if it had been absent since the start -> a new state; None:
            it continues from that state.
    """
    lost = order.used >= 0 and (saved is None or saved.number < order.used)
    if lost or saved is None:
        if order.number > 0 and "start" not in content.array_records:
            raise LostStateError("the client has lost its state.")
        record = arrays_of(content, "start" if order.number else "arrays", "order")
        agent = make(unpack(record, Vector(shapes.model), "start"))
    else:
        agent = saved.after if saved.number == order.used else saved.before
    # The state after order n includes the broadcasts before n; `before` includes no later ones either.
    known, sent = (-1, False) if lost or saved is None else (saved.number, saved.sent)
    for number, e in zip(order.past, order.exchanges, strict=True):
        if number < known:
            continue
        name = "arrays" if number == order.past[-1] else f"past-{number}"
        record = arrays_of(content, name, "order")
        broadcast = _broadcast(method, e, record, shapes.broadcasts[e], agent)
        was_there = number == order.used and sent
        if sent and known == order.used and order.used not in order.past:
            agent = call_exchange("receive", e, method, agent, broadcast)  # its result does not depend on the broadcast
        receive = "receive" if method.exchanges()[e].missed is None or was_there else "missed"
        agent = call_exchange(receive, e, method, agent, broadcast)
    if lost and rebuild is not None:
        agent = rebuild(agent)
    return agent, int(lost)


def _broadcast(method: Method, e: int, record: ArrayRecord, like: Tree, agent: Any) -> Tree:
    """Return a broadcast, which travels whole or, to an agent that has the one before it, as a change."""
    if not isinstance(like, Update) or method.exchanges()[e].restore is None:
        return unpack(record, like, "broadcast")
    if set(record) == set(leaves_by_name(like.change)):
        return call_exchange("restore", e, method, agent, unpack(record, like.change, "broadcast"))
    whole = unpack(record, like.whole, "broadcast")
    return Update(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like.change), whole)


def own_model(setup: ClientSetup, x: Vector, saved: SavedAgent | None, used: int) -> Vector:
    """Return the client's own copy of the model, of which its personal parameters count.

    Args:
        setup: The constants of the client.
        x: The server's model, which a client without a state has.
        saved: The client's saved state; None: there is none.
        used: The number of its last reply that the server used.
    """
    if saved is None:
        return x
    if saved.number != used or not saved.sent:
        return setup.algorithm.model(saved.before)
    e = len(setup.shapes.broadcasts) - 1  # personal parameters do not depend on the broadcast
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), setup.shapes.broadcasts[e])
    return setup.algorithm.model(call_exchange("receive", e, setup.algorithm, saved.after, nothing))


def message_of(method: Method, order: Order, agent: Any) -> Tree | None:
    """Return the agent's message at the order's last step; None if it has nothing to send."""
    if not order.sends:
        return None
    e = order.last % len(method.exchanges())
    if method.exchanges()[e].speaks is not None and not call_exchange("speaks", e, method, agent):
        return None
    return jax.device_get(vectors_of(call_exchange("send", e, method, agent)))
