"""Schedules: skip probabilities p_r and step sizes step(r, q) that change during a run."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import count, positive
from fedpd.base.value import Value, makes

Step = Callable[[Any, Any], Any]


class DecreasingSkips(Value):
    rounds: int

    def __call__(self, r: Any) -> Any:
        return 1 - r / self.rounds


@makes(DecreasingSkips)
def decreasing_skips(rounds: int) -> Callable[[Any], Any]:
    """Return p_r = 1 - r/T: few communications at first, then more and more, which leaves no error floor.

    Args:
        rounds: T, the number of rounds of the run.
    """
    return DecreasingSkips(rounds=count("rounds", rounds, "Give T, the number of rounds of the run"))


class Every(Value):
    rounds_apart: int

    def __call__(self, r: Any) -> Any:
        return jnp.where((r + 1) % self.rounds_apart == 0, 0.0, 1.0)


@makes(Every)
def every(rounds_apart: int) -> Callable[[Any], Any]:
    """Return p_r = 0 in every R-th round and 1 in the others, to communicate at fixed times and not at random.

    Args:
        rounds_apart: R; 1 communicates in every round.
    """
    count("rounds_apart", rounds_apart, "Give R: 1 communicates in every round, 2 in every second round")
    return Every(rounds_apart=rounds_apart)


class Diminishing(Value):
    """A step size initial / divisor(r, q)."""

    initial: float
    iterations: int

    def __post_init__(self) -> None:
        positive("initial", self.initial, "Give the first step size, e.g. 0.04")
        count("iterations", self.iterations, "Give Q, the number of local steps per round")
        super().__post_init__()

    def __call__(self, r: Any, q: Any) -> Any:
        return self.initial / self.divisor(r, q)

    def divisor(self, r: Any, q: Any) -> Any:
        raise NotImplementedError


class InverseSqrt(Diminishing):
    def divisor(self, r: Any, q: Any) -> Any:
        return jnp.sqrt(self.iterations * r + q + 1.0)


class ProgramFedPDSGD(Diminishing):
    def divisor(self, r: Any, q: Any) -> Any:
        return jnp.sqrt(self.iterations * r / 5 + q + 1.0)


class ProgramFedAvgSGD(Diminishing):
    def divisor(self, r: Any, q: Any) -> Any:
        return jnp.where(q == 0, 10 * r + 1.0, self.iterations * r + q + 1.0)


@makes(InverseSqrt)
def inverse_sqrt(initial: float, iterations: int) -> Step:
    """Return step(r, q) = initial / sqrt(Q r + q + 1), the paper's diminishing step size.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """
    return InverseSqrt(initial=initial, iterations=iterations)


@makes(ProgramFedPDSGD)
def program_fedpd_sgd(initial: float, iterations: int) -> Step:
    """Return step(r, q) = initial / sqrt(Q r/5 + q + 1), the local step size of FedPD-SGD in the authors' program.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """
    return ProgramFedPDSGD(initial=initial, iterations=iterations)


@makes(ProgramFedAvgSGD)
def program_fedavg_sgd(initial: float, iterations: int) -> Step:
    """Return the local step size of FedAvg-SGD in the authors' program.

    It is initial / (Q r + q + 1), except initial / (10 r + 1) at q = 0. There is no square root, so the step sizes
    fall fast: after a few rounds the model hardly changes.

    Args:
        initial: The first step size.
        iterations: Q, the number of local steps per round.
    """
    return ProgramFedAvgSGD(initial=initial, iterations=iterations)
