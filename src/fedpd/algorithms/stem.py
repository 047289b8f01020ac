"""STEM (Khanduri et al., 2021): momentum-assisted recursive gradients at agents and server.

    Q times   x_i+ = x_i - step d_i
              d_i  = h_i(x_i+; xi) + (1 - a) (d_i - h_i(x_i; xi))
    x = mean_S x_i,   d_i = mean_S d_i,   with d_i = grad f_i(x^0) at the start

a in [0, 1]: 0 is SPIDER's recursion, 1 plain stochastic gradients. Sent: two models each way, one of them a gradient
estimate: not CTA. Agents that are away take the newest x and d when they come back. Differences from the paper:
constant step and a, where it has both decrease as t^(-1/3) and t^(-2/3); the first d_i is a full gradient.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.base.checks import at_least, at_most, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Tree, Work, describe
from fedpd.oracles import STEP, Loop, estimate

MOMENTUM = "a is 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients"


class Agent(NamedTuple):
    x: Vector
    d: Vector


def stem(*, step: float, a: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """STEM with Q = iterations local steps on `batch` samples and momentum parameter a."""
    positive("step", step, STEP)
    at_most("a", at_least("a", a, 0, MOMENTUM), 1, MOMENTUM)
    loop = Loop.of(iterations, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def advance(phi: Subproblem, carry: tuple[Vector, Vector], rows: Tree, r: Array, q: Array) -> tuple[Vector, Vector]:
        x, d = carry
        new = x - step * d
        return new, estimate(phi, new, rows) + (1 - a) * (d - estimate(phi, x, rows))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        first = r == 0
        d = lax.cond(first, lambda: f.gradient(agent.x), lambda: agent.d)
        (x, d), work = loop.run(advance, lambda carry: carry[0], Subproblem(f), (agent.x, d), r, key, per_step=2)
        return Agent(x, d), work._replace(samples=work.samples + jnp.where(first, f.size, 0).astype(jnp.int32))

    def send(agent: Agent) -> Agent:
        return agent

    def aggregate(server: Vector, mean: Agent, share: Any) -> tuple[Vector, Agent]:
        return mean.x, mean

    def receive(agent: Agent, mean: Agent) -> Agent:
        return mean

    return Algorithm(
        description=describe("stem", step=step, a=a, iterations=iterations, batch=batch),
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
        batch=batch,
    )
