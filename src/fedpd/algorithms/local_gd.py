"""Local GD (Khaled, Mishchenko, Richtarik, 2019): FedAvg with full local gradients and a constant step.

    x_i = x;  Q times  x_i = x_i - step grad f_i(x_i);   x = mean_S x_i

It converges to a neighbourhood of the minimiser, whose size grows with step, Q and (1/N) sum_i ||grad f_i(x*)||^2.
Agents and server send one model each way (CTA).
"""

from typing import ClassVar

from fedpd.algorithms._rules import Q
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.base.checks import count
from fedpd.core import Method, Oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import ITERATIONS, Step, check_step
from fedpd.oracles import gd


class LocalGD(LocalAveraging):
    """FedAvg with gradient descent."""

    step: float | Step
    iterations: int
    counts: ClassVar = ("iterations",)

    @property
    def oracle(self) -> Oracle:
        return gd(self.step, self.iterations)


@makes(LocalGD)
def local_gd(*, step: float | Step, iterations: int) -> Method:
    """Return local gradient descent with Q = `iterations` full gradients per round."""
    check_step(step)
    count("iterations", iterations, ITERATIONS, bits=31)
    return LocalGD(step=step, iterations=iterations)


CARD = Card.single(
    title="Local GD",
    summary="FedAvg with full gradients",
    family="averaging",
    authors="Ahmed Khaled, Konstantin Mishchenko, Peter Richtárik",
    paper="First Analysis of Local GD on Heterogeneous Data",
    venue=("NeurIPS 2019 Workshop on Federated Learning for Data Privacy and Confidentiality; arXiv:1909.04715"),
    year=2019,
    rule=lambda L, agents, scale: local_gd(step=scale / (4 * L * Q), iterations=Q),  # Khaled et al.
    guarantee=Guarantee("C", "1/e^1.5", "1/e^2", "M/e^2"),
)
