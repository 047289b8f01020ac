"""The common parts of methods whose agents only evaluate f_i at the server's point; the server does the rest.

    agents   send f_i(x) and grad f_i(x): one gradient per communication
    server   makes the next point x from their means, and sends it

The server of a line search tries points: `Trial` says where it stands, and a point that does not decrease f enough
costs a communication like any other. The model of a run is the newest point that agents hold, tried or accepted.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.core import Array, Gradient, Key, LocalObjective, Method, Vector, Work

DECREASE = 1e-4  # the share of the decrease promised by the slope that a step must keep (Armijo)


class Agent(NamedTuple):
    x: Vector  # the server's point
    value: Array  # f_i(x)
    gradient: Vector  # grad f_i(x)


class Trial(NamedTuple):
    """A line search from `x` along `direction`."""

    x: Vector  # the last accepted point
    value: Array  # f there
    gradient: Vector  # grad f there
    direction: Vector  # the direction that is searched
    length: Array  # t; the point that agents hold is x + t direction

    @property
    def point(self) -> Vector:
        return self.x + self.length * self.direction

    def is_enough(self, value: Array, reference: Array) -> Array:
        """Return whether f = `value` at the tried point is below `reference` by enough, up to rounding."""
        slope = self.gradient @ self.direction
        rounding = 10 * jnp.finfo(value.dtype).eps * jnp.abs(reference)
        return value <= reference + DECREASE * self.length * slope + rounding

    def shorter(self, value: Array) -> "Trial":
        """Return the search at the minimum of the parabola through what is known, a tenth to a half as far."""
        slope, t = self.gradient @ self.direction, self.length
        curve = value - self.value - slope * t
        best = jnp.where(curve > 0, -slope * t * t / (2 * curve), 0)
        return self._replace(length=jnp.clip(jnp.where(jnp.isfinite(best), best, 0), 0.1 * t, 0.5 * t))


class ServerSteps(Method):
    """A method whose server makes each point from the mean gradient at the last one. Subclasses have `aggregate`.

    It needs all agents, because mean gradients of different agents cannot be compared.
    """

    needs_everyone = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, jnp.zeros(()), 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        value, gradient = f.value_and_gradient(agent.x)
        return Agent(agent.x, value, gradient), Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def send(self, agent: Agent) -> Any:
        return Gradient(agent.gradient)


class LineSearch(ServerSteps):
    """The same with agents that send f_i(x) too, one number. The server compares the points of different rounds."""

    compares_rounds = True

    def send(self, agent: Agent) -> tuple[Array, Gradient]:
        return agent.value, Gradient(agent.gradient)
