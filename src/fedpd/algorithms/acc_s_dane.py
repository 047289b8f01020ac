"""Acc-S-DANE (Jiang, Rodomanov, Stich, 2024): S-DANE with Nesterov's acceleration.

    a   = (B + sqrt(B^2 + 4 rho A B))/(2 rho)                                a^2 rho = (A + a) B
    y   = (A x + a v)/(A + a)                                                sent at the end of the last round
    g   = mean_S grad f_i(y)                                                           first exchange
    x_i = argmin f_i(w) + <g - grad f_i(y), w> + (rho/2) ||w - y||^2     (by the oracle, from y)
    x   = mean_S x_i,  v = (B v + a mu x - a mean_S grad f_i(x_i))/(B + a mu)          second exchange
    A   = A + a,  B = B + a mu                                               A = 0 and B = 1 at the start

Only A/B and a/B matter, and only A/B is kept, since A and B grow without bound. Agents send x_i and grad f_i(x_i), two
models, and receive y, which is the model of a run. mu is the strong convexity of the f_i. Not CTA: gradients are sent.
With partial participation means are over those present.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import solver
from fedpd.algorithms.fedlin import GradientsFirst
from fedpd.base.checks import at_least, positive
from fedpd.core import Gradient, LocalObjective, Method, Model, Oracle, Subproblem, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import Array, Key, Vector


class Agent(NamedTuple):
    y: Vector
    x: Vector  # x_i
    own: Vector  # grad f_i(y), then grad f_i(x_i)
    mean: Vector
    memory: Any


class Server(NamedTuple):
    x: Vector
    v: Vector
    ratio: Array  # A/B


class AccSDane(GradientsFirst):
    """Acc-S-DANE: gradients at y in the first exchange, models and gradients there in the second."""

    rho: float
    oracle: Oracle
    mu: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, 0 * x, self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(x, x, jnp.zeros(()))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, agent.mean - agent.own - self.rho * agent.y, self.rho)
        x, memory, work = self.oracle.solve(phi, agent.y, agent.memory, r, key)
        agent = agent._replace(x=x, own=f.gradient(x), memory=memory)
        return agent, work._replace(samples=work.samples + f.size)

    def send(self, agent: Agent) -> tuple[Model, Gradient]:
        return Model(agent.x), Gradient(agent.own)

    def aggregate(self, server: Server, mean: tuple[Vector, Vector], share: Any) -> tuple[Server, Vector]:
        x, gradient = mean
        a = self.growth(server.ratio)
        v = (server.v + a * self.mu * x - a * gradient) / (1 + a * self.mu)
        ratio = (server.ratio + a) / (1 + a * self.mu)
        following = self.growth(ratio)
        y = (ratio * x + following * v) / (ratio + following)
        return Server(x, v, ratio), y

    def receive(self, agent: Agent, y: Vector) -> Agent:
        return agent._replace(y=y)

    def model(self, agent: Agent) -> Vector:
        return agent.y

    def growth(self, ratio: Array) -> Array:
        """Return a/B."""
        return (1 + jnp.sqrt(1 + 4 * self.rho * ratio)) / (2 * self.rho)


@makes(AccSDane)
def acc_s_dane(*, rho: float, oracle: Oracle, mu: float = 0.0) -> Method:
    """Return Acc-S-DANE with proximal weight rho, a local oracle, and f_i that are mu-strongly convex."""
    check_oracle(oracle)
    positive("rho", rho, "rho = L is a good start, L the smoothness of the f_i")
    at_least("mu", mu, 0, "mu is the strong convexity of the f_i; 0 where it is not known")
    return AccSDane(rho=rho, oracle=oracle, mu=mu)


CARD = Card.single(
    title="Acc-S-DANE",
    summary="S-DANE with Nesterov acceleration",
    family="Newton-type",
    authors="Xiaowen Jiang, Anton Rodomanov, Sebastian U. Stich",
    paper="Stabilized Proximal-Point Methods for Federated Optimization",
    venue="Advances in Neural Information Processing Systems 37 (NeurIPS 2024); arXiv:2407.07084",
    year=2024,
    rule=lambda L, agents, scale: acc_s_dane(rho=L / scale, oracle=solver(L, L / scale)),
    guarantee=Guarantee("SC, Hessians that differ by D", "sqrt(D/mu) log(1/e)"),
    only_models=False,
    parameters={"mu": "μ ≥ 0, the strong convexity of the f_i"},
)
