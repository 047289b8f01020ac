"""FedDANE (Li et al., 2019): a Newton-type subproblem with the mean gradient.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = argmin f_i(w) + <g - grad f_i(x), w - x> + (mu/2) ||w - x||^2     (by the oracle, from x)
    x   = mean_S x_i                                               second exchange

It is not CTA, because agents send gradients. With partial participation g is the mean over the agents that are present.
Differences from the paper: the same agents send gradients and solve local problems, where the paper draws a second
subset (the authors' program draws the same one twice, since it seeds both draws by the round); all agents have the same
weight, where the authors' program weighs them by their numbers of samples.
"""

from typing import Any

from fedpd.algorithms._rules import solver
from fedpd.algorithms.fedlin import Agent, GradientsFirst
from fedpd.base.checks import at_least
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class FedDane(GradientsFirst):
    """FedDANE: the mean gradient replaces the agent's own at x."""

    mu: float
    oracle: Oracle

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        phi = Subproblem(f, agent.mean - agent.own - self.mu * agent.x, self.mu)
        return self.oracle.solve(phi, agent.x, agent.memory, r, key)


@makes(FedDane)
def feddane(*, mu: float, oracle: Oracle) -> Method:
    """Return FedDANE with proximal weight mu and a local oracle."""
    check_oracle(oracle)
    at_least("mu", mu, 0, "mu = L is a good start, where L is the smoothness of the f_i")
    return FedDane(mu=mu, oracle=oracle)


CARD = Card.single(
    title="FedDANE",
    summary="a Newton-type problem with the mean gradient",
    family="corrected gradients",
    authors="Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith",
    paper="FedDANE: A Federated Newton-Type Method",
    venue="53rd Asilomar Conference on Signals, Systems, and Computers (2019, invited paper); "
    "arXiv:2001.01920 (January 2020)",
    year=2019,
    rule=lambda L, agents, scale: feddane(mu=L / scale, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, bounded dissimilarity; not confirmed", "1/e"),
    only_models=False,
    parameters={"mu": "μ ≥ 0, the weight of the proximal term"},
)
