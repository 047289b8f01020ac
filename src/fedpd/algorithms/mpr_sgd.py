"""MPR-SGD, parallel restarted SGD with momentum (Yu, Jin, Yang, 2019).

    Q times   u_i = momentum u_i + h_i(x_i; xi),   x_i = x_i - step u_i
    x = mean_S x_i,   u_i = mean_S u_i

Agents and server send the model and the momentum buffer: two models each way. No single gradient is sent, but a running
sum of gradients is, so it is CTA only in a wider sense. momentum = 0 is FedAvg. Absent agents take the newest x and u
when they return. The momentum is Polyak's; the paper also has Nesterov's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_least, below
from fedpd.core import Array, Key, LocalObjective, Method, Subproblem, Tree, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, step_at
from fedpd.oracles import Stochastic, check_stochastic, estimate

MOMENTUM = "momentum is the factor on the old buffer; 0 is FedAvg"


class Agent(NamedTuple):
    x: Vector
    u: Vector


class Steps(Stochastic):
    """The local steps."""

    step: float | Step
    momentum: float

    def advance(self, phi: Subproblem, agent: Agent, rows: Tree, r: Array, q: Array) -> Agent:
        u = self.momentum * agent.u + estimate(phi, agent.x, rows)
        return Agent(agent.x - step_at(self.step, r, q) * u, u)


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


class MPRSGD(AveragedState):
    """Local SGD with momentum."""

    momentum: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return self.steps(Steps, momentum=self.momentum).run(Subproblem(f), agent, r, key)


@makes(MPRSGD)
def mpr_sgd(
    *,
    step: float | Step,
    momentum: float,
    iterations: int | None = None,
    batch: int | None = 1,
    epochs: int | None = None,
) -> Method:
    """Return PR-SGD with momentum and Q = `iterations` local steps on `batch` samples (None: all), or `epochs`."""
    check_step(step)
    below("momentum", at_least("momentum", momentum, 0, MOMENTUM), 1, MOMENTUM)
    check_stochastic(iterations, batch, epochs=epochs)
    return MPRSGD(step=step, momentum=momentum, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="MPR-SGD",
    summary="FedAvg with momentum, averaged too",
    family="averaging",
    authors="Hao Yu, Rong Jin, Sen Yang",
    paper="On the Linear Speedup Analysis of Communication Efficient Momentum SGD for Distributed "
    "Non-Convex Optimization",
    venue="Proceedings of the 36th International Conference on Machine Learning (ICML 2019), PMLR 97, "
    "7184-7193; arXiv:1905.03817",
    year=2019,
    rule=lambda L, agents, scale: mpr_sgd(step=scale / (40 * L * Q), momentum=0.9, iterations=Q),
    guarantee=Guarantee("NC, BG", "1/e^1.5", "1/e^2", "1/e^2"),
    parameters={"momentum": "μ in [0, 1)"},
)
