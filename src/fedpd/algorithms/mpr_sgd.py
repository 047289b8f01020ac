"""MPR-SGD, parallel restarted SGD with momentum (Yu, Jin, Yang, 2019).

    Q times   u_i = momentum u_i + h_i(x_i; xi),   x_i = x_i - step u_i
    x = mean_S x_i,   u_i = mean_S u_i

Sent: model and momentum buffer, two models each way (CTA in spirit: no gradient is sent, but their running sum is).
momentum = 0 is FedAvg. Agents that are away take the newest x and u when they come back. No differences from the
paper's Algorithm 1 (Polyak's momentum; it also has Nesterov's).
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.base.checks import at_least, below, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Tree, Work, describe
from fedpd.oracles import STEP, Loop, estimate

MOMENTUM = "momentum is the part of the buffer that is kept; 0 is FedAvg"


class Agent(NamedTuple):
    x: Vector
    u: Vector


def mpr_sgd(*, step: float, momentum: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """PR-SGD with momentum: Q = iterations local steps on `batch` samples (None: all of them)."""
    positive("step", step, STEP)
    below("momentum", at_least("momentum", momentum, 0, MOMENTUM), 1, MOMENTUM)
    loop = Loop.of(iterations, batch)

    def advance(phi: Subproblem, agent: Agent, rows: Tree, r: Array, q: Array) -> Agent:
        u = momentum * agent.u + estimate(phi, agent.x, rows)
        return Agent(agent.x - step * u, u)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return loop.run(advance, lambda agent: agent.x, Subproblem(f), agent, r, key, per_step=1)

    def send(agent: Agent) -> Agent:
        return agent

    def aggregate(server: Vector, mean: Agent, share: Any) -> tuple[Vector, Agent]:
        return mean.x, mean

    def receive(agent: Agent, mean: Agent) -> Agent:
        return mean

    return Algorithm(
        description=describe("mpr_sgd", step=step, momentum=momentum, iterations=iterations, batch=batch),
        init=lambda f, x: Agent(x, 0 * x),
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
        batch=batch,
    )
