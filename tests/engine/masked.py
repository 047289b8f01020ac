"""A reference for runs with absent agents: every agent in every round, and absent agents under a mask.

It uses the public functions of a method only. Each absent agent gets each broadcast at once.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector

from fedpd.base.precision import scope
from fedpd.core import Algorithm, Mixing, Problem, form_with_absent, vectors_of
from fedpd.core.agents import Functions, agent_key, arrays, local_objective
from fedpd.engine.loop import toss_coin


def masked_run(algorithm: Algorithm, problem: Problem, present: np.ndarray, seed: int = 0) -> tuple[Any, Any]:
    """Return the final state of all agents, leaves (N, ...), and of the server; `present` is (rounds, N)."""
    algorithm = form_with_absent(algorithm)
    functions, shard = Functions.of(problem), arrays(problem)
    key = jax.random.key(seed, impl="threefry2x32")

    def step(i: Any, agents: Any, change: Any) -> tuple[Any, Any]:
        agent, one = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), (agents, shard))
        agent, result = lax.cond(i >= 0, change, lambda *_: _zeros(change, agent, one), agent, one)
        return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), agents, agent), result

    def one_exchange(e: int, agents: Any, server: Any, r: Any, here: Any, skipped: Any) -> tuple[Any, Any]:
        exchange = algorithm.exchanges()[e]
        assert not isinstance(exchange.aggregate, Mixing)

        def work(agent: Any, one: Any) -> Any:
            f = local_objective(functions, one)
            compute = lambda agent: exchange.local(f, agent, r, agent_key(key, r, one.agent, e))[0]  # noqa: E731
            agent = lax.cond(here[one.agent], compute, lambda agent: agent, agent)
            sends = here[one.agent] & (True if exchange.speaks is None else exchange.speaks(agent))
            message = jax.tree.map(lambda leaf: jnp.where(sends, leaf, 0), vectors_of(exchange.send(agent)))
            return agent, (message, sends.astype(jnp.int32))

        def add(i: Any, carry: Any) -> Any:
            agents, total = carry
            agents, part = step(i, agents, work)
            return agents, jax.tree.map(jnp.add, total, part)

        first = jax.tree.map(lambda leaf: leaf[0], (agents, shard))
        zero = _zeros(work, *first)[1]
        agents, (total, senders) = lax.fori_loop(0, problem.agents, add, (agents, zero))
        number = senders.astype(float)
        mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(number, 1).astype(leaf.dtype), total)
        silent = skipped | ~here.any() | (False if exchange.when is None else ~exchange.when(r))
        heard, broadcast = exchange.aggregate(server, mean, number / problem.agents)
        server = _either(silent, server, heard)

        def deliver(agent: Any, one: Any) -> Any:
            missed = exchange.receive if exchange.missed is None else exchange.missed
            new = _either(here[one.agent], exchange.receive(agent, broadcast), missed(agent, broadcast))
            return _either(silent, agent, new), None

        agents = lax.fori_loop(0, problem.agents, lambda i, agents: step(i, agents, deliver)[0], agents)
        return agents, server

    def one_round(carry: Any, now: Any) -> tuple[Any, None]:
        (agents, server), (r, here) = carry, now
        skipped = toss_coin(algorithm, key, r, server)
        for e in range(len(algorithm.exchanges())):
            agents, server = one_exchange(e, agents, server, r, here, skipped)
        return (agents, server), None

    @jax.jit
    def run(start: Vector, present: Any) -> Any:
        init = lambda one: algorithm.init(local_objective(functions, one), start)  # noqa: E731
        agents = lax.map(init, shard)
        state = agents, algorithm.server(start)
        return lax.scan(one_round, state, (jnp.arange(len(present), dtype=jnp.int32), present))[0]

    with scope(problem.double):
        return jax.device_get(run(Vector(problem.start), present))


def _zeros(function: Any, *arguments: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


def _either(condition: Any, one: Any, other: Any) -> Any:
    return jax.tree.map(partial(jnp.where, condition), one, other)
