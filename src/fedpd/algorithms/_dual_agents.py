"""The common part of ADMM and FedADMM: agents have a dual and send the change of x_i + eta lambda_i."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.core import (
    Aggregate,
    Array,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Work,
    augmented_lagrangian,
)


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


def dual_exchange(
    oracle: Oracle,
    eta: Any,
    aggregate: Aggregate,
    divide: Callable[[Vector], Vector],
    multiply: Callable[[Vector], Vector],
) -> Exchange:
    """Return the exchange of agents that have a dual for x_i = x_0.

    Args:
        oracle: Solves the local problem, from x_i.
        eta: The penalty is 1/eta.
        aggregate: How the server uses the mean change.
        divide: Divides by eta, in the form of the method's own equations.
        multiply: Multiplies by eta, in the same form.
    """

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, eta)
        x, memory, work = oracle.solve(lagrangian, agent.x, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + divide(x - agent.x0), memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x + multiply(agent.dual) - agent.sent

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=agent.x + multiply(agent.dual))

    def missed(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    return Exchange(local, send, aggregate, receive, absent=missed, sends="change")
