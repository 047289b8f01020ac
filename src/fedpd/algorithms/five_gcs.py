"""5GCS (Grudzień, Malinovsky, Richtárik, 2023): a primal-dual method whose local training supports client sampling.

    v   = (x - step u)/(1 + step mu),  u the mean of all u_i                sent at the end of the last round
    y_i = argmin f_i(w) - (mu/2) ||w||^2 - <u_i, w> + (tau/2) ||w - v||^2     (by the oracle, from v)
    u_i+ = grad f_i(y_i) - mu y_i
    x   = v - step mean_S (u_i+ - u_i),   u = u + (|S|/N) mean_S (u_i+ - u_i)

u_i is an estimate of the gradient of f_i without its strongly convex part, 0 at the start, and v begins at x^0. Agents
that are away keep u_i, so that it converges to the true minimiser at any participation. Agents send u_i+ - u_i (not
CTA), the server sends v: one model each way; v is the model of a run. mu is the strong convexity of the f_i, 0 where it
is not known. One more gradient than the oracle takes is counted. The paper's f is a mean too, but its u_i are 1/N of
these, and its tau is 1/N of this one.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import solver
from fedpd.base.checks import at_least, positive
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    v: Vector
    u: Vector  # u_i
    new: Vector  # u_i+
    memory: Any


class Server(NamedTuple):
    x: Vector
    u: Vector


class FiveGCS(Method):
    """5GCS; absent agents keep u_i."""

    step: float
    tau: float
    oracle: Oracle
    mu: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server((1 + self.step * self.mu) * x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, -1.0 * agent.u - self.tau * agent.v, self.tau - self.mu)
        y, memory, work = self.oracle.solve(phi, agent.v, agent.memory, r, key)
        new = f.gradient(y) - self.mu * y
        return agent._replace(new=new, memory=memory), work._replace(samples=work.samples + f.size)

    def send(self, agent: Agent) -> Change:
        return Change(agent.new - agent.u)

    def aggregate(self, server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        server = Server(self._point(server) - self.step * change, server.u + share * change)
        return server, self._point(server)

    def _point(self, server: Server) -> Vector:
        """Return v."""
        return (server.x - self.step * server.u) / (1 + self.step * self.mu)

    def receive(self, agent: Agent, v: Vector) -> Agent:
        return agent._replace(v=v, u=agent.new)

    def missed(self, agent: Agent, v: Vector) -> Agent:
        return agent._replace(v=v)

    def model(self, agent: Agent) -> Vector:
        return agent.v


@makes(FiveGCS)
def five_gcs(*, step: float, tau: float, oracle: Oracle, mu: float = 0.0) -> Method:
    """Return 5GCS with the server's step, proximal weight tau, a local oracle, and f_i that are mu-strongly convex."""
    check_oracle(oracle)
    positive("step", step, "step = 1/L is a good start, L the smoothness of the f_i")
    positive("tau", tau, "tau = 1/(2 step) is the paper's choice")
    at_least("mu", mu, 0, "mu is the strong convexity of the f_i; 0 where it is not known")
    return FiveGCS(step=step, tau=tau, oracle=oracle, mu=mu)


CARD = Card.single(
    title="5GCS",
    summary="ProxSkip that samples agents",
    family="primal-dual",
    authors="Michał Grudzień, Grigory Malinovsky, Peter Richtárik",
    paper="Can 5th Generation Local Training Methods Support Client Sampling? Yes!",
    venue="Proceedings of the 26th International Conference on Artificial Intelligence and Statistics (AISTATS "
    "2023), PMLR 206; arXiv:2212.14370",
    year=2023,
    rule=lambda L, agents, scale: five_gcs(step=scale / L, tau=L / (2 * scale), oracle=solver(L, L / (2 * scale))),
    guarantee=Guarantee("SC, condition k, everyone present", "sqrt(k) log(1/e)"),
    only_models=False,
    parameters={
        "step": "γ, the server's step",
        "tau": "τ, the weight of the proximal term; 1/(2γ) is the paper's choice",
        "mu": "μ ≥ 0, the strong convexity of the f_i",
    },
)
