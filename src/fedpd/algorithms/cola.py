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

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_least, below, positive
from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant

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


@specified
def cola(*, eta: float, smoothness: float, threshold: float = 0.1, decay: float = 0.95) -> Algorithm:
    """Return COLA with penalty 1/eta, and the censoring sequence threshold decay^r (threshold = 0 never censors)."""
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")
    positive("smoothness", smoothness, "Give L; theory.smoothness(problem) finds it")
    at_least("threshold", threshold, 0, "0 never censors")
    below("decay", positive("decay", decay, DECAY), 1, DECAY)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, x, jnp.bool_(False))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        slope = f.gradient(agent.x) + agent.dual + (agent.known - agent.x0) / eta
        x = agent.x - slope / (smoothness + 1 / eta)
        change = x - agent.known
        speaks = change @ change >= (threshold * decay ** jnp.asarray(r, float)) ** 2
        return agent._replace(x=x, speaks=speaks), Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def send(agent: Agent) -> Vector:
        return agent.x - agent.known

    def aggregate(server: Vector, change: Vector, share: Any) -> tuple[Vector, Vector]:
        x0 = server + share * change
        return x0, x0

    def receive(agent: Any, x0: Vector) -> Any:
        known = jax.tree.map(lambda new, old: jnp.where(agent.speaks, new, old), agent.x, agent.known)
        return agent._replace(x0=x0, known=known, dual=agent.dual + (known - x0) / eta)

    speaks = lambda agent: agent.speaks  # noqa: E731
    whole = Algorithm(
        "cola",
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive, speaks=speaks),),
        model=lambda agent: agent.x0,
    )

    def init_partial(f: LocalObjective, x: Vector) -> PartialAgent:
        return PartialAgent(*init(f, x), received=nothing(x))

    def nothing(x: Vector) -> Total:
        return Total(x, 0 * x, jnp.int32(0))

    def add(server: Total, change: Vector, share: Any) -> tuple[Total, Total]:
        x0, _ = aggregate(server.x0, change, share)
        server = Total(x0, server.total + x0, server.number + 1)
        return server, server

    def received(agent: PartialAgent, new: Total) -> PartialAgent:
        return receive(agent, new.x0)._replace(received=new)

    def missed(agent: PartialAgent, new: Total) -> PartialAgent:
        """Add (xh_i - x_0)/eta for all communications that the agent missed."""
        number = (new.number - agent.received.number).astype(float)
        change = (agent.known * number - (new.total - agent.received.total)) / eta
        return agent._replace(x0=new.x0, dual=agent.dual + change, received=new)

    exchange = Exchange(local, send, add, received, absent=missed, speaks=speaks)
    partial = whole._replace(init=init_partial, server=nothing, exchanges=(exchange,))
    return whole._replace(away=Away(partial=partial))


CARD = Card(
    title="COLA",
    summary="ADMM without small messages",
    family="lazy communication",
    reference=Reference(
        authors="Weiyu Li, Yaohua Liu, Zhi Tian, Qing Ling",
        title="Communication-Censored Linearized ADMM for Decentralized Consensus Optimization",
        venue="IEEE Transactions on Signal and Information Processing over Networks, arXiv:1909.06724 (2019)",
        year=2019,
        checked=(
            "The journal's page at the IEEE Signal Processing Society (signalprocessingsociety.org) confirms "
            "the authors, the title and the journal, and the arXiv record confirms September 2019; "
            "the journal's volume 6 and year 2020 are from knowledge only."
        ),
    ),
    variants=(
        Variant(
            "COLA",
            lambda L, agents, scale: cola(eta=scale / L, smoothness=L, threshold=0.01, decay=0.97),
            Guarantee("C, without a rate (SC: linear)"),
        ),
    ),
    parameters={
        "threshold": "agents do not send changes below threshold · decay^r; 0: they send all",
        "decay": "in (0, 1), the factor on the threshold per round",
    },
    theory_checked=(
        "The abstract contradicts the claimed 1/e: for convex functions with Lipschitz gradients and a "
        "summable threshold it claims convergence without a rate, and only for strongly convex functions a "
        "linear (sublinear) rate when the threshold decays linearly (sublinearly)."
    ),
    equations_checked=(
        "The iteration was not compared with the paper; the abstract confirms one linearised step and the "
        "rule that an agent sends only if its variable is further than a threshold from what it last sent."
    ),
)
