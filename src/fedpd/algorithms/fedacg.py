"""FedACG (Kim, Kim, Han, 2024): the server sends a point ahead of its model, and agents stay near it.

    z     = x + momentum m                                          the broadcast, ahead of the server's model x
    y_i   = argmin f_i(y) + (rho/2) ||y - z||^2                      (by the oracle, from z)
    Delta = mean_S y_i - z
    m     = momentum m + Delta,     m = 0 at the start
    x     = x + m                                                   which is mean_S y_i

This is Nesterov's momentum at the server: the local steps begin where the momentum leads to. Agents send y_i, the
server sends z: one model each way (CTA). momentum = 0 is FedProx, and FedAvg with rho = 0. The model of a run is x,
which only the server has. Like FedAvg, it stops at an error floor on heterogeneous data.

The defaults are those of the authors' program, which has momentum 0.85 and adds 1e-3 ||y - z||^2 to the local loss,
that is rho = 2e-3. That program also clips gradients and adds weight decay.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedadam import check_decay
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.base.checks import at_least
from fedpd.core import LocalObjective, Method, Oracle, Subproblem, Vector, check_oracle, makes, proximal
from fedpd.core.card import Card, Guarantee


class Server(NamedTuple):
    z: Vector  # the last broadcast
    x: Vector
    m: Vector


class FedACG(LocalAveraging):
    """FedProx around a point ahead of the server's model."""

    oracle: Oracle
    momentum: float
    rho: float
    repeats = False  # m is a sum of what agents sent

    def server(self, x: Vector) -> Server:
        return Server(x, x, 0 * x)

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        return proximal(f, x, self.rho)

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        m = self.momentum * server.m + (mean - server.z)
        z = mean + self.momentum * m
        return Server(z, mean, m), z

    def delivers(self, server: Server) -> Vector:
        return server.x


@makes(FedACG)
def fedacg(*, oracle: Oracle, momentum: float = 0.85, rho: float = 2e-3) -> Method:
    """Return FedACG, with a local oracle on f_i(y) + (rho/2) ||y - z||^2."""
    check_oracle(oracle)
    check_decay("momentum", momentum)
    at_least("rho", rho, 0, "rho is the weight of (rho/2)||y - z||^2; 0 leaves it out")
    return FedACG(oracle=oracle, momentum=momentum, rho=rho)


CARD = Card.single(
    title="FedACG",
    summary="FedProx around a point ahead of the server's model",
    family="averaging",
    authors="Geeho Kim, Jinkyu Kim, Bohyung Han",
    paper="Communication-Efficient Federated Learning with Accelerated Client Gradient",
    venue="IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR 2024); arXiv:2201.03172",
    year=2024,
    rule=lambda L, agents, scale: fedacg(oracle=fedavg_steps(L, scale / 10)),  # as for FedAvgM
    guarantee=Guarantee("NC, not compared with the paper"),
    parameters={
        "momentum": "λ in [0, 1): how far ahead of its model the server sends, and the part of m that it keeps",
        "rho": "ρ ≥ 0, the weight of the proximal term",
    },
    search={"momentum": 0.85},
)
