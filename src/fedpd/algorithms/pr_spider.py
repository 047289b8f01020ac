"""PR-SPIDER, parallel restarted SPIDER (Sharma et al., 2019): recursive gradients, averaged with the models.

    when r mod I = 0:  v_i = g = (1/N) sum_i grad f_i(x)           an exchange of gradients
    Q times            x_i+ = x_i - step v_i
                       v_i  = v_i + h_i(x_i+; xi) - h_i(x_i; xi)
    x = mean_S x_i,    v_i = mean_S v_i                            an exchange of models and gradient estimates

Its sample complexity is O(sqrt(M)/eps). It is not CTA, because agents send gradients. An agent keeps two models. Absent
agents miss the refresh and take the newest x and v when they return. Difference from the paper: the refresh is every I
rounds, which is every I Q iterations in the paper.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.algorithms._averaged_state import average_state
from fedpd.algorithms._rules import Q
from fedpd.base.checks import count, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Tree, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, Loop, estimate


class Agent(NamedTuple):
    x: Vector
    v: Vector


@specified
def pr_spider(*, step: float, iterations: int, refresh: int, batch: int | None = 1) -> Algorithm:
    """Return PR-SPIDER with Q = `iterations` steps on `batch` samples and full gradients every I = `refresh` rounds."""
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

    first = Exchange(renew, lambda a: a.v, gradient_mean, lambda a, v: a._replace(v=v), when=due)
    return Algorithm(
        "pr_spider",
        init=init,
        server=lambda x: x,
        exchanges=(first, average_state(descend)),
        model=lambda agent: agent.x,
    )


CARD = Card(
    title="PR-SPIDER",
    summary="recursive gradients, averaged with the models",
    family="corrected gradients",
    reference=Reference(
        authors=(
            "Pranay Sharma, Swatantra Kafle, Prashant Khanduri, Saikiran Bulusu, Ketan Rajawat, Pramod K. Varshney"
        ),
        title=(
            "Parallel Restarted SPIDER -- Communication Efficient Distributed Nonconvex Optimization with "
            "Optimal Computation Complexity"
        ),
        venue="arXiv:1912.06036",
        year=2019,
        checked=(
            "Public copies of the arXiv record "
            "(sotaverified.org/papers/parallel-restarted-spider-communication and "
            "researchtrend.ai/papers/1912.06036) confirm the six authors, the title and December 2019; no "
            "other venue was found."
        ),
    ),
    variants=(
        Variant(
            "PR-SPIDER",
            lambda L, agents, scale: pr_spider(step=scale / (8 * L * Q), iterations=Q, refresh=5),
            Guarantee("NC", "1/e", "Q/e", "sqrt(M)/e"),
            only_models=False,
        ),
    ),
    parameters={
        "refresh": "I, the rounds between two full gradients",
    },
    theory_checked=(
        "The abstract confirms 1/e communications and, for N nodes of n samples each, sqrt(N n)/e sample "
        "gradients on non-convex functions with non-identical data, which is sqrt(M)/e with M samples in all, "
        "as the FedPD paper says too; the local updates Q/e are those rounds times Q."
    ),
    equations_checked="Not compared with the paper.",
    compares=lambda spec: True,
)
