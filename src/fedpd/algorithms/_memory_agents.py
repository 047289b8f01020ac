"""The agents of FedPD-M (`_memory.py`): what a local solve shows, and how an agent's rows differ."""

from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedpd.algorithms._memory_server import Rules, minus
from fedpd.algorithms._rules import eta_above_theorem_1
from fedpd.base.checks import refuse
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Vector, Work, augmented_lagrangian
from fedpd.core.lbfgs import Secants, rounding_of, steepest
from fedpd.core.stacked import dots, norm, put, row

PROBES = 10  # gradients of the power iteration for L_i
USUAL = Rules()

Held = TypeVar("Held", bound=Any)  # an agent of either form


class Remembering(Method):
    """FedPD-M in both forms. `eta="auto"` finds eta."""

    eta: float | Literal["auto"]
    oracle: Oracle
    memory: int
    start: Literal["local", "server"]
    rules: Rules = USUAL
    compares_rounds = True

    @property
    def given_eta(self) -> Any:
        """The penalty's eta; None if the run finds it."""
        return None if isinstance(self.eta, str) else self.eta

    def model(self, agent: Any) -> Vector:
        return agent.x0

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        rule = "mixes each agent's past outcomes, and this agent has lost its own"
        refuse("memory", self.memory, rule, "Start the run again, from x^0 or from its last model")

    def caution(self, L: float) -> str | None:
        return None if self.given_eta is None else eta_above_theorem_1(self.given_eta, L)


class Solve(NamedTuple):
    """The facts that a local solve has shown beside its outcome."""

    memory: Any  # of the oracle
    lowest: Array  # the negative curvature of f_i that the oracle met; >= 0
    largest: Array  # the largest curvature
    work: Work


class Outcome(NamedTuple):
    """A row of an agent, or a stack of rows."""

    x: Vector
    dual: Vector
    value: Array  # of f_i


def largest_curvature(f: LocalObjective, x: Vector, gradient: Vector) -> Array:
    """Return L_i, an estimate of ||Hessian of f_i(x)||, by power iteration on PROBES gradient differences."""
    flat, unravel = ravel_pytree(x)
    info = jnp.finfo(flat.dtype)
    length = info.eps**0.25 * (1 + norm(x))
    start = unravel(jax.random.normal(jax.random.key(0, impl="threefry2x32"), flat.shape, flat.dtype))

    def probe(_: Any, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        direction, _ = carry
        step = direction * (length / jnp.maximum(norm(direction), info.tiny))
        change = (f.gradient(x + step) - gradient) / length
        return change, norm(change)

    _, largest = lax.fori_loop(0, PROBES, probe, (start, jnp.zeros((), flat.dtype)))
    return jnp.maximum(largest, info.tiny).astype(float)


def outcome_of_start(f: LocalObjective, x: Vector, eta: float | None, rules: Rules) -> tuple[Outcome, Array, Work]:
    """Return the first row of an agent, L_i (1 if eta is given), and the work."""
    value, gradient = f.value_and_gradient(x)
    smoothness = largest_curvature(f, x, gradient) if eta is None else jnp.ones((), float)
    work = Work.of(0, 1 + PROBES if eta is None else 1, f.size)
    return Outcome(x, -rules.informed * gradient, value.astype(float)), smoothness, work


def solve_locally(
    oracle: Oracle, f: LocalObjective, agent: Any, first: Vector, dual: Vector, r: Array, key: Key
) -> tuple[Outcome, Solve]:
    """Return an agent's new outcome, and what its local solve, from `first` with the mixed dual, has shown."""
    v, eta = agent.x0, agent.eta
    w, kept, work = oracle.solve(augmented_lagrangian(f, v, dual, eta), first, agent.memory, r, key)
    if isinstance(kept, Secants):
        value, solve = kept.value, Solve(kept, -kept.lowest, steepest(kept), work)
    else:
        value, none = f.value(w).astype(float), jnp.zeros((), float)
        solve = Solve(kept, none, none, work.plus(Work.of(0, 1, f.size)))
    return Outcome(w, dual + (w - v) / eta, value), solve


def with_outcome(agent: Held, outcome: Outcome, slot: Array) -> Held:
    """Return the agent with a row in its place."""
    return agent._replace(
        xs=put(agent.xs, slot, outcome.x),
        duals=put(agent.duals, slot, outcome.dual),
        values=agent.values.at[slot].set(outcome.value),
    )


def bend_of_rows(rows: Outcome, newest: Outcome, L: Array, bend: float) -> Array:
    """Return nu_l: how far f_i is from a quadratic between each row and the newest. L: its curvature, for rounding."""
    w, dual, value = newest
    apart = minus(rows.x, w)  # X_l - w
    duals = jax.tree.map(lambda leaf, one: leaf + one, rows.dual, dual)
    excess = jnp.abs(rows.value - value + dots(apart, duals) / 2)
    rounding = rounding_of(rows.value, dots(rows.x, rows.x), L) + rounding_of(value, (w @ w).astype(float), L)
    excess = jnp.maximum(excess - rounding, 0)
    distance = jnp.maximum(dots(apart, apart), jnp.finfo(excess.dtype).tiny)
    return jnp.where(excess > 0, (bend * excess) ** 2 / distance, 0)


def distance_to_row(agent: Any, x: Vector, dual: Vector, slot: Array) -> Array:
    """Return the square of the distance of (x, dual) from the agent's row in a place, in the norm of Theorem 4."""
    dx, turned = (one - row(stack, slot) for one, stack in ((x, agent.xs), (dual, agent.duals)))
    return (dx @ dx).astype(float) / agent.eta + agent.eta * (turned @ turned).astype(float)
