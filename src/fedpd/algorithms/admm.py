"""Consensus ADMM (Boyd et al., 2011), the classical method that FedPD builds on; here for f + g.

In the order x_0, x_i, lambda_i, with the scaled penalty 1/eta:

    x_0      = prox_{eta g}( (1/N) sum_i (x_i + eta lambda_i) )
    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta)     (by the oracle, from x_i)
    lambda_i = lambda_i + (x_i - x_0) / eta

Agents send x_i + eta lambda_i, the server sends x_0 (CTA). With g = 0 and an exact oracle its iterates are FedPD's at p
= 0. Absent agents keep their x_i and lambda_i. The server keeps the mean of the last messages; an agent that was never
present counts with x^0. start="server" starts the local solver at x_0. Difference from the textbook: x_i may be
inexact.
"""

from typing import Any, Literal, NamedTuple

from fedpd.algorithms._rules import solver
from fedpd.base.checks import choice, positive
from fedpd.core import Array, Change, Key, Method, Oracle, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.objective import LocalObjective, Subproblem, augmented_lagrangian
from fedpd.regularizers import Regularizer, proximal_step


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


class DualAgents(Method):
    """ADMM and FedADMM: agents have a dual for x_i = x_0, and send the change of x_i + eta lambda_i.

    Subclasses have `lagrangian`, `divide` and `multiply`.
    """

    oracle: Oracle
    start: Literal["local", "server"]

    def lagrangian(self, f: LocalObjective, agent: Agent) -> Subproblem:
        """Return the local problem, whose penalty is 1/eta."""
        raise NotImplementedError

    def divide(self, v: Vector) -> Vector:
        """Return v/eta, in the form of the method's own equations."""
        raise NotImplementedError

    def multiply(self, v: Vector) -> Vector:
        """Return eta v, in the same form."""
        raise NotImplementedError

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, sent=x, memory=self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        begin = agent.x if self.start == "local" else agent.x0
        x, memory, work = self.oracle.solve(self.lagrangian(f, agent), begin, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + self.divide(x - agent.x0), memory=memory), work

    def send(self, agent: Agent) -> Change:
        return Change(agent.x + self.multiply(agent.dual) - agent.sent)

    def receive(self, agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0, sent=agent.x + self.multiply(agent.dual))

    def missed(self, agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def model(self, agent: Agent) -> Vector:
        return agent.x0


class Server(NamedTuple):
    x0: Vector
    mean: Vector  # of the last message of every agent


class ADMM(DualAgents):
    """Consensus ADMM with a regulariser at the server."""

    eta: float
    g: Regularizer | None

    def lagrangian(self, f: LocalObjective, agent: Agent) -> Subproblem:
        return augmented_lagrangian(f, agent.x0, agent.dual, self.eta)

    def divide(self, v: Vector) -> Vector:
        return v / self.eta

    def multiply(self, v: Vector) -> Vector:
        return self.eta * v

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return super().init(f, x)._replace(x0=proximal_step(self.g, x, self.eta))

    def server(self, x: Vector) -> Server:
        return Server(proximal_step(self.g, x, self.eta), x)

    def aggregate(self, server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        mean = server.mean + share * change
        x0 = proximal_step(self.g, mean, self.eta)
        return Server(x0, mean), x0


@makes(ADMM)
def admm(
    *, eta: float, oracle: Oracle, g: Regularizer | None = None, start: Literal["local", "server"] = "local"
) -> Method:
    """Return consensus ADMM with penalty 1/eta, a local oracle, and a regulariser g at the server."""
    check_oracle(oracle)
    choice("start", start, ("local", "server"))
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")
    return ADMM(eta=eta, oracle=oracle, g=g, start=start)


CARD = Card.single(
    title="ADMM",
    summary="the classical method that FedPD builds on",
    family="primal-dual",
    authors="Stephen Boyd, Neal Parikh, Eric Chu, Borja Peleato, Jonathan Eckstein",
    paper=("Distributed Optimization and Statistical Learning via the Alternating Direction Method of Multipliers"),
    venue="Foundations and Trends in Machine Learning 3(1), 1-122",
    year=2011,
    rule=lambda L, agents, scale: admm(eta=scale / L, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, exact x_i, g = 0", "1/e"),
)
