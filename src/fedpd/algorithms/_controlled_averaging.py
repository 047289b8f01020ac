"""The common part of SCALLION and SCAFCOM: SCAFFOLD whose agents send one vector, which may be compressed.

    y_i = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    g_i = (x - y_i)/(Q step) + c_i - c                   the mean gradient of the local steps
    v_i = (1 - momentum) v_i + momentum g_i
    q_i = C(scale (v_i - c_i)),      c_i = c_i + q_i     C is the compressor of `transforms.wrap`
    x   = x - server_step Q step (c + mean_S q_i),       c = c + (|S|/N) mean_S q_i

S are the agents that are present. c is the mean of all c_i in every round, so it needs no message of its own. The
server moves by Q step, which must be one number: there are no `epochs`, whose Q is the agent's own, and no schedules.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedpd.base.checks import positive
from fedpd.core import Array, Difference, Key, LocalObjective, Method, Subproblem, Vector, Work
from fedpd.oracles import STEP, check_stochastic, same_iterations, sgd


class Agent(NamedTuple):
    x: Vector  # the server's model
    c: Vector  # the server's control variate
    own: Vector  # c_i
    estimate: Vector  # v_i
    change: Vector  # q_i, what the agent sends


class Server(NamedTuple):
    x: Vector
    c: Vector


class ControlledAveraging(Method):
    """SCALLION or SCAFCOM.

    Attributes:
        kind: The type of the messages, which says which compressors it works with.
        momentum: The weight of the newest gradient in v_i.
        scale: The factor of the change before it is compressed.
    """

    step: float
    iterations: int
    batch: int | None
    server_step: float
    kind: ClassVar[type[Difference]]

    @property
    def momentum(self) -> float:
        return 1.0

    @property
    def scale(self) -> float:
        return 1.0

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, 0 * x, 0 * x)

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        oracle = sgd(self.step, self.iterations, self.batch)
        y, _, work = oracle.solve(Subproblem(f, agent.c - agent.own), agent.x, None, r, key)
        gradient = (agent.x - y) / (self.step * work.updates.astype(float)) + agent.own - agent.c
        estimate = (1 - self.momentum) * agent.estimate + self.momentum * gradient
        return agent._replace(estimate=estimate, change=self.scale * (estimate - agent.own)), work

    def send(self, agent: Agent) -> Difference:
        return self.kind(agent.change)

    def aggregate(self, server: Server, change: Vector, share: Any) -> tuple[Server, Server]:
        present = jnp.sign(jnp.asarray(share, float))  # 0 if nobody is
        length = self.server_step * self.step * self.iterations * present
        server = Server(server.x - length * (server.c + change), server.c + share * change)
        return server, server

    def receive(self, agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c, own=agent.own + agent.change)

    def missed(self, agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c)

    def with_message(self, agent: Agent, change: Vector) -> Agent:
        return agent._replace(change=change)


def check_settings(
    step: float, iterations: int | None, batch: int | None, server_step: float, epochs: int | None
) -> int:
    """Return Q, and refuse settings of `ControlledAveraging` that do not fit."""
    positive("step", step, STEP)
    positive("server_step", server_step, "1 is the mean of the local models")
    steps = same_iterations(iterations, epochs, "the server moves by Q times the step size")
    check_stochastic(steps, batch)
    return steps


NO_EPOCHS = "refused, because the server moves by Q times the step size: give `iterations`"
AUTHORS = "Xinmeng Huang, Ping Li, Xiaoyun Li"
TITLE = "Stochastic Controlled Averaging for Federated Learning with Communication Compression"
VENUE = "International Conference on Learning Representations (ICLR 2024); arXiv:2308.08165"
