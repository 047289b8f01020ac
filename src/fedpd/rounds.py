"""Rounds of any Algorithm on any Problem, compiled once: the one loop over agents, the coin, the metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from tree_math import Vector

from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Losses, Penalty, Problem, State, Tree, Work

AXIS = "agents"
COIN, AGENT = 0, 1  # the first fold into a run's key: what is drawn


class Layout(NamedTuple):
    """How the loop over agents is executed; hashable, it selects a compiled program.

    parallel: all agents at once (vmap), or one after another (scan), which keeps one agent's data in the cache.
    mesh:     devices over which the agents are sharded; None: one device.
    """

    agents: int
    parallel: bool
    mesh: Mesh | None


class Functions(NamedTuple):
    """The problem's functions; hashable, apart from its arrays."""

    losses: Losses
    penalty: Penalty | None


class Shard(NamedTuple):
    """The problem's arrays (on one device: of its agents)."""

    data: Tree  # (N, n, ...)
    sizes: Array  # (N,)
    scale: Array | None  # (N,)
    mask: Array | None  # (N, n)
    agent: Array  # (N,) the i
    real: Array | None = None  # (N,) False on ghosts, which fill up the last device; None where there are none


class Metrics(NamedTuple):
    """f and ||grad f||^2 at mean_i x_{0,i}, and the consensus gap max_ij ||x_{0,i} - x_{0,j}||."""

    loss: Array
    stationarity: Array
    consensus: Array


class Rows(NamedTuple):
    """What is recorded of each round of a chunk."""

    communicated: Array  # (K,)
    work: Work  # (K, N)
    metrics: Metrics  # (K,), NaN where the round was not measured


def arrays(problem: Problem) -> Shard:
    """The arrays of a problem; mask and scale only where agents differ in size or weight."""
    largest = problem.sizes.max()
    dtype = np.float64 if problem.double else np.float32
    mask = scale = None
    if (problem.sizes != largest).any():
        mask = ((np.arange(largest) < problem.sizes[:, None]) / problem.sizes[:, None]).astype(dtype)
    if (problem.scale != 1).any():
        scale = problem.scale.astype(dtype)
    return Shard(problem.data, problem.sizes, scale, mask, np.arange(problem.agents, dtype=np.int32))  # type: ignore[arg-type]


def each_agent(body: Callable[[Any], tuple[Tree, Tree]], stacked: Tree, layout: Layout) -> tuple[Tree, Tree]:
    """The one loop over agents. body(one agent's part) -> (to sum, to keep); returns (sum over agents, stacked)."""
    if layout.parallel:
        parts, kept = jax.vmap(body)(stacked)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts)
    else:
        first = jax.tree.map(lambda leaf: leaf[0], stacked)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(body, first)[0])

        def step(total: Tree, one: Tree) -> tuple[Tree, Tree]:
            part, kept = body(one)
            return jax.tree.map(jnp.add, total, part), kept

        total, kept = lax.scan(step, zero, stacked)
    if layout.mesh is not None:
        total = lax.psum(total, AXIS)
    return total, kept


def with_ghosts(tree: Tree, layout: Layout, axis: int = 0) -> Tree:
    """Arrays of all agents, filled up with copies of the first one until every device has as many.

    A ghost has the data, the randomness and so the state of the agent it copies; it is left out of every sum.
    """
    extra = -layout.agents % (1 if layout.mesh is None else layout.mesh.size)
    if not extra:
        return tree

    def fill(leaf: Any) -> Any:
        return np.concatenate([leaf, np.take(leaf, [0] * extra, axis)], axis)

    filled = jax.tree.map(fill, tree)
    if isinstance(filled, Shard):
        filled = filled._replace(real=np.arange(layout.agents + extra) < layout.agents)  # type: ignore[arg-type]
    return filled


def counted(one: Shard, part: Tree) -> Tree:
    """What an agent adds to a sum over agents: nothing where it is a ghost."""
    real = one.real
    return part if real is None else jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), part)


