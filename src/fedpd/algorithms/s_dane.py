"""S-DANE (Jiang, Rodomanov, Stich, 2024): DANE whose proximal centre takes a step of its own.

    g   = mean_S grad f_i(v)                                                           first exchange
    x_i = argmin f_i(w) + <g - grad f_i(v), w> + (rho/2) ||w - v||^2     (by the oracle, from v)
    v   = (rho v + mu mean_S x_i - mean_S grad f_i(x_i))/(rho + mu)                    second exchange

mu is the strong convexity of the f_i, 0 where it is not known. The step of v needs less exact local solves than the
mean of the x_i does. Agents send mu x_i - grad f_i(x_i), so that one model travels each way in an exchange, and v is
the model of a run: the paper's output, the mean of the x_i, would take one more. Not CTA: gradients are sent. With
partial participation both means are over those present.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.algorithms._rules import solver
from fedpd.base.checks import at_least, positive
from fedpd.core import (
    Algorithm,
    Array,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Subproblem,
    Work,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import lbfgs


class Agent(NamedTuple):
    v: Vector
    own: Vector  # grad f_i(v), then mu x_i - grad f_i(x_i)
    mean: Vector
    memory: Any


@specified
def s_dane(*, rho: float, oracle: Oracle, mu: float = 0.0) -> Algorithm:
    """Return S-DANE with proximal weight rho, a local oracle, and f_i that are mu-strongly convex."""
    check_oracle(oracle)
    positive("rho", rho, "rho = L is a good start, L the smoothness of the f_i")
    at_least("mu", mu, 0, "mu is the strong convexity of the f_i; 0 where it is not known")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, oracle.init(f, x))

    def differentiate(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return agent._replace(own=f.gradient(agent.v)), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, agent.mean - agent.own - rho * agent.v, rho)
        x, memory, work = oracle.solve(phi, agent.v, agent.memory, r, key)
        own = mu * x - f.gradient(x)
        return agent._replace(own=own, memory=memory), work._replace(samples=work.samples + f.size)

    def gradient_mean(v: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return v, mean

    def centre(v: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        v = (rho * v + mean) / (rho + mu)
        return v, v

    exchanges = (
        Exchange(
            differentiate,
            lambda agent: agent.own,
            gradient_mean,
            lambda agent, g: agent._replace(mean=g),
            sends="gradient",
        ),
        Exchange(solve, lambda agent: agent.own, centre, lambda agent, v: agent._replace(v=v), sends="gradient"),
    )
    return Algorithm("s_dane", init, lambda x: x, exchanges, lambda agent: agent.v)


CARD = Card(
    title="S-DANE",
    summary="DANE with a separate prox centre",
    family="Newton-type",
    reference=Reference(
        authors="Xiaowen Jiang, Anton Rodomanov, Sebastian U. Stich",
        title="Stabilized Proximal-Point Methods for Federated Optimization",
        venue="Advances in Neural Information Processing Systems 37 (NeurIPS 2024); arXiv:2407.07084",
        year=2024,
        checked="The text of the proceedings' version confirms the authors, the title, the venue and the year.",
    ),
    variants=(
        Variant(
            "S-DANE",
            lambda L, agents, scale: s_dane(rho=L / scale, oracle=solver(L, L / scale)),
            Guarantee("SC, Hessians that differ by D", "(D/mu) log(1/e)"),
            only_models=False,
        ),
        Variant(
            "S-DANE-LBFGS",
            lambda L, agents, scale: s_dane(rho=L / scale, oracle=lbfgs()),
            Guarantee("SC, Hessians that differ by D", "(D/mu) log(1/e)"),
            only_models=False,
            summary="local problems solved by L-BFGS",
        ),
    ),
    parameters={"mu": "μ ≥ 0, the strong convexity of the f_i"},
    theory_checked=(
        "The abstract confirms that S-DANE keeps DANE's communication complexity and that Acc-S-DANE improves "
        "it; the orders (D/mu) log(1/e) and sqrt(D/mu) log(1/e) were not confirmed."
    ),
    equations_checked=(
        "All updates agree with a public program (class SDANE, 'Stabalized DANE and its accelerated version'), "
        "whose lambda is rho here; its adaptive lambda is left out."
    ),
)
