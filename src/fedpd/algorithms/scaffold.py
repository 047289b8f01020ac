"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift.

    y_i  = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    c_i+ = grad f_i(x)                              option 1
    c_i+ = c_i - c + (x - y_i)/(Q step)             option 2
    x    = x + server_step mean_S (y_i - x),        c = c + (|S|/N) mean_S (c_i+ - c_i)

Sent: y_i - x and c_i+ - c_i up, x and c down: two models each way, and c_i is a gradient estimate, so it does not keep
to the CTA protocol's single model. Agents that are away keep c_i. With full participation, option 2 and server_step 1
it is VRL-SGD. No differences from the paper but full gradients (batch=None) as an option.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.base.checks import choice, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Work, describe
from fedpd.oracles import STEP, sgd


class Agent(NamedTuple):
    x: Vector  # the server's model
    c: Vector  # the server's control variate
    y: Vector  # the local model
    own: Vector  # c_i
    new: Vector  # c_i+


class Server(NamedTuple):
    x: Vector
    c: Vector


def scaffold(
    *, step: float, iterations: int, batch: int | None = None, option: int = 2, server_step: float = 1.0
) -> Algorithm:
    """SCAFFOLD with Q = iterations local steps on `batch` samples (None: all of them)."""
    positive("step", step, STEP)
    positive("server_step", server_step, "1 is the mean of the local models")
    choice("option", str(option), ("1", "2"))
    oracle = sgd(step, iterations, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, c=0 * x, y=x, own=0 * x, new=0 * x)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, _, work = oracle.solve(Subproblem(f, agent.c - agent.own), agent.x, None, r, key)
        if option == 1:
            new, work = f.gradient(agent.x), work._replace(samples=work.samples + f.size)
        else:
            new = agent.own - agent.c + (agent.x - y) / (step * work.updates.astype(float))
        return agent._replace(y=y, new=new), work

    def send(agent: Agent) -> tuple[Vector, Vector]:
        return agent.y - agent.x, agent.new - agent.own

    def aggregate(server: Server, mean: tuple[Vector, Vector], share: Any) -> tuple[Server, Server]:
        moved, change = mean
        server = Server(server.x + server_step * moved, server.c + share * change)
        return server, server

    def receive(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c, own=agent.new)

    def missed(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c)

    settings = {"step": step, "iterations": iterations, "batch": batch, "option": option, "server_step": server_step}
    return Algorithm(
        description=describe("scaffold", **settings),
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive, absent=missed),),
        model=lambda agent: agent.x,
        batch=batch,
    )
