"""Bounds of delta for the cost functions of Appendix A, with corrections, and for fedpd's logistic loss.

In all but the last, grad f_i(x) = (1/n_i) A_i^T v_i(x) with the rows a of A_i (n_i, D) and slopes v in an interval
[low, high], for every x. With r_i = ||A_i||/sqrt(n_i), where the norm is the largest singular value:

    plain:  ||grad f_i - grad f_j|| <= max|v| (r_i + r_j), since ||v_i|| <= max|v| sqrt(n_i)
    tight:  ||grad f_i - grad f_j|| <= |c| ||m_i - m_j|| + h (s_i + s_j)

with v = c + w, where c is the middle of the interval, h half its length, |w| <= h, m_i the mean of the rows, and s_i
the smaller of r_i and the mean of ||a||. Since ||m_i|| <= s_i <= r_i, tight is at most plain.
These bound the pairwise delta; (N-1)/N times them bounds max_i ||grad f_i - grad f||.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained
from fedpd.core import Problem
from fedpd.problems.logistic import gram_eigenvalue, is_penalized_logistic
from fedpd.theory.curvature import signed_features

EQUAL = 1e-12  # two Gram matrices with at most this relative difference count as equal, up to rounding


class DeltaBound(NamedTuple):
    """Two upper bounds of max_ij ||grad f_i(x) - grad f_j(x)|| over all x; `fedpd.theory.examples` derives them.

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
