"""How much the agents' gradients differ: measured at given models, or bounded at all models for some cost functions.

Measured: delta of Assumption 5, B of Assumption 4 and G of Assumption 3.

Bounds of delta: for the cost functions of Appendix A, with corrections, and for fedpd's logistic loss. In all but the
last, grad f_i(x) = (1/n_i) A_i^T v_i(x) with the rows a of A_i (n_i, D) and slopes v in an interval [low, high], for
every x. With r_i = ||A_i||/sqrt(n_i), where the norm is the largest singular value:

    plain:  ||grad f_i - grad f_j|| <= max|v| (r_i + r_j), since ||v_i|| <= max|v| sqrt(n_i)
    tight:  ||grad f_i - grad f_j|| <= |c| ||m_i - m_j|| + h (s_i + s_j)

with v = c + w, where c is the middle of the interval, h half its length, |w| <= h, m_i the mean of the rows, and s_i
the smaller of r_i and the mean of ||a||. Since ||m_i|| <= s_i <= r_i, tight is at most plain.
These bound the pairwise delta; (N-1)/N times them bounds max_i ||grad f_i - grad f||.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, at_least, brief, refuse
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import AXIS, Functions, Layout, Shard, arrays, each_agent, local_objective, zero_for_padding
from fedpd.core.distances import largest_distance
from fedpd.problems.logistic import gram_eigenvalue, is_penalized_logistic
from fedpd.theory.curvature import signed_features
from fedpd.theory.points import Places, Progress, check_finite, places


class Profile(NamedTuple):
    """The differences between the gradients at P points; every field is (P,).

    Attributes:
        pairwise: max_ij ||grad f_i - grad f_j||.
        centred: max_i ||grad f_i - grad f||.
        largest: max_i ||grad f_i||.
        squares: sum_i ||grad f_i||^2.
        stationarity: ||grad f||^2.
    """

    pairwise: np.ndarray
    centred: np.ndarray
    largest: np.ndarray
    squares: np.ndarray
    stationarity: np.ndarray

    def __repr__(self) -> str:
        return brief(self)


class Similarity(NamedTuple):
    """The largest values over the measured points, which are lower bounds of the paper's constants (for all x).

    The two delta of Assumption 5 are different numbers: pairwise <= 2 centred, and centred <= (N-1)/N pairwise.

    Attributes:
        pairwise: delta of Assumption 5 for pairs, max_ij ||grad f_i - grad f_j||.
        centred: delta of Assumption 5 for the mean, max_i ||grad f_i - grad f||.
        B: B of Assumption 4, sum_i ||grad f_i||^2 <= B^2 ||grad f||^2 where ||grad f||^2 > epsilon. It is at least
            sqrt(N), with equality only if all gradients are equal; None if no point has ||grad f||^2 > epsilon.
        G: G of Assumption 3, ||grad f_i|| <= G.
        points: The number of points.
        how: A sentence that says how the numbers were found.
    """

    pairwise: float
    centred: float
    B: float | None
    G: float
    points: int
    how: str


@explained
def similarity(
    problem: Problem,
    points: Iterable[Tree] | None = None,
    *,
    radius: float = 1.0,
    samples: int = 4,
    seed: int = 0,
    epsilon: float = 1e-6,
    progress: Progress | None = None,
) -> Similarity:
    """Return delta, B and G at the given models and at random models around them.

    `points`, `radius`, `samples`, `seed` and `progress` are as for `estimate_smoothness`.

    Args:
        problem: The problem.
        epsilon: B is the largest value over the points with ||grad f||^2 > epsilon.
    """
    at_least("epsilon", epsilon, 0, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    where = places(problem, points, radius, samples, seed)
    at = _profile(problem, where, progress)
    counts = at.stationarity > epsilon
    B = float(np.sqrt(np.max(at.squares[counts] / at.stationarity[counts]))) if counts.any() else None
    beyond = f"with ||grad f||^2 > {epsilon:g}"
    of_B = f"no B, because no point is {beyond}" if B is None else f"B over the {counts.sum()} {beyond}"
    how = f"largest values of the gradients of the {problem.agents} f_i {where.words}: lower bounds; {of_B}"
    pairwise, centred, G = (float(np.max(column)) for column in (at.pairwise, at.centred, at.largest))
    return Similarity(pairwise, centred, B, G, len(where.models), how)


@explained
def profile(problem: Problem, points: Iterable[Tree], *, progress: Progress | None = None) -> Profile:
    """Return the differences between the gradients at each of the given models, for example from a run.

    Args:
        problem: The problem.
        points: P models.
        progress: Called with (done, total) after each point.
    """
    return _profile(problem, places(problem, points, 1.0, 0, 0), progress)


def _profile(problem: Problem, where: Places, progress: Progress | None) -> Profile:
    """Return the profile at some places."""
    functions, rows = Functions.of(problem), []
    with scope(problem.double):
        shard = jax.device_put(arrays(problem))
        for i, model in enumerate(where.models):
            row = jax.device_get(_at(functions, shard, Vector(jax.device_put(model))))
            check_finite(row, "a gradient", i)
            rows.append(row)
            if progress is not None:
                progress(i + 1, len(where.models))
    return Profile(*np.asarray(rows, np.float64).T)


def start_gradients(problem: Problem) -> np.ndarray:
    """Return (N, d) the agents' gradients grad f_i at the start, one row of float64 per agent."""
    functions, layout = Functions.of(problem), Layout(problem.agents, parallel=False, mesh=None)
    with scope(problem.double):
        _, stacked = jax.jit(_gradients, static_argnums=(0, 1))(
            functions, layout, arrays(problem), Vector(jax.device_put(problem.start))
        )
        leaves = [np.asarray(leaf, np.float64).reshape(problem.agents, -1) for leaf in jax.tree.leaves(stacked)]
    return np.concatenate(leaves, axis=1)


