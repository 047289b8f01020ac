"""The common part of FedLin, FedDANE and F-SVRG: a first exchange gives every agent the mean gradient at x.

    exchange 1:  agents send grad f_i(x), the server returns g = mean_S grad f_i(x)
    exchange 2:  agents send a local model x_i, computed with g; the server returns x = mean_S x_i

Agents and server send two models each way. One of them is a gradient, so this is not the CTA protocol.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.base.value import attribute
from fedpd.core import Array, Exchange, Gradient, Key, LocalObjective, Method, Model, Vector, Work


class Agent(NamedTuple):
    x: Vector  # the server's model, then the local one
    own: Vector  # grad f_i(x)
    mean: Vector  # grad f(x), as the server has it
    memory: Any


class GradientsFirst(Method):
    """A method with two exchanges per round. Subclasses have `solve`, or `local`."""

    oracle = attribute(None)  # of type Oracle, if the method has one

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        """Return x_i of an agent that knows the mean gradient, the solver's memory and the work."""
        raise NotImplementedError

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return Agent(x, 0 * x, 0 * x, None if self.oracle is None else self.oracle.init(f, x))

    def exchanges(self) -> tuple[Exchange, Exchange]:
        return (
            Exchange(self.differentiate, lambda agent: Gradient(agent.own), self.share_gradient, self.hear_gradient),
            Exchange(self.local, self.send, self.aggregate, self.receive),
        )

    def differentiate(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        return agent._replace(own=f.gradient(self.model(agent))), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def share_gradient(self, server: Any, mean: Vector, share: Any) -> tuple[Any, Vector]:
        return server, mean

    def hear_gradient(self, agent: Any, mean: Vector) -> Any:
        return agent._replace(mean=mean)

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        x, memory, work = self.solve(f, agent, r, key)
        return agent._replace(x=x, memory=memory), work

    def send(self, agent: Any) -> Any:
        return Model(agent.x)
