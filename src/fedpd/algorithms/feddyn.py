"""FedDyn (Acar et al., 2021): a dynamic regulariser aligns the agents' stationary points with the server's.

    x_i  = argmin f_i(x) - <g_i, x> + (alpha/2) ||x - x_0||^2        (by the oracle, from x_0)
    g_i  = g_i - alpha (x_i - x_0)
    h    = h - alpha (|S|/N) mean_S (x_i - x_0)
    x_0  = mean_S x_i - h / alpha

S are the agents that are present. h sums the changes of all agents' g_i, so FedDyn converges with partial
participation. Agents send x_i, the server sends x_0 (CTA). With alpha = 1/eta its iterates are those of FedPD at p = 0
with the same `start` (g_i = -lambda_i). The paper leaves open where the local solver starts: the authors' program
starts it at x_0, which is the default here. With few noisy steps this matters much: start="local", at the agent's own
x_i, keeps the noise of all earlier rounds.
"""

from typing import Any, Literal, NamedTuple

from fedpd.algorithms._rules import solver
from fedpd.base.checks import choice, positive
from fedpd.core import Array, Key, LocalObjective, Method, Model, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    g: Vector  # grad f_i(x_i), by its optimality condition
    memory: Any


class Server(NamedTuple):
    x0: Vector
    h: Vector


class FedDyn(Method):
    """FedDyn; the server's h sums the mean changes of the agents' g_i."""

    alpha: float
    oracle: Oracle
    start: Literal["local", "server"]
    model_first = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, g=0 * x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, -self.alpha * agent.x0 - agent.g, self.alpha)
        begin = agent.x if self.start == "local" else agent.x0
        x, memory, work = self.oracle.solve(phi, begin, agent.memory, r, key)
        return agent._replace(x=x, g=agent.g - self.alpha * (x - agent.x0), memory=memory), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        h = server.h - self.alpha * share * (mean - server.x0)
        x0 = mean - h / self.alpha
        return Server(x0, h), x0

    def receive(self, agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(x=agent.x0, g=f.gradient(agent.x0), memory=self.oracle.init(f, agent.x0))

    def model(self, agent: Agent) -> Vector:
        return agent.x0


@makes(FedDyn)
def feddyn(*, alpha: float, oracle: Oracle, start: Literal["local", "server"] = "server") -> Method:
    """Return FedDyn with regulariser weight alpha and a local oracle."""
    check_oracle(oracle)
    choice("start", start, ("local", "server"))
    positive("alpha", alpha, "alpha = L is a good start, where L is the smoothness of the f_i; FedPD's eta is 1/alpha")
    return FedDyn(alpha=alpha, oracle=oracle, start=start)


CARD = Card.single(
    title="FedDyn",
    summary="a dynamic regulariser at each agent",
    family="primal-dual",
    authors="Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough, "
    "Venkatesh Saligrama",
    paper="Federated Learning Based on Dynamic Regularization",
    venue="9th International Conference on Learning Representations (ICLR 2021, oral); arXiv:2111.04263",
    year=2021,
    rule=lambda L, agents, scale: feddyn(alpha=L / scale, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, exact x_i", "1/e"),
    parameters={"alpha": "α, the weight of the regulariser; 1/η of FedPD"},
)
