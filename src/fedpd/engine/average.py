"""Deliver the running mean of the server's models in place of the newest one, for any method.

    w^0 = x^0,    w^r = w^{r-1} + 5/(r + 5) (x^r - w^{r-1})    after the r-th communication

The mean is kept at the server and travels nowhere: agents compute with x^r as before. With few agents per round or
mini-batches, x^r moves around a point, and w^r comes closer to it. The weights forget the first models: after many
communications, half of the weight is on the last eighth of the models.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import refuse
from fedpd.core import Array, Exchange, LocalObjective, Method, Mixing, Tree, Vector
from fedpd.core.method import Layer, read_inside
from fedpd.core.vectors import running_mean
from fedpd.engine.backends.liveness import sources
from fedpd.transforms._ways import broadcast_shapes


class Server(NamedTuple):
    inner: Any  # the method's own server
    mean: Vector  # w^r
    communications: Array  # r


class Averaged(Layer):
    """A method whose server delivers the running mean of its models."""

    def server(self, x: Vector) -> Server:
        return Server(self.method.server(x), x, jnp.int32(0))

    def exchanges(self) -> tuple[Exchange, ...]:
        *others, last = self.method.exchanges()
        return *(_on_inner(one) for one in others), last._replace(aggregate=self.aggregate)

    def aggregate(self, server: Server, mean: Any, share: Any) -> tuple[Server, Tree]:
        last = self.method.exchanges()[-1]
        inner, broadcast = _server_step(last, server.inner, mean, share)
        x, r = model_after(self.method, nobody(self.method, server.mean), broadcast), server.communications + 1
        return Server(inner, running_mean(server.mean, x, r), r), broadcast

    def delivers(self, server: Server) -> Vector:
        return server.mean

    @property
    def waits(self) -> Any:
        return read_inside(self.method.waits)


def averaged(algorithm: Method, start: Tree) -> Method:
    """Return the method with a server that delivers the running mean of its models; `start` has the model's shapes."""
    if not knows_model(algorithm, Vector(start)):
        rule = f"needs a server that knows the model, and that of {algorithm.description} does not"
        refuse("average", True, rule, "Leave average out, or choose e.g. fedpd without memory, a_fedpd or fedavg")
    return Averaged(method=algorithm)


def knows_model(algorithm: Method, x: Vector) -> bool:
    """Return whether the last broadcast of a round alone determines the agents' copies of the model."""
    if algorithm.only_at_agents or algorithm.copies_differ or any(one.mixes for one in algorithm.exchanges()):
        return False
    agent = jax.eval_shape(nobody, algorithm, x)
    broadcast = broadcast_shapes(algorithm, x)[-1]
    depends = sources(lambda agent, broadcast: model_after(algorithm, agent, broadcast), agent, broadcast)
    return not depends[:, : len(jax.tree.leaves(agent))].any()


def nobody(algorithm: Method, x: Vector) -> Any:
    """Return the zeros of an agent's state."""
    shapes = jax.eval_shape(lambda x: algorithm.init(LocalObjective.without_samples(x), x), x)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def model_after(algorithm: Method, agent: Any, broadcast: Tree) -> Vector:
    """Return an agent's copy of the model after the last broadcast of a round."""
    return algorithm.model(algorithm.exchanges()[-1].receive(agent, broadcast))


def _on_inner(exchange: Exchange) -> Exchange:
    def aggregate(server: Server, mean: Any, share: Any) -> tuple[Server, Tree]:
        inner, broadcast = _server_step(exchange, server.inner, mean, share)
        return server._replace(inner=inner), broadcast

    return exchange._replace(aggregate=aggregate)


def _server_step(exchange: Exchange, server: Any, mean: Any, share: Any) -> tuple[Any, Tree]:
    assert not isinstance(exchange.aggregate, Mixing)  # `knows_model`
    return exchange.aggregate(server, mean, share)
