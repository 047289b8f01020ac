"""Schedules: skip probabilities p_r and step sizes step(r, q) that change during a run.

`exponential`, `cosine`, `piecewise` and `warmup` change the step size from round to round, and `inverse_sqrt` from step
to step. Give them as `step` to an oracle or to a method that has a local step size, or as `learning_rate` to
`oracles.optimizer`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import at_least, at_most, count, positive, positive_or_schedule, refuse
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


FIRST = "Give the step size of the first round, e.g. 0.1"


class Exponential(Value):
    first: float
    factor: float

    def __call__(self, r: Any, q: Any) -> Any:
        return self.first * self.factor**r


@makes(Exponential)
def exponential(first: float, factor: float) -> Step:
    """Return step(r, q) = first factor^r, which falls by the same factor from round to round.

    Args:
        first: The step size of round 0.
        factor: The factor per round, at most 1, e.g. 0.998.

    Examples:
        >>> from fedpd import schedules
        >>> schedules.exponential(0.1, 0.5)(3, 0)
        0.0125
    """
    remedy = "Give the factor per round, e.g. 0.998"
    at_most("factor", positive("factor", factor, remedy), 1, remedy)
    return Exponential(first=positive("first", first, FIRST), factor=factor)


class Cosine(Value):
    first: float
    rounds: int
    last: float

    def __call__(self, r: Any, q: Any) -> Any:
        share = jnp.minimum(r, self.rounds) / self.rounds
        return self.last + (self.first - self.last) * (1 + jnp.cos(math.pi * share)) / 2


@makes(Cosine)
def cosine(first: float, rounds: int, last: float = 0.0) -> Step:
    """Return step(r, q) = last + (first - last) (1 + cos(pi r/T))/2, and `last` from round T on.

    Args:
        first: The step size of round 0.
        rounds: T. In an experiment file, the default is the rounds of the run.
        last: The step size that it tends to, at most `first`.
    """
    count("rounds", rounds, "Give T, the number of rounds of the run", bits=31)
    remedy = "Give the last step size, at most the first; 0 is the usual one"
    at_least("last", last, 0, remedy)
    return Cosine(first=at_least("first", positive("first", first, FIRST), last, remedy), rounds=rounds, last=last)


class Piecewise(Value):
    first: float
    milestones: tuple[int, ...]
    factors: tuple[float, ...]

    def __call__(self, r: Any, q: Any) -> Any:
        pairs = zip(self.milestones, self.factors, strict=True)
        return self.first * math.prod(jnp.where(r >= milestone, factor, 1.0) for milestone, factor in pairs)


@makes(Piecewise)
def piecewise(first: float, milestones: Sequence[int], factors: Sequence[float]) -> Step:
    """Return step(r, q) that is constant but for some rounds, from which on it is multiplied by a factor.

    Args:
        first: The step size of round 0.
        milestones: The rounds from which on a factor holds, ascending, e.g. [100, 150].
        factors: The factor of each milestone, e.g. [0.1, 0.1]: the step size is 0.01 first from round 150 on.
    """
    positive("first", first, FIRST)
    for number in milestones:
        count("milestones", number, "Give the rounds from which on a factor holds, e.g. [100, 150]", bits=31)
    if list(milestones) != sorted(set(milestones)) or not milestones:
        refuse("milestones", list(milestones), "must be rounds in ascending order", "Give e.g. [100, 150]")
    if len(factors) != len(milestones):
        rule = f"must have one factor per milestone, of which there are {len(milestones)}"
        refuse("factors", list(factors), rule, "Give e.g. [0.1, 0.1]")
    for factor in factors:
        positive("factors", factor, "Give positive factors, e.g. [0.1, 0.1]")
    return Piecewise(first=first, milestones=tuple(milestones), factors=tuple(map(float, factors)))


class Warmup(Value):
    step: float | Step
    first_rounds: int

    def __call__(self, r: Any, q: Any) -> Any:
        step = self.step(r, q) if callable(self.step) else self.step
        return step * jnp.minimum(1.0, (r + 1) / self.first_rounds)


@makes(Warmup)
def warmup(step: float | Step, first_rounds: int) -> Step:
    """Return a step size times (r + 1)/W in the first W rounds, and the step size itself from round W - 1 on.

    Args:
        step: The step size, or a schedule, which also counts the rounds of the warm-up.
        first_rounds: W.
    """
    positive_or_schedule("step", step, "Give the step size after the warm-up, e.g. 0.1, or a schedule")
    count("first_rounds", first_rounds, "Give the rounds of the warm-up, e.g. 5", bits=31)
    return Warmup(step=step, first_rounds=first_rounds)


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