@partial(jax.jit, static_argnames="functions")
def _at(functions: Functions, shard: Shard, x: Vector) -> tuple[Array, ...]:
    """Return a row of `Profile`, computed from all gradients at x (N d numbers).

    It compares the gradients by their differences c_i to the first one, so that equal gradients give exactly 0.
    """
    layout = Layout(len(shard.agent), parallel=False, mesh=None)
    total, gradients = _gradients(functions, layout, shard, x)
    mean = total / layout.agents
    flat = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(gradients)]
    offsets = [leaf - leaf[:1] for leaf in flat]
    squares = _squares(flat)
    centred = jnp.sqrt(jnp.max(_squares([leaf - leaf.mean(0) for leaf in offsets])))
    return largest_distance(gradients, layout), centred, jnp.sqrt(jnp.max(squares)), jnp.sum(squares), mean @ mean


def _squares(leaves: list[Array]) -> Array:
    """Return (N,) squared norms of the rows."""
    return sum((jnp.sum(leaf * leaf, axis=1) for leaf in leaves[1:]), jnp.sum(leaves[0] * leaves[0], axis=1))


def _gradients(functions: Functions, layout: Layout, shard: Shard, x: Vector) -> tuple[Vector, Vector]:
    """Return (sum_i grad f_i(x), the grad f_i(x) stacked)."""

    def gradient(one: Shard) -> tuple[Vector, Vector]:
        own = local_objective(functions, one).gradient(x)
        return zero_for_padding(one, own), own

    return each_agent(gradient, shard, layout)


def gradient_dissimilarity(functions: Functions, layout: Layout, shard: Shard, x: Vector) -> Array:
    """Return max_i ||grad f_i(x) - grad f(x)||, the centred delta at x.

    It is exact up to rounding of the largest ||grad f_i(x)||.

    It works under any layout, so that a run can record it. A padding agent repeats a gradient, which does not change
    the maximum.
    """
    total, gradients = _gradients(functions, layout, shard, x)
    mean = total / layout.agents

    def square(gradient: Vector) -> Array:
        difference = gradient - mean
        return difference @ difference

    largest = jnp.max(jax.vmap(square)(gradients))
    return jnp.sqrt(largest if layout.mesh is None else lax.pmax(largest, AXIS))


EQUAL = 1e-12  # two Gram matrices with at most this relative difference count as equal, up to rounding


class DeltaBound(NamedTuple):
    """Two upper bounds of max_ij ||grad f_i(x) - grad f_j(x)|| over all x; `fedpd.theory.dissimilarity` derives them.

    Attributes:
        plain: max|v| (r_i + r_j) for the two largest r.
        tight: The bound that also uses the means of the rows; at most `plain`.
    """

    plain: float
    tight: float


@explained
def sigmoid_delta(features: Sequence[np.ndarray]) -> DeltaBound:
    """Return bounds of delta for Appendix A's "logistic regression", f_i = mean of 1/(1 + exp(b - a^T x)), any b.

    The slope e^z/(1 + e^z)^2 lies in (0, 1/4], which is smaller than the paper's (0, 1). So plain is a quarter of the
    printed bound. Two agents with one sample each, a and -a, reach it at a^T x = b.

    Args:
        features: N arrays (n_i, D), the rows a.
    """
    return _delta_bound(features, 0.0, 0.25)


@explained
def tanh_delta(features: Sequence[np.ndarray]) -> DeltaBound:
    """Return bounds of delta for Appendix A's "hyperbolic tangent", f_i = mean of tanh(b - a^T x), any b.

    Its slope -1/cosh^2 lies in [-1, 0). tanh(z) = 1 - 2/(1 + e^{2z}); the paper prints its negative. So the gradient is
    -2 times that of 1/(1 + e^{2z}), not 4 times. The doubled argument gives another factor 2, so delta is 4 times that
    of the sigmoid, as the paper says.

    Args:
        features: N arrays (n_i, D), the rows a.
    """
    return _delta_bound(features, -1.0, 0.0)


