"""The length of an agent's local steps, for methods that read a mean gradient off the change of the local model."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from fedpd.base.checks import refuse
from fedpd.core import Array, Oracle, Work, check_oracle
from fedpd.core.oracle import step_at


def check_steps(oracle: Oracle) -> None:
    """Refuse an oracle whose steps have no size that is known in advance."""
    check_oracle(oracle)
    if not hasattr(oracle, "step"):
        rule = "must be a solver with a step size, because the method divides by the sum of the local step sizes"
        refuse("oracle", oracle.description, rule, "Give e.g. oracles.sgd(step=0.1, iterations=8)")


def total_step(oracle: Any, r: Array, work: Work) -> Array:
    """Return the sum of the sizes of the local steps that an agent took in round r; Q times a constant step."""
    if not callable(oracle.step):
        return oracle.step * work.updates.astype(float)
    return lax.fori_loop(0, work.updates, lambda q, total: total + step_at(oracle.step, r, q), jnp.zeros((), float))
