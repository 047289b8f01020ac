"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

    x_i   = oracle(f_i), from x
    Delta = mean_S x_i - x
    v     = momentum v + Delta,     v = 0 at the start
    x     = x + step v

Agents send x_i, the server sends x: one model each way (CTA). Agents that are away take the newest x when they come
back. momentum = 0 and step = 1 is FedAvg. Steps add up to 1/(1 - momentum) times those of FedAvg, so give the agents
smaller steps. Like FedAvg, it stops at an error floor on heterogeneous data.

Differences from the paper: the mean is plain (`transforms.weighted` weighs it by the agents' samples, as the paper
does), any oracle may take the local steps, and the paper has step = 1. Reddi et al. take FedAvgM as the server
optimiser SGD with momentum and tune its step, as Flower's FedAvgM does; all three have this v, without a factor
1 - momentum.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedadam import check_decay
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.base.checks import positive
from fedpd.core import Method, Oracle, Vector, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class Server(NamedTuple):
    x: Vector
    v: Vector


class FedAvgM(LocalAveraging):
    """FedAvg with momentum at the server."""

    oracle: Oracle
    step: float
    momentum: float
    repeats = False  # v is a sum of what agents sent
    model_first = True

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x)

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        v = self.momentum * server.v + (mean - server.x)
        x = server.x + self.step * v
        return Server(x, v), x


@makes(FedAvgM)
def fedavgm(*, oracle: Oracle, step: float = 1.0, momentum: float = 0.9) -> Method:
    """Return FedAvgM, with a local oracle that works on f_i itself."""
    check_oracle(oracle)
    positive("step", step, "1 adds the mean change to the model")
    check_decay("momentum", momentum)
    return FedAvgM(oracle=oracle, step=step, momentum=momentum)


CARD = Card.single(
    title="FedAvgM",
    summary="FedAvg with momentum at the server",
    family="averaging",
    authors="Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown",
    paper="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    venue="arXiv:1909.06335",
    year=2019,
    rule=lambda L, agents, scale: fedavgm(oracle=fedavg_steps(L, scale / 10)),  # a tenth: 1/(1 - momentum) steps add up
    guarantee=Guarantee("NC, not proved"),
    parameters={
        "step": "the server's step size; 1 is that of the paper",
        "momentum": "the part of its last step that the server takes again, in [0, 1); 0 is FedAvg with a server step",
    },
    search={"momentum": 0.9},
)
