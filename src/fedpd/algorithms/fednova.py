"""FedNova (Wang et al., 2020): the mean of the local changes, each divided by the agent's number of local steps.

    y_i   = oracle(f_i), from x, in tau_i steps
    d_i   = (y_i - x) / tau_i
    x     = x + (mean_S tau_i) mean_S d_i

If agents do different numbers of steps, as stragglers and agents with epochs of different sizes do, FedAvg converges to
the minimum of another function, in which an agent counts tau_i times. FedNova divides by tau_i first. If all tau_i are
equal, it is FedAvg. Agents send d_i and the number tau_i, the server sends x. With several local steps, heterogeneous
data leave an error floor, as in FedAvg.

This is the form for plain local steps, gd or sgd, of the same size for all agents. The authors' program divides by
another number if the local solver has momentum, which is refused here, or a proximal term. As there, the factor in
front is the mean of the tau_i. There is no momentum at the server. The mean is plain; `transforms.weighted` weighs both
means by the agents' numbers of samples, as the program does.
"""

from typing import Any

from fedpd.algorithms._changes import LocalChanges, check_steps
from fedpd.algorithms._rules import fedavg_steps
from fedpd.core import Array, Method, Oracle, Vector, Work, makes
from fedpd.core.card import Card, Guarantee


class FedNova(LocalChanges):
    """Normalised averaging; an agent's number is tau_i."""

    oracle: Oracle
    plain_steps = True

    def report(self, change: Vector, work: Work) -> tuple[Vector, Array]:
        tau = work.updates.astype(float)
        return change / tau, tau

    def aggregate(self, server: Vector, mean: tuple[Vector, Array], share: Any) -> tuple[Vector, Vector]:
        d, tau = mean
        x = server + tau * d
        return x, x


@makes(FedNova)
def fednova(*, oracle: Oracle) -> Method:
    """Return FedNova, with a local oracle that works on f_i itself by plain steps, `oracles.gd` or `oracles.sgd`."""
    check_steps(oracle)
    return FedNova(oracle=oracle)


CARD = Card.single(
    title="FedNova",
    summary="local changes divided by the number of local steps, then averaging",
    family="averaging",
    authors="Jianyu Wang, Qinghua Liu, Hao Liang, Gauri Joshi, H. Vincent Poor",
    paper="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    venue="Advances in Neural Information Processing Systems 33 (NeurIPS 2020); arXiv:2007.07481",
    year=2020,
    rule=lambda L, agents, scale: fednova(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, bounded variance and differences"),
)
