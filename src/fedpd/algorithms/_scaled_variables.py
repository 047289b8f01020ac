"""FedPD-M in scaled variables: x = D z, where the agents' Hessians say that variables differ much in scale.

The penalty ||w - v||^2/(2 eta) has one weight for all variables. Where one feature is measured in thousands and
another in thousandths, no eta suits both. So, in the first communication, each agent equilibrates its own Hessian H_i
at x^0 (Ruiz 2001; with random signs as in Diamond and Boyd, 2017): it finds a diagonal d_i such that all rows of
d_i H_i d_i have about the same norm L_i, and sends the spread of h_i = L_i/d_i^2, one number. If H_i is diagonal, h_i
is its diagonal; otherwise it needs products with H_i only.

    spread  geometric mean over agents of max h_i/min h_i
    if it is at most SPREAD: D = 1, and nothing else happens
    otherwise, in one more communication, agents send h_i, and the server answers D = (mean h_i)^(-1/2), or D = 1 if
    the mean spreads by at most SPREAD: an agent that lacks a feature is no reason to scale it. The method begins again
    at z = x^0/D, with f_i(D z).

It costs SETS*PROBES gradients per agent, and two communications where agents send h_i. The broadcast of D holds no
model. A server that knows its model from the newest broadcast alone (on Flower) measures that one round at 0.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedpd.algorithms._memory import FedPDM
from fedpd.core import Array, Key, LocalObjective, Vector, Work

SETS, PROBES = 3, 4  # products with a Hessian: so many per scaling of its rows
SPREAD = 1e3  # of h_i, from which on variables are scaled
LEAST = 1e-12  # h_i relative to its largest; variables on which f_i does not depend

GO_ON, SEND_SCALES, TAKE_SCALES = 0, 1, 2  # what a broadcast asks of agents


class Agent(NamedTuple):
    inner: Any  # of the method, in the variables z
    x: Vector  # the global model, in the variables x
    scale: Vector  # D
    own: Vector  # h_i
    spread: Array  # log(max h_i/min h_i)
    asked: Array  # what the last broadcast asked for
    shift: Array  # the round in which the method began


class Server(NamedTuple):
    inner: Any
    scale: Vector  # D
    number: Array  # of communications
    asked: Array


class Message(NamedTuple):
    inner: Any  # h_i in the place of the model, if the server asked for it
    spread: Array


class Broadcast(NamedTuple):
    inner: Any  # its model is in the variables x; D in the place of the model, where that is what agents are to take
    asked: Array


class ScaledFedPDM(FedPDM):
    """FedPD-M that scales the variables where they differ by much."""

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        none = jnp.int32(GO_ON)
        return Agent(super().init(f, x), x, _map(jnp.ones_like, x), 0 * x, jnp.zeros((), float), none, none)

    def server(self, x: Vector) -> Server:
        return Server(super().server(x), _map(jnp.ones_like, x), jnp.int32(0), jnp.int32(GO_ON))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner_local = super().local

        def work(agent: Agent) -> tuple[Agent, Work]:
            inner, work = inner_local(_scaled(f, agent.scale), agent.inner, r - agent.shift, key)
            return agent._replace(inner=inner), work

        def rest(agent: Agent) -> tuple[Agent, Work]:
            return agent, Work.of(0, 0, f.size)

        own, spread = lax.cond(r == 0, partial(equilibrated, f, agent.inner.x0), lambda: (agent.own, agent.spread))
        agent, done = lax.cond(agent.asked == SEND_SCALES, rest, work, agent._replace(own=own, spread=spread))
        return agent, done.plus(Work.of(0, jnp.where(r == 0, SETS * PROBES, 0), f.size))

    def send(self, agent: Agent) -> Message:
        x, numbers = super().send(agent.inner)
        asked = agent.asked == SEND_SCALES
        return Message((_map(partial(jnp.where, asked), agent.own, x), numbers), agent.spread)

    def aggregate(self, server: Server, mean: Message, share: Any) -> tuple[Server, Broadcast]:
        usual, broadcast = super().aggregate(server.inner, mean.inner, share)
        wanted = (server.number == 0) & (mean.spread > jnp.log(SPREAD))
        asked = jnp.where(wanted, SEND_SCALES, jnp.where(server.asked == SEND_SCALES, TAKE_SCALES, GO_ON))
        asked = asked.astype(jnp.int32)
        new, x = scales(mean.inner[0]), server.scale * broadcast.x0
        usual = usual._replace(x0=x / server.scale)  # as agents compute it
        inner = _choose(asked, usual, server.inner, server.inner._replace(x0=server.inner.x0 / new))
        scale = _choose(asked, server.scale, server.scale, new)
        sent = broadcast._replace(x0=_choose(asked, x, server.inner.x0, new))
        return Server(inner, scale, server.number + 1, asked), Broadcast(sent, asked)

    def receive(self, agent: Agent, broadcast: Broadcast) -> Agent:
        asked, given = broadcast.asked, broadcast.inner.x0
        usual = super().receive(agent.inner, broadcast.inner._replace(x0=given / agent.scale))
        begun = agent.inner._replace(x0=agent.inner.x0 / given)
        return agent._replace(
            inner=_choose(asked, usual, agent.inner, begun),
            x=_choose(asked, given, given, agent.x),
            scale=_choose(asked, agent.scale, agent.scale, given),
            asked=asked,
            shift=jnp.where(asked == TAKE_SCALES, 2, agent.shift).astype(jnp.int32),
        )

    def model(self, agent: Agent) -> Vector:
        return agent.x


def equilibrated(f: LocalObjective, x: Vector) -> tuple[Vector, Array]:
    """Return h_i, and log(max h_i/min h_i), by SETS*PROBES products of the Hessian of f_i(x) with random signs."""
    flat, unravel = ravel_pytree(x)
    key = jax.random.key(1, impl="threefry2x32")
    signs = jax.random.rademacher(key, (SETS, PROBES, *flat.shape), flat.dtype)

    def product(d: Array, z: Array) -> Array:
        return d * ravel_pytree(jax.jvp(f.gradient, (x,), (unravel(d * z),))[1])[0]

    def equalise(d: Array, signs: Array) -> tuple[Array, Array]:
        rows = jnp.sqrt(jnp.mean(lax.map(partial(product, d), signs) ** 2, axis=0))
        largest = jnp.max(rows)
        return d / jnp.sqrt(jnp.maximum(rows / largest, LEAST)), largest

    d, norms = lax.scan(equalise, jnp.ones_like(flat), signs)
    h = norms[-1] / d**2
    h = jnp.maximum(h, LEAST * jnp.max(h))
    good = jnp.all(jnp.isfinite(h)) & (jnp.min(h) > 0)
    h = jnp.where(good, h, 1)
    return unravel(h), jnp.log(jnp.max(h) / jnp.min(h)).astype(float)


def scales(h: Vector) -> Vector:
    """Return D = h^(-1/2), or 1 if h spreads by at most SPREAD."""
    flat, unravel = ravel_pytree(h)
    return unravel(jnp.where(jnp.max(flat) > SPREAD * jnp.min(flat), 1 / jnp.sqrt(flat), 1))


def _scaled(f: LocalObjective, scale: Vector) -> LocalObjective:
    """Return z -> f_i(D z)."""
    losses, penalty = f.losses, f.penalty
    assert f.noise is None  # fedpd refuses random layers here, because rounds are compared
    return f._replace(
        losses=lambda z, batch: losses((scale * Vector(z)).tree, batch),
        penalty=None if penalty is None else lambda z: penalty((scale * Vector(z)).tree),
    )


def _choose(asked: Array, usual: Any, kept: Any, begun: Any) -> Any:
    """Return the state for GO_ON, SEND_SCALES or TAKE_SCALES."""
    return jax.tree.map(lambda *leaves: lax.select_n(asked, *leaves), usual, kept, begun)


def _map(function: Any, *vectors: Vector) -> Vector:
    return jax.tree.map(function, *vectors)
