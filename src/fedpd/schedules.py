"""Numbers that change along a run: skip probabilities p_r and step sizes step(r, q), as plain functions with a name."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import count, is_traced, positive

Step = Callable[[Any, Any], Any]


def decreasing_skips(rounds: int) -> Callable[[Any], Any]:
    """p_r = 1 - r/T: hardly any communication at first, all of it at the end, and no error floor."""
    count("rounds", rounds, "Give T, the number of rounds of the run")

    def p(r: Any) -> Any:
        return 1 - r / rounds

    p.description = f"1-r/{rounds}"  # type: ignore[attr-defined]
    return p


def inverse_sqrt(initial: float, iterations: int) -> Step:
    """step(r, q) = initial / sqrt(Q r + q + 1): the paper's diminishing step, Q = `iterations` a round."""
    return _diminishing(
        initial, iterations, lambda r, q: jnp.sqrt(iterations * r + q + 1.0), f"sqrt({iterations}r+q+1)"
    )


def every(rounds_apart: int) -> Callable[[Any], Any]:
    """p_r = 0 in every R-th round and 1 in the others: communications at fixed times instead of by a coin."""
    count("rounds_apart", rounds_apart, "Give R: 1 communicates in every round, 2 in every other")

    def p(r: Any) -> Any:
        return jnp.where((r + 1) % rounds_apart == 0, 0.0, 1.0)

    p.description = f"every {rounds_apart}"  # type: ignore[attr-defined]
    return p


def program_fedpd_sgd(initial: float, iterations: int) -> Step:
    """step(r, q) = initial / sqrt(Q r/5 + q + 1): the local step of FedPD-SGD in the authors' program."""
    words = f"sqrt({iterations}r/5+q+1)"
    return _diminishing(initial, iterations, lambda r, q: jnp.sqrt(iterations * r / 5 + q + 1.0), words)


def program_fedavg_sgd(initial: float, iterations: int) -> Step:
    """step(r, q) = initial / (Q r + q + 1), and initial / (10 r + 1) first: what FedAvg-SGD in their program does.

    No square root, so that the steps add up to little: after a few rounds the model hardly moves.
    """

    def divisor(r: Any, q: Any) -> Any:
        return jnp.where(q == 0, 10 * r + 1.0, iterations * r + q + 1.0)

    return _diminishing(initial, iterations, divisor, f"({iterations}r+q+1)")


def _diminishing(initial: float, iterations: int, divisor: Step, words: str) -> Step:
    """step(r, q) = initial / divisor(r, q), described by `words`."""
    positive("initial", initial, "Give the first step, e.g. 0.04")
    count("iterations", iterations, "Give Q, the local steps of a round")

    def step(r: Any, q: Any) -> Any:
        return initial / divisor(r, q)

    step.description = f"{_words(initial)}/{words}"  # type: ignore[attr-defined]
    return step


def _words(number: Any) -> str:
    """A number in a description; a sweep traces it, and then it has no digits."""
    return "traced" if is_traced(number) else f"{number:g}"