def local_objective(functions: Functions, one: Shard) -> LocalObjective:
    return LocalObjective(*functions, one.data, one.sizes, one.scale, one.mask, one.agent)


def agent_key(key: Key, r: Any, agent: Any, exchange: int = 0) -> Key:
    """The randomness of an agent in a round, from (seed, round, agent) alone: the same in any layout or place."""
    for word in (AGENT, r, agent, exchange)[: 4 if exchange else 3]:
        key = jax.random.fold_in(key, word)
    return key


def coin(algorithm: Algorithm, key: Key, r: Any) -> Array:
    """Whether round r skips its communication: one coin, shared by all agents."""
    if algorithm.skip is None:
        return jnp.bool_(False)
    toss = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, COIN), r), dtype=float)
    return toss < algorithm.skip(jnp.asarray(r, int))


def init_agents(algorithm: Algorithm, functions: Functions, layout: Layout, shard: Shard, start: Vector) -> Any:
    def begin(one: Shard) -> tuple[None, Any]:
        return None, algorithm.init(local_objective(functions, one), start)

    return each_agent(begin, shard, layout)[1]


def one_round(
    algorithm: Algorithm, functions: Functions, layout: Layout, shard: Shard, key: Key, state: State
) -> tuple[State, Array, Work]:
    """State r -> state r+1, whether it skipped, and the work of each agent."""
    agents, server, r = state
    skipped = coin(algorithm, key, r)
    works = []
    for number, exchange in enumerate(algorithm.exchanges):
        body = partial(_take_part, functions, exchange, number, r, key)
        total, (agents, work) = each_agent(body, (shard, agents), layout)
        mean = jax.tree.map(lambda leaf: leaf / layout.agents, total)
        meet = partial(_meet, exchange, mean)
        if algorithm.skip is None:
            agents, server = meet(agents, server)
        else:
            agents, server = lax.cond(skipped, lambda agents, server: (agents, server), meet, agents, server)
        works.append(work)
    return State(agents, server, r + 1), skipped, jax.tree.map(lambda *parts: sum(parts), *works)


def _take_part(
    functions: Functions, exchange: Exchange, number: int, r: Array, key: Key, one: tuple[Shard, Any]
) -> tuple[Tree, Any]:
    shard, agent = one
    agent, work = exchange.local(local_objective(functions, shard), agent, r, agent_key(key, r, shard.agent, number))
    return counted(shard, exchange.send(agent)), (agent, work)


def _meet(exchange: Exchange, mean: Tree, agents: Any, server: Any) -> tuple[Any, Any]:
    server, broadcast = exchange.aggregate(server, mean)
    return jax.vmap(exchange.receive, in_axes=(0, None))(agents, broadcast), server


def mean_model(algorithm: Algorithm, layout: Layout, shard: Shard, agents: Any) -> Vector:
    """mean_i x_{0,i}: where f is measured, and what a run returns."""

    def copy(one: tuple[Shard, Any]) -> tuple[Vector, None]:
        shard, agent = one
        return counted(shard, algorithm.model(agent)), None

    return each_agent(copy, (shard, agents), layout)[0] / layout.agents


def measure(
    algorithm: Algorithm, functions: Functions, layout: Layout, shard: Shard, agents: Any, skipped: Any
) -> Metrics:
    x = mean_model(algorithm, layout, shard, agents)

    def value_and_gradient(one: Shard) -> tuple[tuple[Array, Vector], None]:
        return counted(one, local_objective(functions, one).value_and_gradient(x)), None

    (value, gradient), _ = each_agent(value_and_gradient, shard, layout)
    gradient = gradient / layout.agents
    gap: Any = 0.0  # where nothing is ever skipped, everyone has just received the same model
    if algorithm.skip is not None:
        zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
        gap = lax.cond(skipped, partial(consensus_gap, algorithm, layout, agents), lambda: zero)
    return Metrics(*(jnp.asarray(number, float) for number in (value / layout.agents, gradient @ gradient, gap)))


