"""Sharpness-aware gradients (SAM): the gradient of f_i at the point that a step of length rho uphill leads to."""

from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import at_least, refuse
from fedpd.core import Array, LocalObjective, Oracle, Vector, Work, check_oracle
from fedpd.oracles import GD, Stochastic

SMALL = 1e-7  # added to the norm of the gradient, as in the public programs


def climb(x: Vector, gradient: Vector, rho: Any) -> Vector:
    """Return x + rho g/||g||."""
    return x + rho / (jnp.sqrt(gradient @ gradient) + SMALL) * gradient


def sharpened(f: LocalObjective, rho: Any) -> LocalObjective:
    """Return f_i with the gradients grad f_i(x + rho g/||g||) in place of g = grad f_i(x), both on the same samples."""

    class Sharpened(LocalObjective):
        # It keeps the fields of f_i, so that `_replace` works; `plain` has the gradients of f_i themselves. All further
        # arguments of a gradient say on which samples it is, so that both gradients get them.

        @property
        def plain(self) -> LocalObjective:
            return LocalObjective(*self)

        def gradient(self, x: Vector) -> Vector:
            return self.plain.gradient(climb(x, self.plain.gradient(x), rho))

        def value_and_gradient(self, x: Vector) -> tuple[Array, Vector]:
            return self.plain.value_and_gradient(climb(x, self.plain.gradient(x), rho))

        def stochastic_gradient(self, x: Vector, *batch: Any, **more: Any) -> Vector:
            plain = self.plain
            return plain.stochastic_gradient(
                climb(x, plain.stochastic_gradient(x, *batch, **more), rho), *batch, **more
            )

        def stochastic_value_and_gradient(self, x: Vector, *batch: Any, **more: Any) -> tuple[Array, Vector]:
            _, uphill = self.plain.stochastic_value_and_gradient(x, *batch, **more)
            return self.plain.stochastic_value_and_gradient(climb(x, uphill, rho), *batch, **more)

    return Sharpened(*f)


def twice(work: Work) -> Work:
    """Return the work of the same steps with two gradients for each."""
    return work.plus(work._replace(updates=jnp.zeros_like(work.updates)))


def check_sharpness(rho: float, oracle: Oracle) -> None:
    """Refuse settings that do not fit, and an oracle that does not take its gradients from f_i."""
    at_least("rho", rho, 0, "rho is the length of the step uphill, e.g. 0.05; 0 leaves it out")
    check_oracle(oracle)
    if not isinstance(oracle, GD | Stochastic):
        rule = "must be a solver in JAX with plain gradients, because the method changes the gradients of f_i"
        refuse("oracle", oracle.description, rule, "Give e.g. oracles.sgd(step=0.1, iterations=8)")
