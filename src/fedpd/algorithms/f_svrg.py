"""F-SVRG, federated SVRG (Konecny et al., 2016; analysed by Cen et al., 2019).

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (h_i(x_i; xi) - h_i(x; xi) + g),  the same sample xi in both
    x   = mean_S x_i                                               second exchange

The noise of h_i(x_i) - h_i(x) vanishes at the solution, so constant steps converge. Not CTA: gradients are sent. With
partial participation g is the mean over those present. Difference from the papers: no per-coordinate scaling.
"""

from tree_math import Vector

from fedpd.algorithms.gradients_first import Agent, gradients_first
from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, Key, LocalObjective, Subproblem, Tree, Work, describe
from fedpd.oracles import STEP, Loop, estimate


def f_svrg(*, step: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """F-SVRG with Q = iterations local steps on `batch` samples (None: all of them, which is FedLin)."""
    positive("step", step, STEP)
    loop = Loop.of(iterations, batch)

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        anchor = agent.x

        def advance(phi: Subproblem, x: Vector, rows: Tree, r: Array, q: Array) -> Vector:
            return x - step * (estimate(phi, x, rows) - estimate(phi, anchor, rows) + agent.mean)

        x, work = loop.run(advance, lambda x: x, Subproblem(f), anchor, r, key, per_step=2)
        return x, None, work

    description = describe("f_svrg", step=step, iterations=iterations, batch=batch)
    return gradients_first(description, lambda f, x: None, solve, batch)
