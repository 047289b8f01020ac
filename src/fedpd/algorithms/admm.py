"""Consensus ADMM (Boyd et al., 2011), the classical method that FedPD builds on; here for f + g.

In the order x_0, x_i, lambda_i, with the scaled penalty 1/eta:

    x_0      = prox_{eta g}( (1/N) sum_i (x_i + eta lambda_i) )
    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta)     (by the oracle, from x_i)
    lambda_i = lambda_i + (x_i - x_0) / eta

Sent: x_i + eta lambda_i up, x_0 down (CTA). With g = 0 and an exact oracle its iterates are FedPD's at p = 0. Agents
that are away keep their x_i and lambda_i; the server keeps the mean of what was last sent, so it needs everyone at
first. Difference from the textbook: x_i may be inexact.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.base.checks import positive
from fedpd.core import (
    Algorithm,
    Array,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Work,
    augmented_lagrangian,
    check_oracle,
    describe,
)
from fedpd.regularizers import Regularizer, proximal_step


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


class Server(NamedTuple):
    x0: Vector
    mean: Vector  # of what all agents have sent last


def admm(*, eta: float, oracle: Oracle, g: Regularizer | None = None) -> Algorithm:
    """Consensus ADMM with penalty 1/eta, a local oracle and a regulariser g at the server."""
    check_oracle(oracle)
    positive("eta", eta, "eta = 1/L is a good start, L the smoothness of the f_i")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=proximal_step(g, x, eta), dual=0 * x, sent=x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, eta)
        x, memory, work = oracle.solve(lagrangian, agent.x, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + (x - agent.x0) / eta, memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x + eta * agent.dual - agent.sent

    def aggregate(server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        mean = server.mean + share * change
        x0 = proximal_step(g, mean, eta)
        return Server(x0, mean), x0

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=agent.x + eta * agent.dual)

    def missed(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    settings: dict[str, Any] = {"eta": eta, "oracle": oracle} | ({} if g is None else {"g": g})
    return Algorithm(
        description=describe("admm", **settings),
        init=init,
        server=lambda x: Server(proximal_step(g, x, eta), x),
        exchanges=(Exchange(local, send, aggregate, receive, absent=missed),),
        model=lambda agent: agent.x0,
        batch=oracle.batch,
    )
