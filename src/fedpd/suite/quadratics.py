"""Quadratics of the suite: f_i(x) = x^T H_i x / 2 - c_i^T x, whose minimiser is known."""

import numpy as np

from fedpd.core import Problem
from fedpd.problems import quadratic


def _basis(rng: np.random.Generator, dimension: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]


def _made(hessians: np.ndarray, rng: np.random.Generator) -> Problem:
    """Return the problem of these Hessians, with linear terms from the standard normal distribution."""
    return quadratic((hessians + hessians.swapaxes(1, 2)) / 2, rng.standard_normal(hessians.shape[:2]))


def equal(condition: float, agents: int = 20, dimension: int = 30) -> Problem:
    """Return quadratics that all have the same Hessian; agents differ in their minimisers.

    Args:
        condition: The condition number of the Hessian, whose largest eigenvalue is 1.
        agents: N.
        dimension: d.
    """
    rng = np.random.default_rng(0)
    basis = _basis(rng, dimension)
    hessian = (basis * np.logspace(-np.log10(condition), 0, dimension)) @ basis.T
    return _made(np.repeat(hessian[None], agents, axis=0), rng)


def rotated(condition: float, agents: int = 20, dimension: int = 30) -> Problem:
    """Return quadratics with the same eigenvalues and eigenvectors of their own; their mean is better conditioned.

    Args:
        condition: The condition number of each Hessian, whose largest eigenvalue is 1.
        agents: N.
        dimension: d.
    """
    rng = np.random.default_rng(0)
    bases = [_basis(rng, dimension) for _ in range(agents)]
    eigenvalues = np.logspace(-np.log10(condition), 0, dimension)
    return _made(np.array([(basis * eigenvalues) @ basis.T for basis in bases]), rng)


def aligned(condition: float, agents: int = 20, dimension: int = 30) -> Problem:
    """Return quadratics with the same eigenvectors, and eigenvalues that differ by up to a factor of 4 between agents.

    Args:
        condition: The condition number of the eigenvalues before they are perturbed: also about that of the mean.
        agents: N.
        dimension: d.
    """
    rng = np.random.default_rng(0)
    basis, eigenvalues = _basis(rng, dimension), np.logspace(-np.log10(condition), 0, dimension)
    own = eigenvalues * 2 ** rng.uniform(-1, 1, (agents, dimension))
    return _made(np.array([(basis * each) @ basis.T for each in own]), rng)


def one_steep(factor: float, condition: float = 10, agents: int = 20, dimension: int = 30) -> Problem:
    """Return rotated quadratics of which the first agent's is steeper.

    Args:
        factor: How many times steeper the first agent's f_i is.
        condition: The condition number of each Hessian.
        agents: N.
        dimension: d.
    """
    data = rotated(condition, agents, dimension).data
    hessians, linear = data["hessian"][:, 0].copy(), data["linear"][:, 0]
    hessians[0] *= factor
    return quadratic(hessians, linear)


def low_rank(rank: int, agents: int = 20, dimension: int = 30) -> Problem:
    """Return quadratics whose Hessians have a low rank, while their mean is positive definite: rank * N >= d.

    The linear terms lie in the range of the Hessians, so that each f_i is bounded below.

    Args:
        rank: The rank of each Hessian.
        agents: N.
        dimension: d.
    """
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((agents, dimension, rank)) / np.sqrt(rank)
    hessians = factors @ factors.swapaxes(1, 2)
    return quadratic(hessians, np.einsum("nij,nj->ni", hessians, rng.standard_normal((agents, dimension))))
