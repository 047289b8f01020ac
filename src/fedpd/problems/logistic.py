"""Penalised logistic regression, the problem of the paper's first experiment; it is smooth and not convex.

F(x; (a, b)) = log(1 + exp(-b x^T a)) + beta sum_d alpha x_d^2 / (1 + alpha x_d^2),    b in {-1, +1}
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array, seal
from fedpd.base.checks import FedpdError, at_least, positive, refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Array, Problem
from fedpd.core.problem import Judge
from fedpd.core.rows import first_rows
from fedpd.data.ragged import Ragged
from fedpd.problems.build import Weights, from_losses, model_of_length
from fedpd.problems.evaluation import central_samples

LANES = 8  # float32 numbers in a vector register


@explained
def penalized_logistic(
    features: np.ndarray | Sequence[np.ndarray] | Ragged,
    labels: np.ndarray | Sequence[np.ndarray] | Ragged,
    alpha: float = 1.0,
    beta: float = 0.1,
    *,
    start: np.ndarray | None = None,
    weights: Weights = None,
) -> Problem:
    """Return penalised logistic regression on labelled features.

    F(x; (a, b)) = log(1 + exp(-b x^T a)) + beta sum_d alpha x_d^2 / (1 + alpha x_d^2). The problem's `answer` has L =
    max_i w_i n_i (||A_i||^2/(4 n_i) + 2 alpha beta), where w_i n_i is 1 unless `weights` are given.

    Args:
        features: (N, n, D), or N arrays (n_i, D), or `data.ragged(rows, sizes)` with rows (M, D).
        labels: (N, n) in {-1, +1}, or N arrays (n_i,), or `data.ragged(labels, sizes)` with labels (M,).
        alpha: The scale of x inside the penalty, > 0.
        beta: The weight of the penalty; 0 is plain logistic regression.
        start: x^0, (D,); None: 0.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
    """
    positive("alpha", alpha, "alpha is the scale of x inside the penalty, e.g. 1")
    at_least("beta", beta, 0, "beta is the weight of the penalty; 0 is plain logistic regression")
    if len(features) != len(labels):
        rule = f"the number of agents must be the same as in features, {len(features)}"
        refuse("labels", len(labels), rule, "Give one entry per agent")
    signed = _signed_by_agent(features, labels)
    if len(signed):
        start = model_of_length(start, signed[0].shape[1], signed[0].dtype)

    rows = signed.map(_aligned) if isinstance(signed, Ragged) else [_aligned(block) for block in signed]
    penalty = SaturatingPenalty(alpha, beta) if beta else None
    own: dict[str, Any] = {"penalty": penalty, "weights": weights, "name": "penalized_logistic"}
    problem = from_losses(_losses, rows, start, **own, check=False)
    # The logistic part of f_i is ||A||^2/(4n)-smooth; alpha x^2/(1 + alpha x^2) is 2 alpha-smooth.
    with np.errstate(over="ignore", invalid="ignore"):
        smoothness = largest_gram(signed, problem.scale, more=8 * alpha * beta) / 4
    if not np.isfinite(smoothness):
        rule = "the squares of the features are beyond the largest number"
        refuse("smoothness", smoothness, rule, "Scale the features, e.g. with data.standardise")
    return replace(
        problem, answer=Answer(smoothness=smoothness), judge=Judge(partial(_central, problem.dimension), _is_right)
    )


@dataclass(frozen=True)
class SaturatingPenalty:
    """The penalty beta sum_d alpha x_d^2 / (1 + alpha x_d^2). Equal ones share compiled programs."""

    alpha: float
    beta: float

    def __call__(self, x: Array) -> Array:
        return self.beta * jnp.sum(saturation(self.alpha * x * x))


def is_penalized_logistic(problem: Problem) -> bool:
    """Return whether a problem has the functions of `penalized_logistic`, whatever its name is."""
    return problem.losses is _losses and isinstance(problem.penalty, SaturatingPenalty | None)


def _signed_by_agent(features: Any, labels: Any) -> list[np.ndarray] | Ragged:
    """Return the rows b a of each agent."""
    if not isinstance(features, Ragged):
        if isinstance(labels, Ragged):
            refuse("labels", "Ragged", "must have the form of the features", "Give both as lists, or both as ragged")
        return [_signed(a, b, f"agent {i}") for i, (a, b) in enumerate(zip(features, labels, strict=True))]
    if not isinstance(labels, Ragged) or not np.array_equal(labels.sizes, features.sizes):
        rule = "must be ragged with the sizes of the features"
        refuse("labels", type(labels).__name__, rule, "Give data.ragged(labels, sizes) with the same sizes")
    return Ragged(_signed(features.rows, labels.rows, "all agents"), features.sizes)


@jax.custom_jvp
def softplus(z: Array) -> Array:
    """Return log(1 + exp(z)) without overflow; its derivative needs one exponential and no logarithm."""
    return jnp.logaddexp(z, 0)


softplus.defjvps(lambda tangent, _, z: tangent * jax.lax.logistic(z))


@jax.custom_jvp
def saturation(z: Array) -> Array:
    """Return z/(1 + z); its derivative 1/(1 + z)^2 needs one division."""
    return z / (1 + z)


saturation.defjvps(lambda tangent, _, z: tangent / ((1 + z) * (1 + z)))


def _losses(x: Array, signed_features: Array) -> Array:
    """Return log(1 + exp(-b x^T a)) of each row b a."""
    extra = signed_features.shape[1] - x.shape[0]  # columns of zeros, see _aligned
    if extra and len(signed_features) < LANES:
        return softplus(-(signed_features[:, : x.shape[0]] @ x))
    return softplus(-(signed_features @ (jnp.pad(x, (0, extra)) if extra else x)))


def _is_right(x: Array, signed_features: Array) -> Array:
    """Return 1 for each row b a with b x^T a > 0, and 0 otherwise."""
    return (signed_features[:, : x.shape[0]] @ x > 0).astype(x.dtype)


def _central(dimension: int, samples: Any) -> np.ndarray:
    """Return the rows of a central test set, {"x": features (m, D), "y": labels (m,)}."""
    given = central_samples(samples)
    signed = _signed(given["x"], given["y"], "test")
    if signed.shape[1] != dimension:  # before columns of zeros hide it
        refuse("test['x']", list(signed.shape), f"must have the shape (m, {dimension})", "Give the agents' features")
    return _aligned(signed)


def _aligned(signed: np.ndarray) -> np.ndarray:
    """Return the rows with columns of zeros, so that they fill vector registers, if few columns are enough.

    This makes matrix-vector products 1.3 times as fast. Measured on N=100, n=400, D=100, float32: a round with 8 full
    gradients takes 3.6 ms with 100 columns, and 2.7 ms with 104.
    """
    extra = -signed.shape[1] % LANES
    return seal(np.pad(signed, ((0, 0), (0, extra)))) if extra <= signed.shape[1] / 16 else signed


def _signed(features: Any, labels: Any, whose: str) -> np.ndarray:
    """Return the rows b a; the loss depends on features and labels only through b x^T a."""
    features, labels = as_array(features, f"features of {whose}"), as_array(labels, f"labels of {whose}")
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        shapes = (features.shape, labels.shape)
        refuse(f"features, labels of {whose}", shapes, "must have shapes (n, D), (n,)", "Give one row per sample")
    if not features.shape[1]:
        refuse(f"shape of the features of {whose}", features.shape, "must have D > 0", "Give at least one feature")
    if not np.isin(labels, (-1, 1)).all():
        found = np.unique(labels)[:5].tolist()
        raise FedpdError(f"labels of {whose} hold {found}: they must be -1 or +1. For 0/1, give 2*labels - 1.")
    if not np.issubdtype(features.dtype, np.floating):
        features = features.astype(np.float64)
    return seal(features * labels[:, None].astype(features.dtype))


EXACT = 1_000  # agents of ragged data whose eigenvalue is computed, before the bound by the squares is taken
CHUNK = 2**16  # rows whose squares are summed at a time


def largest_gram(
    features: list[np.ndarray] | Ragged, scale: np.ndarray, divisor: float = 1, constant: float = 0, more: float = 0
) -> float:
    """Return max_i scale_i (||[A_i, c]||^2/n_i + more), A_i the features of agent i divided by `divisor`.

    ||A||^2 is at most the sum of the squares of A. For ragged data, the agents are taken in the order of these bounds,
    and those whose bound is below the largest value so far are left out. After 1,000 agents the next bound is taken, so
    that the result may then be larger than the maximum, and is never smaller.

    Args:
        features: The features of each agent, (n_i, ...).
        divisor: 255 for features of uint8, else 1.
        constant: The numbers in a further column c; 0: there is no such column.
        more: A number that is added before the weight of an agent multiplies the sum.
    """

    def of_agent(i: int) -> float:
        x = features[i]
        block = x.reshape(len(x), -1).astype(np.float64) / divisor
        block = np.c_[block, np.full(len(block), constant)] if constant else block
        return float(scale[i] * (gram_eigenvalue(block) / len(block) + more))

    if not isinstance(features, Ragged):
        return max(of_agent(i) for i in range(len(features)))
    bounds = scale * (_sums_of_squares(features) / divisor**2 / features.sizes + constant**2 + more) * (1 + 1e-9)
    order = np.argsort(-bounds, kind="stable")
    largest = 0.0
    for i in order[:EXACT]:
        if bounds[i] <= largest:
            return largest
        largest = max(largest, of_agent(int(i)))
    return largest if len(order) <= EXACT else max(largest, float(bounds[order[EXACT]]))


def _sums_of_squares(features: Ragged) -> np.ndarray:
    """Return (N,) the sums of the squares of the agents' features."""
    x = features.rows
    squares = np.empty(len(x))
    for first in range(0, len(x), CHUNK):
        rows = x[first : first + CHUNK].reshape(len(x[first : first + CHUNK]), -1).astype(np.float64)
        squares[first : first + CHUNK] = np.einsum("ij,ij->i", rows, rows)
    return np.add.reduceat(squares, first_rows(features.sizes))


def gram_eigenvalue(rows: np.ndarray) -> float:
    """Return the largest eigenvalue of A^T A, which is ||A||^2, for `rows` A (n, D).

    It uses the smaller of the two Gram matrices A^T A and A A^T.
    """
    return float(np.linalg.eigvalsh(rows.T @ rows if len(rows) >= rows.shape[1] else rows @ rows.T)[-1])
