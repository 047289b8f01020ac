"""Weigh the server's mean by the agents' numbers of samples n_i: sum_S n_i m_i / sum_S n_i over those that sent.

McMahan's FedAvg and most public programs weigh like this, with local losses f_i that are plain means over an agent's
samples. A problem with weights="samples" scales the losses instead, so that large agents take larger local steps. Both
weigh for f = sum_i (n_i/M) f_i; the columns of a run are about the f of the problem, which is (1/N) sum_i f_i here.

Agents send n_i m_i and n_i, one number more than without, and the server divides the two means. So neither the engine
nor a federation knows of it, and nobody keeps the messages of all agents.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import choice, refuse
from fedpd.core import Array, Key, LocalObjective, Tree, Value, Vector, Work, makes, opened, vectors_of
from fedpd.core.method import Exchange, Method, Mixing, WithInner, form_with_absent


class Weights(Value):
    """The weights of the messages for `wrap(algorithm, mean=...)`."""

    by: Literal["samples"]


@makes(Weights)
def weighted(by: Literal["samples"] = "samples") -> Weights:
    """Return the weights of a mean in which an agent counts by its number of samples n_i.

    The server's mean over the agents S that sent is sum_S n_i m_i / sum_S n_i; it learns n_i. The local losses stay as
    they are, in which this differs from a problem with weights="samples". Use one of the two.

    Args:
        by: What an agent counts by.

    Examples:
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8))
        >>> transforms.wrap(fedavg, mean=transforms.weighted("samples")).description
        'fedavg(oracle=sgd(step=0.1, iterations=8), mean=[weighted()])'
    """
    choice("by", by, ("samples",))
    return Weights(by=by)


class Agent(NamedTuple):
    """An agent whose messages are weighed."""

    inner: Any  # the method's own state
    weight: Array  # n_i


class Weighted(WithInner):
    """A method whose server weighs the messages."""

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        if f.scale is not None:
            rule = "the problem has weights, which scale the local losses, so that agents would count twice"
            refuse("mean", "weighted('samples')", rule, "Leave weights out of the problem, or weighted out of mean")
        return Agent(self.method.init(f, x), jnp.asarray(f.size, jax.tree.leaves(x)[0].dtype))

    @property
    def needs_everyone(self) -> bool:
        return self.method.needs_everyone or counts_agents(self.method.partial())

    def partial(self) -> Method:
        return self if self.needs_everyone else Weighted(method=form_with_absent(self.method))

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(map(_weighted, self.method.exchanges()))


def _weighted(own: Exchange) -> Exchange:
    """Return an exchange with weighed messages."""
    speaks, missed = own.speaks, own.missed

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner, work = own.local(f, agent.inner, r, key)
        return agent._replace(inner=inner), work

    def send(agent: Agent) -> tuple[Tree, Array]:
        message = vectors_of(own.send(agent.inner))
        return jax.tree.map(lambda leaf: agent.weight * leaf, message), agent.weight

    def aggregate(server: Any, mean: tuple[Tree, Array], share: Any) -> tuple[Any, Tree]:
        assert not isinstance(own.aggregate, Mixing)  # `wrap` refuses it
        total, weight = mean
        some = jnp.where(weight > 0, weight, 1)  # if nobody sent, the mean is 0, as without weights
        return own.aggregate(server, jax.tree.map(lambda leaf: leaf / some.astype(leaf.dtype), total), share)

    def receive(agent: Agent, broadcast: Tree) -> Agent:
        return agent._replace(inner=own.receive(agent.inner, broadcast))

    return Exchange(
        local,
        send,
        aggregate,
        receive,
        missed=None if missed is None else lambda agent, b: agent._replace(inner=missed(agent.inner, b)),
        speaks=None if speaks is None else lambda agent: speaks(agent.inner),
        when=own.when,
    )


def with_weights(algorithm: Method) -> Method:
    """Return the method with a weighted mean; refuse one whose server counts agents."""
    if counts_agents(algorithm):
        rule = "its server keeps sums over all agents, in which each counts as 1/N"
        refuse("algorithm", algorithm.description, rule, 'Give the problem weights="samples" instead')
    return Weighted(method=algorithm)


def counts_agents(method: Method) -> bool:
    """Return whether each agent counts as 1/N: the server uses `share`, or the method knows N, as TAMUNA does."""
    if hasattr(method, "agents"):
        return True

    def steps(share: Array) -> list[Any]:
        x = Vector(jnp.zeros(1))
        agent, server = method.init(LocalObjective.without_samples(x), x), method.server(x)
        exchanges = [(one.aggregate, opened(one.send(agent))) for one in method.exchanges()]
        return [step(server, mean, share) for step, mean in exchanges if not isinstance(step, Mixing)]

    program = jax.make_jaxpr(steps)(1.0).jaxpr
    (share,) = program.invars
    return any(share is used for step in program.eqns for used in step.invars)
