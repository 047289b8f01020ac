"""Largest eigenvalues of A^T A, and of A_i^T A_i/n_i over all agents, which bound the smoothness of linear models."""

import numpy as np

from fedpd.core.rows import first_rows
from fedpd.data.ragged import Ragged

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