@explained
def logistic_delta(features: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> DeltaBound:
    """Return bounds of delta for f_i = mean of log(1 + exp(-b a^T x)) + penalty(x) (`problems.penalized_logistic`).

    The gradient of a sample is -b a times a slope in (0, 1). The penalty is the same for all agents and cancels.

    Args:
        features: N arrays (n_i, D), the rows a.
        labels: N arrays (n_i,), the b.
    """
    features, labels = _arrays("features", features), _arrays("labels", labels)
    if [a.shape[:1] for a in features] != [b.shape for b in labels]:
        shapes = [b.shape for b in labels]
        refuse("labels", shapes, "must have one entry per row of each agent's features", "Give N arrays (n_i,)")
    return _delta_bound([a * b[:, None] for a, b in zip(features, labels, strict=True)], 0.0, 1.0)


@explained
def delta_bound(problem: Problem) -> DeltaBound | None:
    """Return `logistic_delta` of a `problems.penalized_logistic`, or None for other problems and different weights.

    If the weights w_i |D_i| differ, the penalty does not cancel.

    Args:
        problem: The problem.
    """
    if not is_penalized_logistic(problem) or (problem.scale != 1).any():
        return None
    return _delta_bound(signed_features(problem), 0.0, 1.0)


@explained
def linear_regression_delta(features: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> float:
    """Return delta of Appendix A's "linear regression", f_i = ||A_i x + b_i||^2/2.

    If all A_i^T A_i are equal (up to rounding), it is exactly max_ij ||A_i^T b_i - A_j^T b_j||. (The paper prints an
    absolute value in place of the norm.) Otherwise it is infinite, because (A_i^T A_i - A_j^T A_j) x grows with x.

    Args:
        features: The A_i, N arrays (n_i, D).
        targets: The b_i, N arrays (n_i,).
    """
    matrices = _matrices(features)
    vectors = _arrays("targets", targets)
    if [b.shape for b in vectors] != [a.shape[:1] for a in matrices]:
        shapes = [b.shape for b in vectors]
        refuse("targets", shapes, "must have one entry per row of each agent's features", "Give N arrays (n_i,)")
    _check_finite("targets", vectors)
    first = matrices[0].T @ matrices[0]
    scale = np.abs(first).max()
    if any(np.abs(a.T @ a - first).max() > EQUAL * scale for a in matrices):
        return np.inf
    linear = np.array([a.T @ b for a, b in zip(matrices, vectors, strict=True)])
    return float(max(np.linalg.norm(linear - one, axis=1).max() for one in linear))


def _delta_bound(features: Sequence[np.ndarray], low: float, high: float) -> DeltaBound:
    """Return plain and tight for slopes in [low, high]. It compares one agent with all at a time, in N D memory."""
    matrices = _matrices(features)
    roots = np.array([np.sqrt(gram_eigenvalue(a) / len(a)) for a in matrices])  # r_i
    if len(matrices) == 1:
        return DeltaBound(0.0, 0.0)
    plain = max(abs(low), abs(high)) * float(np.sort(roots)[-2:].sum())
    lengths = np.minimum(roots, [np.linalg.norm(a, axis=1).mean() for a in matrices])  # s_i
    means = np.array([a.mean(0) for a in matrices])
    middle, half = abs(low + high) / 2, (high - low) / 2

    def row(i: int) -> float:
        bounds = middle * np.linalg.norm(means - means[i], axis=1) + half * (lengths + lengths[i])
        return float(np.max(np.delete(bounds, i)))

    return DeltaBound(plain, max(map(row, range(len(matrices)))))


def _matrices(features: Any) -> list[np.ndarray]:
    """Return the features as float64 matrices with the same number of columns."""
    matrices = _arrays("features", features)
    shapes = [a.shape for a in matrices]
    if not shapes or any(len(shape) != 2 or 0 in shape or shape[1] != shapes[0][1] for shape in shapes):
        refuse("features", shapes, "must be matrices (n_i, D) with the same D", "Give one matrix per agent")
    _check_finite("features", matrices)
    return matrices


def _arrays(name: str, given: Any) -> list[np.ndarray]:
    """Return the array of each agent as float64."""
    return [as_array(one, f"{name} of agent {i}").astype(np.float64) for i, one in enumerate(given)]


def _check_finite(name: str, arrays: Sequence[np.ndarray]) -> None:
    for i, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise FedpdError(f"{name} of agent {i} hold NaN or infinity. Clean or drop those samples.")
