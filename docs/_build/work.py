"""Measure the work of a method per round, for its page."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd import problems
from fedpd.base.precision import scope
from fedpd.core import Method
from fedpd.core.agents import Functions, Shard, arrays, local_objective
from fedpd.core.oracle import WORD
from fedpd.engine.measure.costs import run_exchange

ROUNDS = 20  # a multiple of the period of every method that takes full gradients periodically


class WorkPerRound(NamedTuple):
    """The work of an agent with n samples in a round, as the mean over ROUNDS rounds."""

    updates: float  # local steps
    full: float  # sample gradients per sample of the agent, from full gradients
    single: float  # further sample gradients. Together these are full n + single

    def __str__(self) -> str:
        terms = [f"{self.full:g} n" if self.full != 1 else "n"] if self.full else []
        return " + ".join(terms + ([f"{self.single:g}"] if self.single or not terms else []))


def measure_work(algorithm: Method) -> WorkPerRound:
    """Return the work that a method counts per round, measured in its first rounds on a problem of one agent."""
    problem = problems.quadratic(np.ones((1, 1, 1)), np.ones((1, 1)))
    with scope(True):
        functions, one = Functions(problem.losses, None), jax.tree.map(lambda leaf: leaf[0], arrays(problem))
        x, key = Vector(jax.tree.map(jnp.asarray, problem.start)), jax.random.key(0, impl="threefry2x32")

        def advance(one: Shard, state: tuple[Any, Any], r: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
            f, (agent, server) = local_objective(functions, one), state
            updates: Any = 0
            samples: Any = 0
            for exchange in algorithm.exchanges():
                agent, server, _, _, work = run_exchange(exchange, f, agent, server, r, key)
                updates, samples = updates + work.updates, samples + work.samples + 2.0**WORD * work.carried
            return (agent, server), (updates, samples)

        @jax.jit
        def total(size: Any) -> tuple[Any, Any]:
            shard = one._replace(sizes=size)
            state = (algorithm.init(local_objective(functions, shard), x), algorithm.server(x))
            _, work = jax.lax.scan(partial(advance, shard), state, jnp.arange(ROUNDS, dtype=jnp.int32))
            return jax.tree.map(jnp.sum, work)

        (updates, few), (_, many) = (jax.tree.map(float, total(jnp.int32(size))) for size in (100, 200))
    full = (many - few) / 100 / ROUNDS
    return WorkPerRound(updates / ROUNDS, round(full, 3), round(few / ROUNDS - 100 * full, 3))
