"""Rounds of Algorithm 2 one by one, played with its own Exchange functions and given coins, and sums along them."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd import Algorithm, Problem
from fedpd.base.precision import scope
from fedpd.core import vectors_of
from fedpd.core.agents import Functions, agent_key, arrays, local_objective


class Path(NamedTuple):
    """Rounds 0, ..., T of a run, (..., T+1, N, d); `plus` is x_{0,i}^{r+}, (..., T, N, d)."""

    x: np.ndarray
    x0: np.ndarray
    dual: np.ndarray
    plus: np.ndarray


def play(algorithm: Algorithm, problem: Problem, skips: np.ndarray) -> Path:
    """The path under these coins (..., T), True where the round's communication is skipped."""
    functions, shard = Functions(problem.losses, problem.penalty), arrays(problem)
    exchange = algorithm.exchanges()[0]

    def one_round(agents: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        r, skip = step

        def local(one: Any, agent: Any) -> Any:
            key = agent_key(jax.random.key(0), r, one.agent)
            return exchange.local(local_objective(functions, one), agent, r, key)[0]

        plus = jax.vmap(local)(shard, agents)
        mean = jax.tree.map(lambda leaf: leaf.mean(0), vectors_of(jax.vmap(exchange.send)(plus)))
        aggregate: Any = exchange.aggregate
        received = jax.vmap(exchange.receive, in_axes=(0, None))(plus, aggregate(None, mean, 1.0)[1])
        agents = jax.tree.map(partial(jnp.where, skip), plus, received)
        return agents, (agents, plus.x0)

    def run(skips: Any) -> tuple[Any, Any, Any]:
        start = Vector(jax.tree.map(jnp.asarray, problem.start))
        first = jax.vmap(lambda one: algorithm.init(local_objective(functions, one), start))(shard)
        _, (later, plus) = jax.lax.scan(one_round, first, (jnp.arange(skips.shape[0]), skips))
        return first, later, plus

    with scope(True):
        first, later, plus = jax.jit(jax.vmap(run))(skips.reshape(-1, skips.shape[-1]))

    def column(name: str) -> np.ndarray:
        start, rest = (np.asarray(getattr(part, name).tree) for part in (first, later))
        return np.concatenate([start[:, None], rest], 1).reshape(
            *skips.shape[:-1], skips.shape[-1] + 1, *rest.shape[2:]
        )

    return Path(
        column("x"), column("x0"), column("dual"), np.asarray(plus.tree).reshape(*skips.shape, *plus.tree.shape[2:])
    )


@lru_cache
def each(problem: Problem) -> Callable[[Any], tuple[Any, Vector]]:
    """(f_i(x_i), grad f_i(x_i)) of all agents, at many x (K, N, d); compiled once per problem."""
    functions, shard = Functions(problem.losses, problem.penalty), arrays(problem)

    def one(shard: Any, x: Any) -> tuple[Any, Vector]:
        return local_objective(functions, shard).value_and_gradient(Vector(x))

    return jax.jit(jax.vmap(lambda x: jax.vmap(one)(shard, x)))


def values(problem: Problem, x: np.ndarray) -> np.ndarray:
    with scope(True):
        return np.asarray(each(problem)(x.reshape(-1, *x.shape[-2:]))[0]).reshape(x.shape[:-1])


def gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    with scope(True):
        return np.asarray(each(problem)(x.reshape(-1, *x.shape[-2:]))[1].tree).reshape(x.shape)


def lagrangians(problem: Problem, eta: float, x: np.ndarray, x0: np.ndarray, dual: np.ndarray) -> np.ndarray:
    """L_i(x_i, x_{0,i}, lambda_i)."""
    return values(problem, x) + np.sum(dual * (x - x0), -1) + square(x - x0) / (2 * eta)


def square(v: np.ndarray) -> np.ndarray:
    return np.sum(v**2, -1)


def spread(v: np.ndarray) -> np.ndarray:
    """V(v) = sqrt(mean_i ||v_i - mean_j v_j||^2)."""
    return np.sqrt(square(v - v.mean(-2, keepdims=True)).mean(-1))


def widest(v: np.ndarray) -> np.ndarray:
    """max_ij ||v_i - v_j||."""
    return np.sqrt(square(v[..., :, None, :] - v[..., None, :, :])).max((-2, -1))


def below(small: np.ndarray, large: np.ndarray) -> bool:
    """small <= large, up to rounding."""
    return bool((small <= large + 1e-11 * (1 + np.abs(small) + np.abs(large))).all())
