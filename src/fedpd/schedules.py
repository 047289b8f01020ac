"""Schedules: skip probabilities p_r and step sizes step(r, q) that change during a run, as named functions."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import count, positive
from fedpd.base.spec import specified

Step = Callable[[Any, Any], Any]


@specified
def decreasing_skips(rounds: int) -> Callable[[Any], Any]:
    """Return p_r = 1 - r/T: few communications at first, then more and more, which leaves no error floor.

    Args:
        rounds: T, the number of rounds of the run.
    """
    count("rounds", rounds, "Give T, the number of rounds of the run")

    def p(r: Any) -> Any:
        return 1 - r / rounds

    return p


@specified
def inverse_sqrt(initial: float, iterations: int) -> Step:
    """Return step(r, q) = initial / sqrt(Q r + q + 1), the paper's diminishing step size.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """
    return _diminishing(initial, iterations, lambda r, q: jnp.sqrt(iterations * r + q + 1.0))


@specified
def every(rounds_apart: int) -> Callable[[Any], Any]:
    """Return p_r = 0 in every R-th round and 1 in the others, to communicate at fixed times and not at random.

    Args:
        rounds_apart: R; 1 communicates in every round.
    """
    count("rounds_apart", rounds_apart, "Give R: 1 communicates in every round, 2 in every second round")

    def p(r: Any) -> Any:
        return jnp.where((r + 1) % rounds_apart == 0, 0.0, 1.0)

    return p


@specified
def program_fedpd_sgd(initial: float, iterations: int) -> Step:
    """Return step(r, q) = initial / sqrt(Q r/5 + q + 1), the local step size of FedPD-SGD in the authors' program.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """
    return _diminishing(initial, iterations, lambda r, q: jnp.sqrt(iterations * r / 5 + q + 1.0))


@specified
def program_fedavg_sgd(initial: float, iterations: int) -> Step:
    """Return the local step size of FedAvg-SGD in the authors' program.

    It is initial / (Q r + q + 1), except initial / (10 r + 1) at q = 0. There is no square root, so the step sizes
    fall fast: after a few rounds the model hardly changes.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """

    def divisor(r: Any, q: Any) -> Any:
        return jnp.where(q == 0, 10 * r + 1.0, iterations * r + q + 1.0)

    return _diminishing(initial, iterations, divisor)


def _diminishing(initial: float, iterations: int, divisor: Step) -> Step:
    """Return step(r, q) = initial / divisor(r, q)."""
    positive("initial", initial, "Give the first step size, e.g. 0.04")
    count("iterations", iterations, "Give Q, the number of local steps per round")

    def step(r: Any, q: Any) -> Any:
        return initial / divisor(r, q)

    return step
