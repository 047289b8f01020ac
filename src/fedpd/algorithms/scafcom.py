"""SCAFCOM (Huang, Li, Li, 2023): SCAFFOLD with one compressed vector per message and momentum, for any compressor.

    y_i = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    v_i = (1 - beta) v_i + beta ((x - y_i)/(Q step) + c_i - c)
    q_i = C(v_i - c_i),   c_i = c_i + q_i
    x   = x - server_step Q step (c + mean_S q_i),   c = c + (|S|/N) mean_S q_i

C is the compressor of `transforms.wrap(..., up=...)`, e.g. `top_k`; without it, agents send the vector as it is. The
momentum keeps the noise of stochastic gradients out of c_i. Agents send one vector (not CTA), the server sends x and c.
Absent agents keep c_i and v_i. With beta = 1 it is SCALLION with alpha = 1.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_most, positive
from fedpd.core import Array, Difference, Key, LocalObjective, Method, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee, Reference
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
    """SCAFCOM and SCALLION, with g_i the mean gradient of the local steps:

        v_i = (1 - momentum) v_i + momentum g_i,   q_i = C(scale (v_i - c_i))

    c is the mean of all c_i in every round, so it needs no message of its own. The server moves by Q step, which must
    be one number: there are no `epochs`, whose Q is the agent's own, and no schedules.
    """

    step: float
    iterations: int
    batch: int | None
    server_step: float
    kind: ClassVar[type[Difference]]  # of the messages, which says which compressors it works with

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
REFERENCE = Reference(
    authors="Xinmeng Huang, Ping Li, Xiaoyun Li",
    title="Stochastic Controlled Averaging for Federated Learning with Communication Compression",
    venue="International Conference on Learning Representations (ICLR 2024); arXiv:2308.08165",
    year=2024,
)


class Scafcom(ControlledAveraging):
    """SCAFFOLD with momentum and any compression."""

    beta: float
    kind: ClassVar = Difference

    @property
    def momentum(self) -> float:
        return self.beta


@makes(Scafcom)
def scafcom(
    *,
    step: float,
    iterations: int | None = None,
    batch: int | None = None,
    beta: float = 1.0,
    server_step: float = 1.0,
    epochs: int | None = None,
) -> Method:
    """Return SCAFCOM with Q = `iterations` local steps."""
    remedy = "Give the weight of the newest gradient, e.g. 0.2; 1 is no momentum"
    at_most("beta", positive("beta", beta, remedy), 1, remedy)
    steps = check_settings(step, iterations, batch, server_step, epochs)
    return Scafcom(step=step, iterations=steps, batch=batch, beta=beta, server_step=server_step)


CARD = Card.single(
    title="SCAFCOM",
    summary="SCAFFOLD with one vector, any compression",
    family="corrected gradients",
    reference=REFERENCE,
    rule=lambda L, agents, scale: scafcom(step=scale / (24 * L * Q), iterations=Q, beta=0.5),
    guarantee=Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    only_models=False,
    parameters={"beta": "β, the weight of the newest gradient, in (0, 1]; 1: no momentum", "epochs": NO_EPOCHS},
)
