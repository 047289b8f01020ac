"""FedExP (Jhunjhunwala et al., 2023): FedAvg with a server step size that the local changes decide.

    Delta_i = oracle(f_i) from x, minus x
    step    = max(1, mean_S ||Delta_i||^2 / (2 (||mean_S Delta_i||^2 + epsilon)))
    x       = x + step mean_S Delta_i

The more the agents' changes point in different directions, the shorter is their mean, and the longer the server's
step, as in an extrapolated projection onto convex sets. Agents send Delta_i and the number ||Delta_i||^2, the server
sends x. A very large epsilon is FedAvg. On heterogeneous data the mean of the changes vanishes at the end, and the
changes do not: the step grows to mean ||Delta_i||^2 / (2 epsilon), and with a small epsilon the model circles far from
the minimum. An epsilon of the size of ||Delta_i||^2 at the end prevents this. The error floor of FedAvg remains.

Differences from the authors' program: it multiplies epsilon by the number of agents that take part, and lets epsilon
shrink with the square of the local step size from round to round; its epsilon is 0.1 for EMNIST and 1e-3 for its other
data. It evaluates the mean of the last two models, because the server's long steps oscillate; here the model of a run
is the newest one (`simulate(..., average=True)` delivers a running mean). The means are plain; `transforms.weighted`
weighs both by the agents' numbers of samples, as the program does.
"""

from typing import Any

import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fednova import LocalChanges
from fedpd.base.checks import positive
from fedpd.core import Array, Method, Oracle, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class FedExP(LocalChanges):
    """FedAvg with extrapolation; an agent's number is ||Delta_i||^2."""

    oracle: Oracle
    epsilon: float

    def report(self, change: Vector, work: Work) -> tuple[Vector, Array]:
        return change, change @ change

    def aggregate(self, server: Vector, mean: tuple[Vector, Array], share: Any) -> tuple[Vector, Vector]:
        delta, squares = mean
        step = jnp.maximum(1, squares / (2 * (delta @ delta + self.epsilon)))
        x = server + step * delta
        return x, x


@makes(FedExP)
def fedexp(*, oracle: Oracle, epsilon: float = 1e-3) -> Method:
    """Return FedExP, with a local oracle that works on f_i itself."""
    check_oracle(oracle)
    positive("epsilon", epsilon, "Give e.g. 1e-3, small beside the squared norm of a round's mean change")
    return FedExP(oracle=oracle, epsilon=epsilon)


CARD = Card.single(
    title="FedExP",
    summary="FedAvg with extrapolation at the server",
    family="averaging",
    authors="Divyansh Jhunjhunwala, Shiqiang Wang, Gauri Joshi",
    paper="FedExP: Speeding Up Federated Averaging via Extrapolation",
    venue="11th International Conference on Learning Representations (ICLR 2023); arXiv:2301.09604",
    year=2023,
    rule=lambda L, agents, scale: fedexp(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, bounded differences; C"),
    parameters={"epsilon": "ε > 0, added to the squared norm of the mean change; a large one is FedAvg"},
)