def consensus_gap(algorithm: Algorithm, layout: Layout, agents: Any) -> Array:
    """max_ij ||x_{0,i} - x_{0,j}||, one row of the distance matrix after another.

    ||c_i||^2 + ||c_j||^2 - 2 <c_i, c_j> with c_i = x_{0,i} - x_{0,1}: since ||c_i|| is itself at most the gap, the
    cancellation costs no more than a rounding of the gap, and equal copies give exactly 0.
    """
    own = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(jax.vmap(algorithm.model)(agents))]
    everyone = own if layout.mesh is None else lax.all_gather(own, AXIS, tiled=True)
    own = [leaf - first[:1] for leaf, first in zip(own, everyone, strict=True)]
    everyone = [leaf - leaf[:1] for leaf in everyone]
    norms = sum(jnp.sum(leaf * leaf, axis=1) for leaf in everyone)

    def row(one: list[Array]) -> Array:
        inner = sum(leaf @ part for leaf, part in zip(everyone, one, strict=True))
        return jnp.max(norms + sum(part @ part for part in one) - 2 * inner)

    largest = jnp.max(lax.map(row, own))
    if layout.mesh is not None:
        largest = lax.pmax(largest, AXIS)
    return jnp.sqrt(jnp.maximum(largest, 0))


def chunk(
    algorithm: Algorithm,
    functions: Functions,
    layout: Layout,
    length: int,
    every: int,
    stop_early: bool,
    shard: Shard,
    key: Key,
    state: State,
    count: Array,
    last: Array,
) -> tuple[State, Rows]:
    """`count` <= `length` rounds, with what each of them did; measured every `every` rounds and at round `last`.

    The number of rounds is data and not part of the program: the same program runs a whole chunk, the rest of one, and
    what is left after a resume. So chunk sizes, checkpoints and interruptions cannot change a bit, nor recompile.
    With `stop_early` it ends where a measured value is not finite.
    """
    empty = _empty_rows(length, len(shard.agent))

    def onward(carry: tuple[Array, Array, State, Rows]) -> Array:
        done, healthy, _, _ = carry
        return (done < count) & healthy

    def play(carry: tuple[Array, Array, State, Rows]) -> tuple[Array, Array, State, Rows]:
        done, healthy, state, rows = carry
        state, skipped, work = one_round(algorithm, functions, layout, shard, key, state)
        measured = (state.round % every == 0) | (state.round == last)

        def metrics() -> Metrics:
            return measure(algorithm, functions, layout, shard, state.agents, skipped)

        metrics_now = lax.cond(
            measured, metrics, lambda: jax.tree.map(lambda column: column[0] + jnp.nan, rows.metrics)
        )
        if stop_early:
            healthy = ~measured | jnp.isfinite(sum(metrics_now))
        new = Rows(~skipped, work, metrics_now)
        rows = jax.tree.map(lambda buffer, value: buffer.at[done].set(value), rows, new)
        return done + 1, healthy, state, rows

    _, _, state, rows = lax.while_loop(onward, play, (jnp.int32(0), jnp.bool_(True), state, empty))
    return state, rows


def _empty_rows(length: int, agents: int) -> Rows:
    zeros, work = jnp.zeros(length, float), jnp.zeros((length, agents), jnp.int32)
    return Rows(jnp.zeros(length, bool), Work(work, work), Metrics(zeros, zeros, zeros))


AGENTS, SHARED = PartitionSpec(AXIS), PartitionSpec()


def sharded(function: Callable[..., Any], layout: Layout, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` on every device's own agents; itself where there is one device."""
    if layout.mesh is None:
        return function
    return jax.shard_map(function, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


STATE = State(AGENTS, SHARED, SHARED)  # type: ignore[arg-type]
ROWS = Rows(SHARED, PartitionSpec(None, AXIS), SHARED)  # type: ignore[arg-type]
