"""What is measured of a run: f and ||grad f||^2 at the mean of the agents' copies, and how far these are apart."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.agents import AXIS, Functions, Layout, Shard, counted, each_agent, local_objective
from fedpd.core import Algorithm, Array


class Metrics(NamedTuple):
    """f and ||grad f||^2 at mean_i x_{0,i}, and the consensus gap max_ij ||x_{0,i} - x_{0,j}||."""

    loss: Array
    stationarity: Array
    consensus: Array


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
    if algorithm.drifts:
        gap = consensus_gap(algorithm, layout, agents)
    elif algorithm.skips:
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
