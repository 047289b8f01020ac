"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

    x_i = oracle(f_i), from x
    v   = momentum v + mean_S x_i - x
    x   = x + v

Sent: x_i up, x down: one model each way (CTA). Agents that are away take the newest x when they come back. momentum = 0
is FedAvg, and like FedAvg it stops at a floor on heterogeneous data. Differences from the paper: all agents weigh the
same, and any oracle may take the local steps.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.checks import at_least, below
from fedpd.core import (
    Algorithm,
    Array,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Subproblem,
    Work,
    check_oracle,
    specified,
)

MOMENTUM = "It is the part of the last step that the server takes again, e.g. 0.9"


class Agent(NamedTuple):
    x: Vector  # the server's model on arrival, x_i after the local steps
    memory: Any  # what the oracle keeps between rounds


class Server(NamedTuple):
    x: Vector
    v: Vector


@specified
def fedavgm(*, momentum: float, oracle: Oracle) -> Algorithm:
    """FedAvg with a local oracle on f_i, and momentum in [0, 1) at the server."""
    check_oracle(oracle)
    below("momentum", at_least("momentum", momentum, 0, MOMENTUM), 1, MOMENTUM)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    def send(agent: Agent) -> Vector:
        return agent.x

    def aggregate(server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        v = momentum * server.v + mean - server.x
        x = server.x + v
        return Server(x, v), x

    def receive(agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    return Algorithm(
        "fedavgm",
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
    )
