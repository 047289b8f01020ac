"""FedDANE (Li et al., 2020): a Newton-type subproblem with the mean gradient.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = argmin f_i(w) + <g - grad f_i(x), w - x> + (mu/2) ||w - x||^2     (by the oracle, from x)
    x   = mean_S x_i                                               second exchange

Not CTA: gradients are sent. With partial participation g is the mean over those present. No other differences.
"""

from typing import Any

from tree_math import Vector

from fedpd.algorithms.gradients_first import Agent, gradients_first
from fedpd.base.checks import at_least
from fedpd.core import Algorithm, Array, Key, LocalObjective, Oracle, Subproblem, Work, check_oracle, describe


def feddane(*, mu: float, oracle: Oracle) -> Algorithm:
    """FedDANE with proximal weight mu and a local oracle."""
    check_oracle(oracle)
    at_least("mu", mu, 0, "mu = L is a good start, L the smoothness of the f_i")

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        phi = Subproblem(f, agent.mean - agent.own - mu * agent.x, mu)
        return oracle.solve(phi, agent.x, agent.memory, r, key)

    return gradients_first(describe("feddane", mu=mu, oracle=oracle), oracle.init, solve, oracle.batch)
