"""The common part of SCALLION and SCAFCOM: SCAFFOLD whose agents send one vector, which may be compressed.

    y_i = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    g_i = (x - y_i)/(Q step) + c_i - c                   the mean gradient of the local steps
    v_i = (1 - momentum) v_i + momentum g_i
    q_i = C(scale (v_i - c_i)),      c_i = c_i + q_i     C is the compressor of `transforms.wrap`
    x   = x - server_step Q step (c + mean_S q_i),       c = c + (|S|/N) mean_S q_i

S are the agents that are present. c is the mean of all c_i in every round, so it needs no message of its own.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, Exchange, Key, Kind, LocalObjective, Subproblem, Work
from fedpd.oracles import STEP, sgd


class Agent(NamedTuple):
    """An agent.

    Attributes:
        x: The server's model.
        c: The server's control variate.
        own: c_i.
        estimate: v_i.
        change: q_i, what the agent sends.
    """

    x: Vector
    c: Vector
    own: Vector
    estimate: Vector
    change: Vector


class Server(NamedTuple):
    x: Vector
    c: Vector


def controlled_averaging(
    name: str,
    kind: Kind,
    *,
    step: float,
    iterations: int,
    batch: int | None,
    server_step: float,
    momentum: float = 1.0,
    scale: float = 1.0,
) -> Algorithm:
    """Return SCALLION or SCAFCOM; `kind` says which compressors it works with."""
    positive("step", step, STEP)
    positive("server_step", server_step, "1 is the mean of the local models")
    oracle = sgd(step, iterations, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, 0 * x, 0 * x)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, _, work = oracle.solve(Subproblem(f, agent.c - agent.own), agent.x, None, r, key)
        gradient = (agent.x - y) / (step * work.updates.astype(float)) + agent.own - agent.c
        estimate = (1 - momentum) * agent.estimate + momentum * gradient
        return agent._replace(estimate=estimate, change=scale * (estimate - agent.own)), work

    def aggregate(server: Server, change: Vector, share: Any) -> tuple[Server, Server]:
        length = server_step * step * iterations * jnp.sign(jnp.asarray(share, float))  # 0 if nobody is present
        server = Server(server.x - length * (server.c + change), server.c + share * change)
        return server, server

    def receive(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c, own=agent.own + agent.change)

    def missed(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c)

    def with_message(agent: Agent, change: Vector) -> Agent:
        return agent._replace(change=change)

    exchange = Exchange(
        local, lambda agent: agent.change, aggregate, receive, absent=missed, sends=kind, with_message=with_message
    )
    return Algorithm(
        name, init=init, server=lambda x: Server(x, 0 * x), exchanges=(exchange,), model=lambda agent: agent.x
    )


AUTHORS = "Xinmeng Huang, Ping Li, Xiaoyun Li"
TITLE = "Stochastic Controlled Averaging for Federated Learning with Communication Compression"
VENUE = "International Conference on Learning Representations (ICLR 2024); arXiv:2308.08165"
PAPER_CHECKED = (
    "The conference's page (openreview.net/forum?id=jj5ZjZsWJe) and the abstract confirm the authors, the title, the "
    "venue and the year."
)
SERVER_CHECKED = (
    "The server's step and the update of c agree with a public strategy for Flower that has SCALLION and SCAFCOM. The "
    "agents' part was not compared with the paper's listing. It was chosen so that the method without compression is "
    "equivalent to SCAFFOLD, which the abstract says (a test checks this)."
)
