"""FedDANE (Li et al., 2019): a Newton-type subproblem with the mean gradient.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = argmin f_i(w) + <g - grad f_i(x), w - x> + (mu/2) ||w - x||^2     (by the oracle, from x)
    x   = mean_S x_i                                               second exchange

It is not CTA, because agents send gradients. With partial participation g is the mean over the agents that are present.
Differences from the paper: the same agents send gradients and solve local problems, where the paper draws a second
subset; all agents have the same weight, where the authors' program weighs them by their numbers of samples.
"""

from typing import Any

from tree_math import Vector

from fedpd.algorithms._gradients_first import Agent, gradients_first
from fedpd.algorithms._rules import solver
from fedpd.base.checks import at_least
from fedpd.core import Algorithm, Array, Key, LocalObjective, Oracle, Subproblem, Work, check_oracle, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant


@specified
def feddane(*, mu: float, oracle: Oracle) -> Algorithm:
    """Return FedDANE with proximal weight mu and a local oracle."""
    check_oracle(oracle)
    at_least("mu", mu, 0, "mu = L is a good start, where L is the smoothness of the f_i")

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        phi = Subproblem(f, agent.mean - agent.own - mu * agent.x, mu)
        return oracle.solve(phi, agent.x, agent.memory, r, key)

    return gradients_first(oracle.init, solve)


CARD = Card(
    title="FedDANE",
    summary="a Newton-type problem with the mean gradient",
    family="corrected gradients",
    reference=Reference(
        authors="Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith",
        title="FedDANE: A Federated Newton-Type Method",
        venue=(
            "53rd Asilomar Conference on Signals, Systems, and Computers (2019, invited paper); "
            "arXiv:2001.01920 (January 2020)"
        ),
        year=2019,
        checked=(
            "The text of the preprint (arxiv-vanity.com/papers/2001.01920) confirms the authors and the "
            "title, and the README of the authors' repository litian96/FedDANE confirms the venue and 2019."
        ),
    ),
    variants=(
        Variant(
            "FedDANE",
            lambda L, agents, scale: feddane(mu=L / scale, oracle=solver(L, L / scale)),
            Guarantee("NC, bounded dissimilarity; not confirmed", "1/e"),
            only_models=False,
        ),
    ),
    parameters={
        "mu": "μ ≥ 0, the weight of the proximal term",
    },
    theory_checked=(
        "The abstract confirms guarantees for convex and non-convex functions; the rate of 1/e rounds and the "
        "assumption of bounded dissimilarity were not confirmed by public material at hand."
    ),
    equations_checked=(
        "The local problem and the mean gradient agree with the authors' program (litian96/FedDANE, "
        "flearn/optimizer/pggd.py and flearn/trainers/feddane.py)."
    ),
)
