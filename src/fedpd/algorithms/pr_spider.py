"""PR-SPIDER, parallel restarted SPIDER (Sharma et al., 2019): recursive gradients, averaged with the models.

    when r mod I = 0:  v_i = g = (1/N) sum_i grad f_i(x)           an exchange of gradients
    Q times            x_i+ = x_i - step v_i
                       v_i  = v_i + h_i(x_i+; xi) - h_i(x_i; xi)
    x = mean_S x_i,    v_i = mean_S v_i                            an exchange of models and gradient estimates

Sample complexity O(sqrt(M)/eps). Not CTA: gradients are sent. State: two models an agent. Agents that are away miss the
refresh and take the newest x and v when they come back. Difference from the paper: the refresh is every I rounds, which
is every I Q iterations there.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.base.checks import count, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Tree, Work, describe
from fedpd.oracles import STEP, Loop, estimate


class Agent(NamedTuple):
    x: Vector
    v: Vector


def pr_spider(*, step: float, iterations: int, refresh: int, batch: int | None = 1) -> Algorithm:
    """PR-SPIDER with Q = iterations local steps on `batch` samples and full gradients every I = refresh rounds."""
    positive("step", step, STEP)
    count("refresh", refresh, "Give I, the rounds between two full gradients, e.g. 20")
    loop = Loop.of(iterations, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def due(r: Array) -> Array:
        return r % refresh == 0

    def renew(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        v = lax.cond(due(r), lambda: f.gradient(agent.x), lambda: agent.v)
        return agent._replace(v=v), Work(jnp.int32(0), jnp.where(due(r), f.size, 0).astype(jnp.int32))

    def advance(phi: Subproblem, carry: tuple[Vector, Vector], rows: Tree, r: Array, q: Array) -> tuple[Vector, Vector]:
        x, v = carry
        new = x - step * v
        return new, v + estimate(phi, new, rows) - estimate(phi, x, rows)

    def descend(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        (x, v), work = loop.run(advance, lambda carry: carry[0], Subproblem(f), (agent.x, agent.v), r, key, per_step=2)
        return agent._replace(x=x, v=v), work

    def gradient_mean(server: Any, mean: Vector, share: Any) -> tuple[Any, Vector]:
        return server, mean

    def both_means(server: Any, mean: tuple[Vector, Vector], share: Any) -> tuple[Any, tuple[Vector, Vector]]:
        return mean[0], mean

    first = Exchange(renew, lambda a: a.v, gradient_mean, lambda a, v: a._replace(v=v), when=due)
    second = Exchange(descend, lambda a: (a.x, a.v), both_means, lambda a, both: a._replace(x=both[0], v=both[1]))
    return Algorithm(
        description=describe("pr_spider", step=step, iterations=iterations, refresh=refresh, batch=batch),
        init=init,
        server=lambda x: x,
        exchanges=(first, second),
        model=lambda agent: agent.x,
        batch=batch,
    )
