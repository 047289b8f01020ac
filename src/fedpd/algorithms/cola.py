"""COLA, censored linearised ADMM (Li, Liu, Tian, Ling, 2019), on a star: agents do not send small changes.

    x_i = x_i - (grad f_i(x_i) + lambda_i + (xh_i - x_0)/eta) / (smoothness + 1/eta)
    if ||x_i - xh_i|| >= threshold decay^r:  send x_i - xh_i, then xh_i = x_i
    x_0 = mean xh_i,   lambda_i = lambda_i + (xh_i - x_0)/eta

xh_i is the x_i that the server knows. Agents sometimes send differences of models, the server sends x_0 (CTA). It
converges only if the censoring sequence vanishes. Absent agents count as censored, but their duals change while their
x_i do not: with half of the agents present it still converges, with few present it diverges. With partial
participation, the server also sends the sum of its x_0, from which an agent that returns updates its dual. Difference
from the paper: the paper's network has no server. This is the paper's iteration on a star: each agent has one
neighbour, the server, and the server's own function is zero.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.base.checks import at_least, below, positive
from fedpd.core import Array, Key, LocalObjective, Method, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import choose

DECAY = "decay is the factor on the threshold per round; at 1 or above, agents would never send small changes"


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    known: Vector  # xh_i
    speaks: Array


class PartialAgent(NamedTuple):
    """The state of an agent when participation is partial."""

    x: Vector
    x0: Vector
    dual: Vector
    known: Vector
    speaks: Array
    received: "Total"  # the last broadcast that it heard


class Total(NamedTuple):
    """The server when participation is partial, and its broadcast."""

    x0: Vector
    total: Vector  # the sum of x_0 over all communications
    number: Array  # of communications


class Cola(Method):
    """COLA with everyone present."""

    eta: float
    smoothness: float
    threshold: float
    decay: float

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return Agent(x, x, 0 * x, x, jnp.bool_(False))

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        slope = f.gradient(agent.x) + agent.dual + (agent.known - agent.x0) / self.eta
        x = agent.x - slope / (self.smoothness + 1 / self.eta)
        change = x - agent.known
        speaks = change @ change >= (self.threshold * self.decay ** jnp.asarray(r, float)) ** 2
        return agent._replace(x=x, speaks=speaks), Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def send(self, agent: Any) -> Vector:
        return agent.x - agent.known

    def speaks(self, agent: Any) -> Array:
        return agent.speaks

    def aggregate(self, server: Any, change: Vector, share: Any) -> tuple[Any, Any]:
        x0 = server + share * change
        return x0, x0

    def receive(self, agent: Any, x0: Any) -> Any:
        known = choose(agent.speaks, agent.x, agent.known)
        return agent._replace(x0=x0, known=known, dual=agent.dual + (known - x0) / self.eta)

    def model(self, agent: Any) -> Vector:
        return agent.x0

    def partial(self) -> Method:
        return PartialCola(eta=self.eta, smoothness=self.smoothness, threshold=self.threshold, decay=self.decay)


class PartialCola(Cola):
    """COLA whose server also sends the sum of its x_0, for agents that were absent."""

    def init(self, f: LocalObjective, x: Vector) -> PartialAgent:
        return PartialAgent(x, x, 0 * x, x, jnp.bool_(False), received=self.server(x))

    def server(self, x: Vector) -> Total:
        return Total(x, 0 * x, jnp.int32(0))

    def aggregate(self, server: Total, change: Vector, share: Any) -> tuple[Total, Total]:
        x0, _ = super().aggregate(server.x0, change, share)
        server = Total(x0, server.total + x0, server.number + 1)
        return server, server

    def receive(self, agent: PartialAgent, new: Total) -> PartialAgent:
        return super().receive(agent, new.x0)._replace(received=new)

    def missed(self, agent: PartialAgent, new: Total) -> PartialAgent:
        """Add (xh_i - x_0)/eta for all communications that the agent missed."""
        number = (new.number - agent.received.number).astype(float)
        change = (agent.known * number - (new.total - agent.received.total)) / self.eta
        return agent._replace(x0=new.x0, dual=agent.dual + change, received=new)

    def partial(self) -> Method:
        return self


@makes(Cola, PartialCola)
def cola(*, eta: float, smoothness: float, threshold: float = 0.1, decay: float = 0.95) -> Method:
    """Return COLA with penalty 1/eta, and the censoring sequence threshold decay^r (threshold = 0 never censors)."""
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")
    positive("smoothness", smoothness, "Give L; theory.smoothness(problem) finds it")
    at_least("threshold", threshold, 0, "0 never censors")
    below("decay", positive("decay", decay, DECAY), 1, DECAY)
    return Cola(eta=eta, smoothness=smoothness, threshold=threshold, decay=decay)


CARD = Card.single(
    title="COLA",
    summary="ADMM without small messages",
    family="lazy communication",
    authors="Weiyu Li, Yaohua Liu, Zhi Tian, Qing Ling",
    paper="Communication-Censored Linearized ADMM for Decentralized Consensus Optimization",
    venue="IEEE Transactions on Signal and Information Processing over Networks, arXiv:1909.06724 (2019)",
    year=2019,
    rule=lambda L, agents, scale: cola(eta=scale / L, smoothness=L, threshold=0.01, decay=0.97),
    guarantee=Guarantee("C, without a rate (SC: linear)"),
    parameters={
        "threshold": "agents do not send changes below threshold · decay^r; 0: they send all",
        "decay": "in (0, 1), the factor on the threshold per round",
    },
)
