"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

    x_i = oracle(f_i), from x
    v   = momentum v + mean_S x_i - x
    x   = x + v

Agents send x_i, the server sends x: one model each way (CTA). Agents that are away take the newest x when they come
back. momentum = 0 is FedAvg, and like FedAvg it stops at an error floor on heterogeneous data. Differences from the
paper: all agents weigh the same, and any oracle may take the local steps.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.checks import at_least, below
from fedpd.core import (
    Algorithm,
    Array,
    Away,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Subproblem,
    Work,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import gd

MOMENTUM = "It is the part of the last step that the server takes again, e.g. 0.9"


class Agent(NamedTuple):
    x: Vector  # the server's model on arrival, x_i after the local steps
    memory: Any  # what the oracle keeps between rounds


class Server(NamedTuple):
    x: Vector
    v: Vector


@specified
def fedavgm(*, momentum: float, oracle: Oracle) -> Algorithm:
    """Return FedAvg with a local oracle on f_i, and momentum in [0, 1) at the server."""
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

    def rebuild(f: LocalObjective, agent: Agent) -> Agent:  # for an agent that has lost its state
        return agent._replace(memory=oracle.init(f, agent.x))

    return Algorithm(
        "fedavgm",
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
        away=Away(rebuild=rebuild, repeats=True),
    )


def _rule(L: float, agents: int, scale: Any) -> Algorithm:  # a tenth of FedAvg's step: 1/(1 - momentum) steps add up
    return fedavgm(momentum=0.9, oracle=gd(step=scale / (40 * L * 8), iterations=8))


CARD = Card(
    title="FedAvgM",
    summary="FedAvg with momentum at the server",
    family="averaging",
    reference=Reference(
        authors="Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown",
        title="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        venue="NeurIPS 2019 Workshop on Federated Learning; arXiv:1909.06335",
        year=2019,
        checked=(
            "The README of Flower's baseline fedavgm confirms the authors, the title and the preprint; the workshop "
            "was not confirmed."
        ),
    ),
    variants=(Variant("FedAvgM", _rule, Guarantee("NC, not proved")),),
    parameters={"momentum": "the part of its last step that the server takes again, in [0, 1); 0 is FedAvg"},
    theory_checked="The paper claims no complexity.",
    equations_checked=(
        "The server's update agrees with Flower's FedAvgM (flwr/serverapp/strategy/fedavgm.py) at server learning rate "
        "1, which weighs agents by their sample counts."
    ),
)
