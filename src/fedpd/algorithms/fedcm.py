"""FedCM (Xu et al., 2021): each local step contains the mean direction of the last round (client-level momentum).

    y_i   = x;  Q times  y_i = y_i - step (alpha h_i(y_i) + (1 - alpha) Delta)
    Delta = - mean_S (y_i - x) / (Q step),          Delta = 0 at the start
    x     = x + server_step mean_S (y_i - x)

Agents send y_i - x and Q step, the server sends x and Delta: two models. Agents keep nothing between rounds, so FedCM
suits small cohorts of many agents. alpha = 1 is FedAvg. In the first round Delta = 0, so its steps are alpha times as
long as those of FedAvg. The momentum is that of those who took part in the last rounds, and the agents still walk
towards their own minima: an error floor remains.

The local problem is `alpha f_i(y) + (1 - alpha) <Delta, y>`, by any oracle with a step size. If step sizes follow a
schedule, or agents do different numbers of steps, Q step is the sum of an agent's step sizes, and the server divides by
the mean of these sums. FL-Simulator, a public program, has the same steps; it also clips gradients and adds weight
decay. The paper itself was not compared.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fednova import check_steps, total_step
from fedpd.base.checks import at_most, positive
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    x: Vector  # the server's model
    delta: Vector  # the mean direction of the last round
    change: Vector  # y_i - x
    length: Array  # the sum of the local step sizes
    memory: Any  # the oracle's memory between rounds


class Server(NamedTuple):
    x: Vector
    delta: Vector


class FedCM(Method):
    """FedAvg with momentum in the local steps."""

    alpha: float
    oracle: Oracle
    server_step: float
    model_first = True
    plain_steps = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, jnp.ones((), float), self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        scale: Any = self.alpha if f.scale is None else self.alpha * f.scale
        phi = Subproblem(f._replace(scale=scale), (1 - self.alpha) * agent.delta)  # alpha f_i + <(1 - alpha) Delta, .>
        y, memory, work = self.oracle.solve(phi, agent.x, agent.memory, r, key)
        return Agent(agent.x, agent.delta, y - agent.x, total_step(self.oracle, r, work), memory), work

    def send(self, agent: Agent) -> tuple[Change, Array]:
        return Change(agent.change), agent.length

    def aggregate(self, server: Server, mean: tuple[Vector, Array], share: Any) -> tuple[Server, Server]:
        change, length = mean
        server = Server(server.x + self.server_step * change, -change / length)
        return server, server

    def receive(self, agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, delta=server.delta)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))


@makes(FedCM)
def fedcm(*, oracle: Oracle, alpha: float = 0.1, server_step: float = 1.0) -> Method:
    """Return FedCM, with a local oracle that has a step size."""
    check_steps(oracle)
    remedy = "Give the part of the agent's own gradient in a step, e.g. 0.1; 1 is FedAvg"
    at_most("alpha", positive("alpha", alpha, remedy), 1, remedy)
    positive("server_step", server_step, "1 is the mean of the local models")
    return FedCM(alpha=alpha, oracle=oracle, server_step=server_step)


CARD = Card.single(
    title="FedCM",
    summary="local steps with the mean direction of the last round",
    family="averaging",
    authors="Jing Xu, Sen Wang, Liwei Wang, Andrew Chi-Chih Yao",
    paper="FedCM: Federated Learning with Client-level Momentum",
    venue="arXiv:2106.10874",
    year=2021,
    rule=lambda L, agents, scale: fedcm(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, not compared with the paper"),
    only_models=False,
    parameters={
        "oracle": "the local solver, `oracles.gd` or `oracles.sgd`",
        "alpha": "α in (0, 1], the part of the agent's own gradient in a local step; 1 is FedAvg",
    },
    search={"alpha": (0.1, 0.03, 0.3, 0.6)},
)
