"""FedDR (Tran-Dinh et al., 2021): randomised Douglas-Rachford splitting for f + g.

    y_i   = y_i + alpha (x_0 - x_i)
    x_i   = prox_{eta f_i}(y_i) = argmin f_i(x) + ||x - y_i||^2 / (2 eta)     (by the oracle, from x_i)
    xh_i  = 2 x_i - y_i
    mean  = mean + (|S|/N) mean_S (xh_i - xh_i as last sent)
    x_0   = prox_{eta g}(mean)

Absent agents keep y_i, x_i and xh_i, so the server's mean stays a mean over all agents. Agents send the change of xh_i,
the server sends x_0 (CTA). An asynchronous run with a buffer of 1 is the paper's asyncFedDR. With alpha = 1, g = 0 and
an exact oracle its iterates are FedPD's at p = 0. The authors' program, too, starts the local solver at the agent's own
x_i; start="server" starts it at x_0. Its scripts use alpha = 1.95 and eta = 100 to 1000. Difference from the paper:
this program starts at y_i = x_i = xh_i = x^0, without the initial round of proximal steps.
"""

from typing import Any, Literal, NamedTuple

from fedpd.algorithms._rules import solver
from fedpd.base.checks import below, choice, positive
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Vector, Work, check_oracle, makes, proximal
from fedpd.core.card import Card, Guarantee
from fedpd.regularizers import Regularizer, proximal_step

RELAXATION = "alpha is the relaxation; 1 is none"


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    y: Vector
    sent: Vector  # xh_i as the server knows it
    memory: Any


class Server(NamedTuple):
    x0: Vector
    mean: Vector  # of all agents' xh_i


class FedDR(Method):
    """FedDR; absent agents keep their state, and the server the mean over all agents."""

    eta: float
    oracle: Oracle
    alpha: float
    g: Regularizer | None
    start: Literal["local", "server"]

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=proximal_step(self.g, x, self.eta), y=x, sent=x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(proximal_step(self.g, x, self.eta), x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y = agent.y + self.alpha * (agent.x0 - agent.x)
        begin = agent.x if self.start == "local" else agent.x0
        x, memory, work = self.oracle.solve(proximal(f, y, 1 / self.eta), begin, agent.memory, r, key)
        return agent._replace(x=x, y=y, memory=memory), work

    def send(self, agent: Agent) -> Change:
        return Change(2 * agent.x - agent.y - agent.sent)

    def aggregate(self, server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        mean = server.mean + share * change
        x0 = proximal_step(self.g, mean, self.eta)
        return Server(x0, mean), x0

    def receive(self, agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=2 * agent.x - agent.y)

    def missed(self, agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def model(self, agent: Agent) -> Vector:
        return agent.x0

    def asynchronous(self) -> Method:
        return self


@makes(FedDR)
def feddr(
    *,
    eta: float,
    oracle: Oracle,
    alpha: float = 1.0,
    g: Regularizer | None = None,
    start: Literal["local", "server"] = "local",
) -> Method:
    """Return FedDR with prox parameter eta, relaxation alpha, a local oracle, and a regulariser g at the server."""
    check_oracle(oracle)
    choice("start", start, ("local", "server"))
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")
    below("alpha", positive("alpha", alpha, RELAXATION), 2, RELAXATION)
    return FedDR(eta=eta, oracle=oracle, alpha=alpha, g=g, start=start)


CARD = Card.single(
    title="FedDR",
    summary="randomised Douglas-Rachford splitting",
    family="primal-dual",
    authors="Quoc Tran-Dinh, Nhan H. Pham, Dzung T. Phan, Lam M. Nguyen",
    paper="FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated Composite Optimization",
    venue="Advances in Neural Information Processing Systems 34 (NeurIPS 2021); arXiv:2103.03452",
    year=2021,
    rule=lambda L, agents, scale: feddr(eta=scale / L, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, inexact x_i", "1/e"),
    parameters={"eta": "η, the parameter of the proximal operators", "alpha": "α in (0, 2), the relaxation; 1 is none"},
)
