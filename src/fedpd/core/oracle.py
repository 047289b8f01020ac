"""The type of a local solver (oracle), the work that it reports, its step sizes, and optimisers of optax by name.

The settings of an `Optimizer` are checked, so that an experiment file can contain it.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax as optax_library
from jax import lax
from tree_math import Vector

from fedpd.base.checks import as_number, choice, is_traced, positive_or_schedule, refuse
from fedpd.base.spec import Spec
from fedpd.base.value import Value, attribute
from fedpd.core.objective import LocalObjective, Subproblem
from fedpd.core.sampling import multiply_words
from fedpd.core.vectors import Array, Key

WORD = 30  # bits of the samples that a 32-bit number holds; JAX has no 64-bit integers with float32
STEP = "A safe step is 1/(L + 1/eta), where L is the smoothness of the f_i"
ITERATIONS = "Give the number of local steps, e.g. 8"

Step = Callable[[Any, Any], Any]


class Work(NamedTuple):
    """The work of one agent in a local solve. The number of sample gradients is samples + 2^30 carried.

    Use `Work.of` if the number may reach 2^31, and `plus` to add the work of two solves: both are exact up to 2^60.

    Attributes:
        updates: Local steps, Q_i.
        samples: Sample gradients that were computed, below 2^31.
        carried: Further 2^30 sample gradients, so many times.
    """

    updates: Array
    samples: Array
    carried: Array | np.int32 = np.int32(0)  # of 32 bits in float64 as well, so that both branches of a cond agree

    @staticmethod
    def of(updates: Any, gradients: Any, samples: Any) -> "Work":
        """Return the work of local steps that computed `gradients` gradients, each on this number of samples."""
        high, low = multiply_words(jnp.asarray(gradients, jnp.uint32), jnp.asarray(samples, jnp.uint32))
        carried = (high << (32 - WORD)) | (low >> WORD)
        return Work(jnp.asarray(updates, jnp.int32), _low(low).astype(jnp.int32), carried.astype(jnp.int32))

    def plus(self, other: "Work") -> "Work":
        """Return the work of both."""
        low = _low(self.samples) + _low(other.samples)
        carried = self.carried + other.carried + sum(_high(one) for one in (self.samples, other.samples, low))
        return Work(self.updates + other.updates, _low(low), carried)


def _low(samples: Array) -> Array:
    return samples & (2**WORD - 1)


def _high(samples: Array) -> Array:
    return samples >> WORD


def count_samples(work: Work) -> np.ndarray:
    """Return the numbers of sample gradients of works whose arrays are on the host, as 64-bit integers.

    Raises:
        FedpdError: A number is negative, because a method or an oracle of the user's own multiplied 32-bit numbers.
    """
    samples = np.asarray(work.samples, np.int64)
    if samples.min(initial=0) < 0:
        rule = "a method or an oracle counted 2^31 sample gradients or more in 32 bits"
        refuse("samples", int(samples.min()), rule, "Return Work.of(steps, gradients, samples), which is exact")
    return samples + (np.asarray(work.carried, np.int64) << WORD)


class Oracle(Value):
    """A local solver, which minimises a `Subproblem` approximately from a given point.

    Attributes:
        batch: Samples per step; None: all samples of the agent.
        epochs: Passes over the agent's own samples, so that agents with more samples do more steps; None: all agents do
            equally many.
        compares_rounds: Whether it compares gradients of different rounds, so that the loss must be the same function
            in all of them.
        needs_samples: Whether it needs the gradient of each sample.
    """

    batch = attribute(None)
    epochs = attribute(None)
    compares_rounds = attribute(False)
    needs_samples = attribute(False)

    def init(self, f: LocalObjective, x: Vector) -> Any:
        """Return the memory that it keeps between rounds, at the start or after an agent has lost it."""
        return None

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        """Minimise phi approximately, starting at x; return x, the memory and the work."""
        self.needs("solve(self, phi, x, memory, r, key)")


def check_oracle(oracle: Any) -> None:
    if not isinstance(oracle, Oracle):
        refuse("oracle", oracle, "must be a local solver", "Give e.g. oracles.gd(step=0.1, iterations=8)")


def check_step(step: float | Step) -> None:
    positive_or_schedule("step", step, STEP)


def sum_of_steps(step: Any, r: Any, steps: Any) -> Array:
    """Return step(r, 0) + ... + step(r, steps - 1), by which x - x_i of plain local steps is a mean of gradients.

    With a schedule, each gradient has the weight of its step in that mean.
    """
    if not callable(step):
        return step * jnp.asarray(steps, float)
    return lax.fori_loop(0, steps, lambda q, total: total + step_at(step, r, q), jnp.zeros((), float))


def step_above_limit(oracle: Oracle, curvature: float) -> str | None:
    """Return a sentence if gradient steps of this length need not descend, else None.

    A gradient step descends on every function with this smoothness only if it is shorter than 2/curvature. Momentum
    allows longer ones, so this says nothing of them.

    Args:
        curvature: The smoothness of what it minimises: L, plus 1/eta if the method adds a penalty.
    """
    step = getattr(oracle, "step", None)
    plain = oracle.spec.name in ("gd", "sgd") and not getattr(oracle, "momentum", 0)
    if not plain or not isinstance(step, float) or not curvature > 0 or step < 2 / curvature:
        return None
    return (
        f"The local step = {step:.3g} is not below 2/{curvature:.3g} = {2 / curvature:.3g}, the limit of gradient "
        "steps on a function with this smoothness, so no theorem covers this run. It may diverge."
    )


def step_at(step: Any, r: Any, q: Any) -> Any:
    """Return the step size of local step q in round r, of a number or a schedule.

    It converts r and q to the default integer type first: r/3 of an int32 is a float32, even in a float64 computation.
    """
    return step(jnp.asarray(r, int), jnp.asarray(q, int)) if callable(step) else step


class Optimizer(Value):
    """An optax optimiser with its name and settings, so that an experiment file can contain it."""

    rule: str  # its name in optax
    order: tuple[str, ...]  # the names of its settings
    numbers: dict[str, float]  # those settings that are numbers; a sweep may trace them
    others: dict[str, Any]  # all other settings
    counts: ClassVar = ("numbers",)

    @property
    def settings(self) -> dict[str, Any]:
        known = self.numbers | self.others
        return {name: known[name] for name in self.order}

    @property
    def spec(self) -> Spec:
        return Spec.of(self.rule, **self.settings)

    @property
    def by_round(self) -> bool:
        """Whether the learning rate is a schedule of fedpd, a function of the round and the local step."""
        return isinstance(self.others.get("learning_rate"), Value)

    @property
    def transform(self) -> optax_library.GradientTransformation:
        """The optimiser; with a schedule by round, one with the same state, whose steps are those of `at`."""
        return optimizers()[self.rule](**self.settings | ({"learning_rate": 1.0} if self.by_round else {}))

    def at(self, r: Any, q: Any) -> optax_library.GradientTransformation:
        """Return the optimiser for local step q of round r."""
        rate = {"learning_rate": step_at(self.others["learning_rate"], r, q)} if self.by_round else {}
        return optimizers()[self.rule](**self.settings | rate)

    def changed(self, changes: Mapping[str, Any], within: str = "") -> "Optimizer":
        return optimizer(self.rule, **self.settings | dict(changes))


@functools.cache
def optimizers() -> dict[str, Callable[..., optax_library.GradientTransformation]]:
    """Return the optimisers of optax by name: its functions that take a learning rate."""
    functions = {name: getattr(optax_library, name) for name in dir(optax_library) if not name.startswith("_")}
    return {
        name: function
        for name, function in functions.items()
        if inspect.isfunction(function) and "learning_rate" in inspect.signature(function).parameters
    }


def optimizer(name: str, **settings: Any) -> Optimizer:
    """Return an optax optimiser by its name, e.g. optimizer("adam", learning_rate=0.01).

    A `learning_rate` of `fedpd.schedules` is a function of the round and the local step. One of optax is a function of
    the number of local steps since the optimiser's state began, which is every round unless the oracle keeps it.
    """
    known = optimizers()
    choice("optimizer", name, known)
    _check_optimizer(known[name], settings)
    known[name](**settings)  # it refuses what does not fit
    numbers = {key: value for key, value in settings.items() if isinstance(value, float)}
    others = {key: value for key, value in settings.items() if key not in numbers}
    return Optimizer(rule=name, order=tuple(settings), numbers=numbers, others=others)


def _check_optimizer(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that optax accepts and that fail, or do nothing sensible, in the first step."""
    parameters = inspect.signature(function).parameters
    for key, value in settings.items():
        usual = parameters[key].default if key in parameters else None
        if key == "learning_rate":
            positive_or_schedule(key, value, "Give the step size of the optimiser, e.g. 0.01")
        elif isinstance(usual, bool) and not isinstance(value, bool):
            refuse(key, value, "must be True or False", f"Its default is {usual}")
        elif type(usual) in (int, float) and not callable(value) and not is_traced(value):
            as_number(key, value, f"Its default is {usual}")
