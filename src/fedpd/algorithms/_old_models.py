"""FedPD for asynchronous runs, in which agents work with old models of the server.

    x_i      = argmin f_i(x) + <lambda_i, x - x_{0,i}> + ||x - x_{0,i}||^2 / (2 eta)     (by the oracle)
    lambda_i = lambda_i + (x_i - x_{0,i}) / eta
    x_0      = (1/N) sum_i (x_i + eta lambda_i)

x_{0,i} is the x_0 that agent i received last. Agents send the change of x_i + eta lambda_i, so the server's mean is
over all agents, however old their messages are. If every agent is present in every step, this is FedPD with p = 0. With
y_i = x_{0,i} - eta lambda_i it is asyncFedDR (Tran-Dinh et al., 2021) without relaxation and regulariser:
y_i <- y_i + (x_{0,i} - x_i), x_i = prox_{eta f_i}(y_i), and x_i + eta lambda_i = 2 x_i - y_i.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.core import Algorithm, Exchange, LocalObjective, Oracle


class Agent(NamedTuple):
    x: Vector
    x0: Vector  # as received last; x_i + eta lambda_i after the local steps
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


def with_old_models(whole: Algorithm, eta: Any, oracle: Oracle) -> Algorithm:
    """Return FedPD with a server that keeps the mean of all x_i + eta lambda_i; `whole` is FedPD with p = 0."""

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, sent=x, memory=oracle.init(f, x))

    def send(agent: Agent) -> Vector:
        return agent.x0 - agent.sent

    def aggregate(server: Vector, change: Vector, share: Any) -> tuple[Vector, Vector]:
        x0 = server + share * change
        return x0, x0

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=agent.x + eta * agent.dual)

    def missed(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    exchange = Exchange(whole.exchanges[0].local, send, aggregate, receive, absent=missed)
    away = whole.away._replace(repeats=False, rebuild=None)
    return whole._replace(init=init, server=lambda x: x, exchanges=(exchange,), away=away)
