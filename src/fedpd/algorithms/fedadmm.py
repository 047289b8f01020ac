"""FedADMM (Gong, Li, Freris, 2022): ADMM by differences, for agents that come and go and work as much as they can.

    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + (rho/2) ||x - x_0||^2     (by the oracle, from x_i)
    lambda_i = lambda_i + rho (x_i - x_0)
    Delta_i  = (x_i + lambda_i/rho) now - as last sent
    x_0      = x_0 + server_step mean_S Delta_i

Sent: Delta_i up, x_0 down (CTA). server_step = |S|/N (the default, None) keeps x_0 the mean of all agents' x_i +
lambda_i/rho, which converges with partial participation; the paper also tries larger ones. Variable local work is the
oracle's tolerance, or stragglers.
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


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # x_i + lambda_i/rho as the server knows it
    memory: Any


def fedadmm(*, rho: float, oracle: Oracle, server_step: float | None = None) -> Algorithm:
    """FedADMM with penalty rho, a local oracle and a server step (None: the share of agents that are present)."""
    check_oracle(oracle)
    positive("rho", rho, "rho = L is a good start, L the smoothness of the f_i")
    if server_step is not None:
        positive("server_step", server_step, "Leave it out for |S|/N")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, sent=x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, 1 / rho)
        x, memory, work = oracle.solve(lagrangian, agent.x, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + rho * (x - agent.x0), memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x + agent.dual / rho - agent.sent

    def aggregate(server: Vector, delta: Vector, share: Any) -> tuple[Vector, Vector]:
        x0 = server + (share if server_step is None else server_step) * delta
        return x0, x0

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=agent.x + agent.dual / rho)

    def missed(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    return Algorithm(
        description=describe("fedadmm", rho=rho, oracle=oracle, server_step=server_step),
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive, absent=missed),),
        model=lambda agent: agent.x0,
        batch=oracle.batch,
    )
