"""How hard f is, and how much the agents' curvatures differ: the condition number of the mean Hessian H, and H_i - H.

FedPD with a fixed eta, as every method that takes gradient steps, needs more communications the larger the condition
number of H is. Methods that solve local problems gain the most where max_i ||H_i - H|| is small beside ||H||.

Small models: H_i is computed whole, so the eigenvalues are exact up to rounding. Large models: Lanczos' method on
Hessian-vector products of f finds the largest and the smallest eigenvalue from inside, and the agent whose products
differ the most from those of H is compared with H by power iteration. All these numbers are lower bounds.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from tree_math import Vector

from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import Functions, Shard, arrays, local_objective, map_agents, one_agent
from fedpd.theory.curvature import TOLERANCE, mean_product, power_iteration
from fedpd.theory.points import Progress, check_finite, places

LARGEST = 500  # dimensions whose Hessians are computed whole
ROOM = 2**24  # and the numbers in all N Hessians
TOGETHER = 32  # columns of a Hessian that are computed at once
STEPS = 40  # of Lanczos' method, and of the power iteration
ROUNDING = 32  # times the precision, relative to the largest: a smaller eigenvalue counts as 0
PROBES = 8  # directions in which the products of all agents are compared


class Hessians(NamedTuple):
    """The eigenvalues of the mean Hessian H = mean_i H_i, and how much the H_i differ.

    Attributes:
        condition: The largest |eigenvalue| of H over its smallest, at the point where this is largest. Infinite if H
            is singular up to rounding; None if H is not positive definite and only its extreme eigenvalues are known.
        largest: The largest |eigenvalue| of H at that point.
        least: The smallest eigenvalue of H at that point, which is negative if H is not positive semidefinite.
        scaled: The condition number at that point after every parameter is scaled so that the diagonal of H is 1; None
            if it is not known or the diagonal is not positive. Where it is much smaller, features are badly scaled.
        dissimilarity: max_i ||H_i - H||, the largest over all points.
        exact: Whether these are the numbers of H up to rounding. If not, `condition`, `largest` and `dissimilarity` are
            lower bounds and `least` is an upper bound.
        points: The number of points.
        how: A sentence that says how the numbers were found.
    """

    condition: float | None
    largest: float
    least: float
    scaled: float | None
    dissimilarity: float
    exact: bool
    points: int
    how: str


class Spectrum(NamedTuple):
    """The numbers of `Hessians` at one point."""

    condition: float | None
    largest: float
    least: float
    scaled: float | None
    dissimilarity: float


@explained
def hessians(problem: Problem, points: Iterable[Tree] | None = None, *, progress: Progress | None = None) -> Hessians:
    """Return the condition number of the mean Hessian and max_i ||H_i - H|| at the given models.

    Args:
        problem: The problem.
        points: Models, for example from a run; None: the start.
        progress: Called with (done, total) after each point.

    Examples:
        >>> from fedpd import problems, theory
        >>> steep = [[[4.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]]
        >>> found = theory.hessians(problems.quadratic(steep, [[0.0, 0.0], [1.0, 1.0]]))
        >>> round(found.condition, 6), round(found.dissimilarity, 6)
        (3.0, 1.0)
    """
    where = places(problem, points, 1.0, 0, 0)
    whole = problem.dimension <= LARGEST and problem.agents * problem.dimension**2 <= ROOM
    precision = ROUNDING * float(np.finfo(np.float64 if problem.double else np.float32).eps)
    functions, found = Functions.of(problem), []
    with scope(problem.double):
        shard = jax.device_put(arrays(problem))
        for i, model in enumerate(where.models):
            x = Vector(jax.device_put(model))
            found.append((_whole if whole else _products_only)(functions, shard, x, i, precision))
            if progress is not None:
                progress(i + 1, len(where.models))
    worst = max(found, key=lambda at: at.condition or 0.0)
    means = "all eigenvalues" if whole else f"{min(STEPS, problem.dimension)} steps of Lanczos' method: a lower bound"
    return Hessians(
        worst.condition,
        worst.largest,
        worst.least,
        worst.scaled,
        max(at.dissimilarity for at in found),
        whole,
        len(found),
        f"Hessians {where.words}, {means}",
    )


def _whole(functions: Functions, shard: Shard, x: Vector, point: int, precision: float) -> Spectrum:
    """Return the spectrum from all Hessians."""
    each = np.asarray(_each(functions, shard, x), np.float64)
    check_finite(each, "a Hessian", point)
    each = (each + each.swapaxes(1, 2)) / 2
    mean = each.mean(0)
    values = np.linalg.eigvalsh(mean)
    diagonal = np.sqrt(np.maximum(np.diag(mean), 0))
    scaled = np.linalg.eigvalsh(mean / np.outer(diagonal, diagonal)) if diagonal.all() else None
    return Spectrum(
        _condition(values, precision),
        float(np.abs(values).max()),
        float(values[0]),
        None if scaled is None else _condition(scaled, precision),
        float(np.abs(np.linalg.eigvalsh(each - mean)).max()),
    )


def _condition(values: np.ndarray, precision: float) -> float:
    """Return the largest |eigenvalue| over the smallest; infinity if that is not above rounding."""
    largest, smallest = np.abs(values).max(), np.abs(values).min()
    return np.inf if smallest <= precision * largest else float(largest / smallest)


@partial(jax.jit, static_argnames="functions")
def _each(functions: Functions, shard: Shard, x: Vector) -> Array:
    """Return (N, d, d) the Hessians of all f_i at x, one agent after another."""
    flat, back = ravel_pytree(x)

    def agent(one: Shard) -> Array:
        f = local_objective(functions, one)

        def column(v: Array) -> Array:
            return ravel_pytree(jax.jvp(f.gradient, (x,), (back(v),))[1])[0]

        return lax.map(column, jnp.eye(flat.size, dtype=flat.dtype), batch_size=TOGETHER)

    return map_agents(agent, shard)


def _products_only(functions: Functions, shard: Shard, x: Vector, point: int, precision: float) -> Spectrum:
    """Return bounds of the spectrum from Hessian-vector products."""
    basis, products = _lanczos(functions, shard, x)
    check_finite(products, "a Hessian", point)
    values = np.linalg.eigvalsh(basis @ products.T)
    probes = jnp.asarray(basis[:PROBES], ravel_pytree(x)[0].dtype)
    differences = np.asarray(_differences(functions, shard, x, probes, jnp.asarray(products[:PROBES], probes.dtype)))
    agent = int(differences.argmax())
    apart = _power(functions, shard, x, one_agent(shard, agent), probes[0])
    condition = _condition(values, precision) if values[0] > 0 else None  # inside, Ritz values mean nothing
    apart = max(float(apart), float(differences.max()))
    return Spectrum(condition, float(np.abs(values).max()), float(values[0]), None, apart)


def _lanczos(functions: Functions, shard: Shard, x: Vector) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthonormal basis of a Krylov space of H as rows, and the products of H with them.

    Every new direction is made orthogonal to all earlier ones twice, as rounding undoes Lanczos' short recurrence.
    """
    flat = np.asarray(ravel_pytree(x)[0])
    v = np.random.default_rng(0).standard_normal(flat.size)
    basis: list[np.ndarray] = []
    products: list[np.ndarray] = []
    for _ in range(min(STEPS, flat.size)):
        basis.append(v / np.linalg.norm(v))
        product = _mean_product(functions, shard, x, jnp.asarray(basis[-1], flat.dtype))
        products.append(np.asarray(product, np.float64))
        known, v = np.array(basis), products[-1]
        for _ in range(2):
            v = v - known.T @ (known @ v)
        if not np.linalg.norm(v) > np.finfo(flat.dtype).eps * np.linalg.norm(products[-1]):
            break
    return np.array(basis), np.array(products)


def _product(functions: Functions, shard: Shard, x: Vector, v: Array) -> Array:
    """Return H v."""
    return ravel_pytree(mean_product(functions, shard, x, ravel_pytree(x)[1](v)))[0]


_mean_product = jax.jit(_product, static_argnames="functions")


@partial(jax.jit, static_argnames="functions")
def _differences(functions: Functions, shard: Shard, x: Vector, probes: Array, products: Array) -> Array:
    """Return (N,) the largest ||(H_i - H) v|| over the unit vectors v in the span of the probes."""

    def agent(one: Shard) -> Array:
        rows = lax.map(lambda v: _own_product(functions, one, x, v), probes) - products
        return jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(rows @ rows.T)[-1], 0))

    return map_agents(agent, shard)


def _own_product(functions: Functions, one: Shard, x: Vector, v: Array) -> Array:
    """Return H_i v."""
    gradient = local_objective(functions, one).gradient
    return ravel_pytree(jax.jvp(gradient, (x,), (ravel_pytree(x)[1](v),))[1])[0]


@partial(jax.jit, static_argnames="functions")
def _power(functions: Functions, shard: Shard, x: Vector, one: Shard, start: Array) -> Any:
    """Return a lower bound of ||H_i - H|| by power iteration."""

    def multiply(v: Vector) -> Vector:
        return Vector(_own_product(functions, one, x, v.tree) - _product(functions, shard, x, v.tree))

    return power_iteration(multiply, Vector(start), STEPS, TOLERANCE)[0]
