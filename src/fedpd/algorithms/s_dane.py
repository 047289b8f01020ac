"""S-DANE (Jiang, Rodomanov, Stich, 2024): DANE whose proximal centre takes a step of its own.

    g   = mean_S grad f_i(v)                                                           first exchange
    x_i = argmin f_i(w) + <g - grad f_i(v), w> + (rho/2) ||w - v||^2     (by the oracle, from v)
    v   = (rho v + mu mean_S x_i - mean_S grad f_i(x_i))/(rho + mu)                    second exchange

mu is the strong convexity of the f_i, 0 where it is not known. The step of v needs less exact local solves than the
mean of the x_i does. Agents send mu x_i - grad f_i(x_i), so that one model travels each way in an exchange, and v is
the model of a run: the paper's output, the mean of the x_i, would take one more. Not CTA: gradients are sent. With
partial participation both means are over those present.
"""

from typing import Any

from fedpd.algorithms._rules import solver
from fedpd.algorithms.fedlin import Agent, GradientsFirst
from fedpd.base.checks import at_least, positive
from fedpd.core import Gradient, LocalObjective, Method, Oracle, Subproblem, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.core.vectors import Array, Key, Vector
from fedpd.oracles import lbfgs


class SDane(GradientsFirst):
    """DANE with a separate prox centre. An agent's x is v, and its `own` is what it sends."""

    rho: float
    oracle: Oracle
    mu: float

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, agent.mean - agent.own - self.rho * agent.x, self.rho)
        x, memory, work = self.oracle.solve(phi, agent.x, agent.memory, r, key)
        own = self.mu * x - f.gradient(x)
        return agent._replace(own=own, memory=memory), work._replace(samples=work.samples + f.size)

    def send(self, agent: Agent) -> Any:
        return Gradient(agent.own)

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        v = (self.rho * server + mean) / (self.rho + self.mu)
        return v, v


@makes(SDane)
def s_dane(*, rho: float, oracle: Oracle, mu: float = 0.0) -> Method:
    """Return S-DANE with proximal weight rho, a local oracle, and f_i that are mu-strongly convex."""
    check_oracle(oracle)
    positive("rho", rho, "rho = L is a good start, L the smoothness of the f_i")
    at_least("mu", mu, 0, "mu is the strong convexity of the f_i; 0 where it is not known")
    return SDane(rho=rho, oracle=oracle, mu=mu)


CARD = Card(
    title="S-DANE",
    summary="DANE with a separate prox centre",
    family="Newton-type",
    reference=Reference(
        authors="Xiaowen Jiang, Anton Rodomanov, Sebastian U. Stich",
        title="Stabilized Proximal-Point Methods for Federated Optimization",
        venue="Advances in Neural Information Processing Systems 37 (NeurIPS 2024); arXiv:2407.07084",
        year=2024,
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
)
