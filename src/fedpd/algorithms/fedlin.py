"""FedLin (Mitra et al., 2021): gradient correction by the exact difference at the server's model.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (grad f_i(x_i) - grad f_i(x) + g)
    x   = mean_S x_i                                               second exchange

Linear rate to the true minimiser at constant steps. Not CTA: gradients are sent. With partial participation g is the
mean over those present, so the fixed point moves with them. Differences from the paper: no compression, and batch=...
as an option beside its full gradients.
"""

from tree_math import Vector

from fedpd.algorithms.gradients_first import Agent, gradients_first
from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, Key, LocalObjective, Subproblem, Work, describe
from fedpd.oracles import STEP, sgd


def fedlin(*, step: float, iterations: int, batch: int | None = None) -> Algorithm:
    """FedLin with Q = iterations local steps on `batch` samples (None: all of them)."""
    positive("step", step, STEP)
    oracle = sgd(step, iterations, batch)

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        return oracle.solve(Subproblem(f, agent.mean - agent.own), agent.x, None, r, key)

    description = describe("fedlin", step=step, iterations=iterations, batch=batch)
    return gradients_first(description, lambda f, x: None, solve, batch)
