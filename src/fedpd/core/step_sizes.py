"""Step sizes of local solvers: numbers, or functions of the round r and the local step q."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import positive_or_schedule

STEP = "A safe step is 1/(L + 1/eta), where L is the smoothness of the f_i"
ITERATIONS = "Give the number of local steps, e.g. 8"

Step = Callable[[Any, Any], Any]


def check_step(step: float | Step) -> None:
    positive_or_schedule("step", step, STEP)


def step_at(step: Any, r: Any, q: Any) -> Any:
    """Return the step size of local step q in round r, of a number or a schedule.

    It converts r and q to the default integer type first: r/3 of an int32 is a float32, even in a float64 computation.
    """
    return step(jnp.asarray(r, int), jnp.asarray(q, int)) if callable(step) else step
