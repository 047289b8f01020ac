"""DANE (Shamir, Srebro, Zhang, 2014): each agent minimises its own model of f, and the answers are averaged.

    g   = mean grad f_i(x)                                                             first exchange
    x_i = argmin f_i(w) - <grad f_i(x) - eta g, w> + (mu/2) ||w - x||^2     (by the oracle, from x)
    x   = mean x_i                                                                     second exchange

eta scales the step, and mu keeps an agent near x where its own Hessian is not that of f. With eta = 1 and everyone
present it is FedDANE. Not CTA: gradients are sent. With partial participation g is the mean over those present, and the
fixed point moves with them. The paper solves local problems exactly: give the oracle steps enough.
"""

from typing import Any

from fedpd.algorithms._rules import solver
from fedpd.algorithms.fedlin import Agent, GradientsFirst
from fedpd.base.checks import at_least, positive
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import lbfgs


class Dane(GradientsFirst):
    """DANE: the mean gradient, scaled by eta, replaces the agent's own at x."""

    mu: float
    oracle: Oracle
    eta: float

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        phi = Subproblem(f, self.eta * agent.mean - agent.own - self.mu * agent.x, self.mu)
        return self.oracle.solve(phi, agent.x, agent.memory, r, key)


@makes(Dane)
def dane(*, mu: float, oracle: Oracle, eta: float = 1.0) -> Method:
    """Return DANE with proximal weight mu, a local oracle and a factor eta on the mean gradient."""
    check_oracle(oracle)
    at_least("mu", mu, 0, "mu = L is a good start, L the smoothness of the f_i")
    positive("eta", eta, "1 is the paper's usual choice")
    return Dane(mu=mu, oracle=oracle, eta=eta)


CARD = Card(
    title="DANE",
    summary="local solves corrected by the mean gradient",
    family="Newton-type",
    reference=Reference(
        authors="Ohad Shamir, Nathan Srebro, Tong Zhang",
        title="Communication-Efficient Distributed Optimization using an Approximate Newton-type Method",
        venue=(
            "Proceedings of the 31st International Conference on Machine Learning (ICML 2014), PMLR 32(2), 1000-1008; "
            "arXiv:1312.7853"
        ),
        year=2014,
    ),
    variants=(
        Variant(
            "DANE",
            lambda L, agents, scale: dane(mu=L / scale, oracle=solver(L, L / scale)),
            Guarantee("SC quadratics with similar Hessians", "log(1/e)"),
            only_models=False,
        ),
        Variant(
            "DANE-LBFGS",
            lambda L, agents, scale: dane(mu=L / scale, oracle=lbfgs()),
            Guarantee("SC quadratics with similar Hessians", "log(1/e)"),
            only_models=False,
            summary="local problems solved by L-BFGS",
        ),
    ),
    parameters={"mu": "μ ≥ 0, the weight of the proximal term", "eta": "η, the factor on the mean gradient"},
)
