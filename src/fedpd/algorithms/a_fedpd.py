"""A-FedPD (Sun, Shen, Tao, 2024): a federated primal-dual method that aligns the duals of absent agents.

    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta)     (by the oracle, from x_0)
    lambda_i = lambda_i + (x_i - x_0) / eta           for the present agents, S
    lambda_i = lambda_i + (mean_S x_j - x_0) / eta    for the absent agents: they take the mean update of the others
    x_0      = mean_S x_i + eta mean lambda           the mean over all agents' (aligned) duals

Agents send x_i, the server sends mean_S x_j and x_0 (CTA). With full participation and an exact oracle it is FedPD at p
= 0. An absent agent needs the sum of all updates that it missed: the broadcast contains their running sum, so the
newest broadcast is enough. Difference from the paper: its local solver is K SGD steps.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import solver
from fedpd.base.checks import positive
from fedpd.core import LocalObjective, Method, Model, Oracle, Work, augmented_lagrangian, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import Array, Key, Vector


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    received: Vector  # the running sum of mean_S x_j - x_0 that the dual already contains
    memory: Any


class Server(NamedTuple):
    x0: Vector
    dual: Vector  # the mean of all agents' duals
    total: Vector  # the running sum of mean_S x_j - x_0


class AFedPD(Method):
    """A-FedPD: absent agents take the mean update of the others."""

    eta: float
    oracle: Oracle
    model_first = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, received=0 * x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, self.eta)
        x, memory, work = self.oracle.solve(lagrangian, agent.x0, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + (x - agent.x0) / self.eta, memory=memory), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, tuple[Vector, Vector]]:
        step = mean - server.x0  # eta times the mean change of all agents' duals, the aligned ones included
        dual = server.dual + step / self.eta
        x0, total = mean + self.eta * dual, server.total + step
        return Server(x0, dual, total), (x0, total)

    def receive(self, agent: Agent, broadcast: tuple[Vector, Vector]) -> Agent:
        x0, total = broadcast
        return agent._replace(x0=x0, received=total)

    def missed(self, agent: Agent, broadcast: tuple[Vector, Vector]) -> Agent:
        x0, total = broadcast
        return agent._replace(x0=x0, dual=agent.dual + (total - agent.received) / self.eta, received=total)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(x=agent.x0, dual=-f.gradient(agent.x0), memory=self.oracle.init(f, agent.x0))

    def model(self, agent: Agent) -> Vector:
        return agent.x0


@makes(AFedPD)
def a_fedpd(*, eta: float, oracle: Oracle) -> Method:
    """Return A-FedPD with penalty 1/eta, and a local oracle that starts at the server's model."""
    check_oracle(oracle)
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")
    return AFedPD(eta=eta, oracle=oracle)


CARD = Card.single(
    title="A-FedPD",
    summary="FedPD that updates absent agents' duals too",
    family="primal-dual",
    authors="Yan Sun, Li Shen, Dacheng Tao",
    paper="A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs",
    venue="Advances in Neural Information Processing Systems 37 (NeurIPS 2024), arXiv:2409.18915",
    year=2024,
    rule=lambda L, agents, scale: a_fedpd(eta=scale / L, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, inexact x_i", "1/e"),
)
