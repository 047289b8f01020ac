"""The common part of FedLin, FedDANE and F-SVRG: a first exchange gives every agent the mean gradient at x.

    exchange 1:  agents send grad f_i(x), the server returns g = mean_S grad f_i(x)
    exchange 2:  agents send a local model x_i, computed with g; the server returns x = mean_S x_i

Agents and server send two models each way. One of them is a gradient, so this is not the CTA protocol.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.core import Algorithm, Array, Exchange, InitMemory, Key, LocalObjective, Work

Solve = Callable[[LocalObjective, "Agent", Array, Key], tuple[Vector, Any, Work]]


class Agent(NamedTuple):
    x: Vector  # the server's model, then the local one
    own: Vector  # grad f_i(x)
    mean: Vector  # grad f(x), as the server has it
    memory: Any


def gradients_first(init_memory: InitMemory, solve: Solve) -> Algorithm:
    """Return a method with two exchanges per round.

    Args:
        init_memory: Returns the memory that the local solver keeps between rounds.
        solve: Computes x_i for an agent that knows the mean gradient; returns (x_i, memory, Work).
    """

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, init_memory(f, x))

    def differentiate(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return agent._replace(own=f.gradient(agent.x)), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def descend(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = solve(f, agent, r, key)
        return agent._replace(x=x, memory=memory), work

    def gradient_mean(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return server, mean

    def model_mean(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return mean, mean

    first = Exchange(
        differentiate, lambda a: a.own, gradient_mean, lambda a, mean: a._replace(mean=mean), sends="gradient"
    )
    second = Exchange(descend, lambda a: a.x, model_mean, lambda a, x: a._replace(x=x), sends="model")
    return Algorithm("gradients_first", init, lambda x: x, (first, second), lambda agent: agent.x)
