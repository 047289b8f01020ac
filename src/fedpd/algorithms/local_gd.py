"""Local GD (Khaled, Mishchenko, Richtarik, 2019): FedAvg with full local gradients and a constant step.

    x_i = x;  Q times  x_i = x_i - step grad f_i(x_i);   x = mean_S x_i

It converges to a neighbourhood of the minimiser, whose size grows with step, Q and (1/N) sum_i ||grad f_i(x*)||^2.
Sent: one model each way (CTA).
"""

from fedpd.algorithms.averaging import local_averaging
from fedpd.core import Algorithm, Subproblem, describe
from fedpd.oracles import gd


def local_gd(*, step: float, iterations: int) -> Algorithm:
    """Local gradient descent with Q = iterations full gradients a round."""
    oracle = gd(step, iterations)
    return local_averaging(describe("local_gd", oracle=oracle), oracle, lambda f, x: Subproblem(f))
