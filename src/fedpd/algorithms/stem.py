"""STEM (Khanduri et al., 2021): momentum-assisted recursive gradients at agents and server.

    Q times   x_i+ = x_i - step d_i
              d_i  = h_i(x_i+; xi) + (1 - a) (d_i - h_i(x_i; xi))
    x = mean_S x_i,   d_i = mean_S d_i,   with d_i = grad f_i(x^0) at the start

a is in [0, 1]: 0 gives SPIDER's recursion, 1 plain stochastic gradients. Agents and server send two models each way.
One of them is a gradient estimate, so it is not CTA. Absent agents take the newest x and d when they return.
Differences from the paper: step and a are constant, where the paper decreases them as t^(-1/3) and t^(-2/3); the first
d_i is a full gradient, which agents compute in round 0. If nobody is present in round 0, d begins at 0.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.algorithms._averaged_state import average_state
from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_least, at_most, positive
from fedpd.core import Algorithm, Array, Key, LocalObjective, Subproblem, Tree, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, Loop, estimate

MOMENTUM = "a is 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients"


class Agent(NamedTuple):
    x: Vector
    d: Vector


@specified
def stem(*, step: float, a: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """Return STEM with Q = `iterations` local steps on `batch` samples and momentum parameter a."""
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

    return Algorithm(
        "stem",
        init=init,
        server=lambda x: x,
        exchanges=(average_state(local),),
        model=lambda agent: agent.x,
    )


CARD = Card(
    title="STEM",
    summary="momentum and recursive gradients",
    family="corrected gradients",
    reference=Reference(
        authors=(
            "Prashant Khanduri, Pranay Sharma, Haibo Yang, Mingyi Hong, Jia Liu, Ketan Rajawat, Pramod K. Varshney"
        ),
        title=(
            "STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal Sample and Communication "
            "Complexities for Federated Learning"
        ),
        venue="Advances in Neural Information Processing Systems 34 (NeurIPS 2021), 6050-6061; arXiv:2106.10435",
        year=2021,
        checked=(
            "The proceedings page "
            "(papers.nips.cc/paper/2021/hash/3016a447172f3045b65f5fc83e04b554-Abstract.html) confirms the "
            "seven authors, the title, the venue and the year."
        ),
    ),
    variants=(
        Variant(
            "STEM",
            lambda L, agents, scale: stem(step=scale / (16 * L * Q), a=0.1, iterations=Q),
            Guarantee("NC, bounded variance; up to logarithms", "1/e", "1/e^1.5", "1/e^1.5"),
            only_models=False,
        ),
    ),
    parameters={
        "a": "a in [0, 1], 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients",
    },
    theory_checked=(
        "The abstract in the proceedings confirms 1/e rounds and 1/e^1.5 samples for non-convex functions up "
        "to logarithmic factors, and a trade-off between local updates and batch sizes, so that 1/e^1.5 local "
        "updates are the case of batches of constant size; the assumptions were not confirmed by public "
        "material at hand."
    ),
    equations_checked="Not compared with the paper.",
)
