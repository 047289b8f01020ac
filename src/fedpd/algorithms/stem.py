"""STEM (Khanduri et al., 2021): momentum-assisted recursive gradients at agents and server.

    Q times   x_i+ = x_i - step d_i
              d_i  = h_i(x_i+; xi) + (1 - a) (d_i - h_i(x_i; xi))
    x = mean_S x_i,   d_i = mean_S d_i,   with d_i = grad f_i(x^0) at the start

a is in [0, 1]: 0 gives SPIDER's recursion, 1 plain stochastic gradients. Agents and server send two models each way.
One of them is a gradient estimate, so it is not CTA. Absent agents take the newest x and d when they return.
Differences from the paper: a is constant, where the paper decreases it as t^(-2/3), and step is a number or a schedule,
where the paper decreases it as t^(-1/3); the first d_i is a full gradient, which agents compute in round 0. If nobody
is present in round 0, d begins at 0.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedpd.algorithms._rules import Q
from fedpd.algorithms.mpr_sgd import AveragedState
from fedpd.base.checks import at_least, at_most
from fedpd.core import Array, Key, LocalObjective, Method, Subproblem, Tree, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, step_at
from fedpd.oracles import Stochastic, check_stochastic, estimate

MOMENTUM = "a is 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients"


class Agent(NamedTuple):
    x: Vector
    d: Vector


class Steps(Stochastic):
    """The local steps."""

    step: float | Step
    a: float
    gradients: ClassVar = 2

    def advance(self, phi: Subproblem, agent: Agent, rows: Tree, r: Array, q: Array) -> Agent:
        x, d = agent
        new = x - step_at(self.step, r, q) * d
        return Agent(new, estimate(phi, new, rows) + (1 - self.a) * (d - estimate(phi, x, rows)))


class Stem(AveragedState):
    """Local steps along recursive gradients with momentum."""

    a: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        first = r == 0
        d = lax.cond(first, lambda: f.gradient(agent.x), lambda: agent.d)
        agent, work = self.steps(Steps, a=self.a).run(Subproblem(f), Agent(agent.x, d), r, key)
        return agent, work._replace(samples=work.samples + jnp.where(first, f.size, 0).astype(jnp.int32))


@makes(Stem)
def stem(
    *, step: float | Step, a: float, iterations: int | None = None, batch: int | None = 1, epochs: int | None = None
) -> Method:
    """Return STEM with Q = `iterations` local steps on `batch` samples, or `epochs`, and momentum parameter a."""
    check_step(step)
    at_most("a", at_least("a", a, 0, MOMENTUM), 1, MOMENTUM)
    check_stochastic(iterations, batch, epochs=epochs)
    return Stem(step=step, a=a, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="STEM",
    summary="momentum and recursive gradients",
    family="corrected gradients",
    authors="Prashant Khanduri, Pranay Sharma, Haibo Yang, Mingyi Hong, Jia Liu, Ketan Rajawat, Pramod K. Varshney",
    paper="STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal Sample and Communication "
    "Complexities for Federated Learning",
    venue="Advances in Neural Information Processing Systems 34 (NeurIPS 2021), 6050-6061; arXiv:2106.10435",
    year=2021,
    rule=lambda L, agents, scale: stem(step=scale / (16 * L * Q), a=0.1, iterations=Q),
    guarantee=Guarantee("NC, bounded variance; up to logarithms", "1/e", "1/e^1.5", "1/e^1.5"),
    only_models=False,
    parameters={"a": "a in [0, 1], 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients"},
)
