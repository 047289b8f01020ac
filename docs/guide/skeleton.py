"""FedAvgM (Hsu, Qi, Brown, 2019): FedAvg with momentum at the server.

    x_i = oracle(f_i), from x
    v   = momentum v + mean_S x_i - x
    x   = x + v

Agents send x_i, the server sends x: one model each way (CTA). Agents that are away take the
newest x when they come back. momentum = 0 is FedAvg, and like FedAvg it stops at an error
floor on heterogeneous data. Differences from the paper: all agents weigh the same, and any
oracle may take the local steps.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd import checks, core, oracles
from fedpd.core import Array, Key, LocalObjective, Method, Model, Oracle, Subproblem, Work
from fedpd.core.card import Card, Guarantee, Reference, Variant


class Agent(NamedTuple):
    x: Vector  # the server's model on arrival, x_i after the local steps
    memory: Any  # what the oracle keeps between rounds


class FedAvgM(Method):
    momentum: float
    oracle: Oracle

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, self.oracle.init(f, x))

    def server(self, x: Vector) -> tuple[Vector, Vector]:
        return x, 0 * x  # x and v

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def aggregate(self, server: Any, mean: Vector, share: Any) -> tuple[Any, Vector]:
        x = mean + self.momentum * server[1]
        return (x, x - server[0]), x

    def receive(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)


@core.makes(FedAvgM)
def fedavgm(*, momentum: float, oracle: Oracle) -> Method:
    """Return FedAvg with a local oracle on f_i, and momentum in [0, 1) at the server."""
    momentum = checks.at_least("momentum", momentum, 0, "0 is FedAvg")
    return FedAvgM(momentum=checks.below("momentum", momentum, 1, "Give 0.9"), oracle=oracle)


def rule(L: float, agents: int, scale: Any) -> Method:
    # a tenth of FedAvg's step: 1/(1 - momentum) steps add up
    return fedavgm(momentum=0.9, oracle=oracles.gd(step=scale / (40 * L * 8), iterations=8))


TITLE = "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification"
CARD = Card(
    title="FedAvgM",
    summary="FedAvg with momentum at the server",
    family="averaging",
    reference=Reference("Harry Hsu, Hang Qi, Matthew Brown", TITLE, "arXiv:1909.06335", 2019),
    variants=(Variant("FedAvgM", rule, Guarantee("NC, not proved")),),
    parameters={"momentum": "the part of its last step that the server repeats; 0 is FedAvg"},
)
