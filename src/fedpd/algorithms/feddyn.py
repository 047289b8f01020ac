"""FedDyn (Acar et al., 2021): a dynamic regulariser that makes the agents' stationary points the server's.

    x_i  = argmin f_i(x) - <g_i, x> + (alpha/2) ||x - x_0||^2        (by the oracle, from x_i)
    g_i  = g_i - alpha (x_i - x_0)
    h    = h - alpha (|S|/N) mean_S (x_i - x_0)
    x_0  = mean_S x_i - h / alpha

S are those present: h is the mean of all agents' g_i changes, so that partial participation converges. Sent: x_i up,
x_0 down (CTA). With alpha = 1/eta and an exact oracle its iterates are FedPD's at p = 0 (g_i = -lambda_i). Difference
from the paper: its program starts the local solver at x_0, this one at the agent's own x_i; the minimiser is the same.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Oracle, Subproblem, Work, check_oracle, describe


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    g: Vector  # grad f_i(x_i), by its optimality condition
    memory: Any


class Server(NamedTuple):
    x0: Vector
    h: Vector


def feddyn(*, alpha: float, oracle: Oracle) -> Algorithm:
    """FedDyn with regulariser weight alpha and a local oracle."""
    check_oracle(oracle)
    positive("alpha", alpha, "alpha = L is a good start, L the smoothness of the f_i; FedPD's eta is 1/alpha")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, g=0 * x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, -alpha * agent.x0 - agent.g, alpha)
        x, memory, work = oracle.solve(phi, agent.x, agent.memory, r, key)
        return agent._replace(x=x, g=agent.g - alpha * (x - agent.x0), memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x

    def aggregate(server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        h = server.h - alpha * share * (mean - server.x0)
        x0 = mean - h / alpha
        return Server(x0, h), x0

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def rebuild(f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(x=agent.x0, g=f.gradient(agent.x0), memory=oracle.init(f, agent.x0))

    return Algorithm(
        description=describe("feddyn", alpha=alpha, oracle=oracle),
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x0,
        batch=oracle.batch,
        rebuild=rebuild,
    )
