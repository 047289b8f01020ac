"""The common part of ADMM and FedADMM: agents have a dual and send the change of x_i + eta lambda_i."""

from typing import Any, Literal, NamedTuple

from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


class DualAgents(Method):
    """A method whose agents have a dual for x_i = x_0. Subclasses have `lagrangian`, `divide` and `multiply`."""

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
