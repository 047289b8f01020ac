"""The common parts of methods whose server averages models: FedAvg and FedProx, Ditto and pFedMe, MPR-SGD and STEM."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpd.base.value import attribute
from fedpd.core import Array, Key, LocalObjective, Method, Model, Subproblem, Vector, Work
from fedpd.core.oracle import Step
from fedpd.oracles import Stochastic


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, x_i^{r,Q} after the local steps
    memory: Any  # the oracle's memory between rounds


class LocalAveraging(Method):
    """x_i = oracle(subproblem(f_i, x^r)) from x^r, x^{r+1} = (1/N) sum_i x_i; one model each way."""

    oracle = attribute(None)  # of type Oracle; a field, or made of other fields
    repeats = True

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        """Return what an agent minimises that received x."""
        return Subproblem(f)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = self.oracle.solve(self.subproblem(f, agent.x), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def with_message(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))


class BesidePersonalModels(Method):
    """Agents send x and keep a personal model, which they lose if their state is lost. States have a field x."""

    repeats = True

    def send(self, agent: Any) -> Vector:
        return agent.x

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        return self.init(f, agent.x)


class AveragedState(Method):
    """MPR-SGD, STEM and PR-SPIDER: agents send and receive their whole state, two vectors; the server keeps x."""

    step: float | Step
    iterations: int | None
    batch: int | None
    epochs: int | None

    def steps(self, kind: Callable[..., Stochastic], **more: Any) -> Stochastic:
        """Return the local steps, of this kind."""
        return kind(step=self.step, iterations=self.iterations, batch=self.batch, epochs=self.epochs, **more)

    def send(self, agent: Any) -> Any:
        return agent

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        return mean.x, mean

    def receive(self, agent: Any, mean: Any) -> Any:
        return mean
