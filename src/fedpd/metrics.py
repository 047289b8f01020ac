"""What is measured of a run: f and ||grad f||^2 at the mean of the agents' copies, and how far these are apart.

A run can record more, at the same point: its heterogeneity delta and smoothness L there.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.agents import AXIS, Functions, Layout, Shard, counted, each_agent, local_objective
from fedpd.core import Algorithm, Array
from fedpd.theory.curvature import local_smoothness
from fedpd.theory.dissimilarity import farthest, gradient_dissimilarity

RECORDED: Mapping[str, Callable[[Functions, Layout, Shard, Vector], Array]] = {
    "heterogeneity": gradient_dissimilarity,  # max_i ||grad f_i - grad f||
    "smoothness": local_smoothness,  # the largest |eigenvalue| of any Hessian of f_i, by ten power iterations
}


class Metrics(NamedTuple):
    """f and ||grad f||^2 at mean_i x_{0,i}, the consensus gap max_ij ||x_{0,i} - x_{0,j}||, and what is recorded."""

    loss: Array
    stationarity: Array
    consensus: Array
    recorded: Mapping[str, Array] = {}


def mean_model(algorithm: Algorithm, layout: Layout, shard: Shard, agents: Any) -> Vector:
    """mean_i x_{0,i}: where f is measured, and what a run returns."""

    def copy(one: tuple[Shard, Any]) -> tuple[Vector, None]:
        shard, agent = one
        return counted(shard, algorithm.model(agent)), None

    return each_agent(copy, (shard, agents), layout)[0] / layout.agents


def measure(
    algorithm: Algorithm,
    functions: Functions,
    layout: Layout,
    shard: Shard,
    agents: Any,
    skipped: Any,
    record: tuple[str, ...] = (),
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
    loss, stationarity, gap = (jnp.asarray(one, float) for one in (value / layout.agents, gradient @ gradient, gap))
    recorded = {name: jnp.asarray(RECORDED[name](functions, layout, shard, x), float) for name in record}
    return Metrics(loss, stationarity, gap, recorded)


def consensus_gap(algorithm: Algorithm, layout: Layout, agents: Any) -> Array:
    """max_ij ||x_{0,i} - x_{0,j}||, from the differences to the first copy: equal copies give exactly 0."""
    own = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(jax.vmap(algorithm.model)(agents))]
    everyone = own if layout.mesh is None else lax.all_gather(own, AXIS, tiled=True)
    own = [leaf - first[:1] for leaf, first in zip(own, everyone, strict=True)]
    largest = farthest(own, [leaf - leaf[:1] for leaf in everyone])
    return largest if layout.mesh is None else lax.pmax(largest, AXIS)
