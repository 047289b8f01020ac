"""Quadratic problems f_i(x) = x^T H_i x / 2 - c_i^T x, whose solution, L and delta are known."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, check_room, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Array, Problem, Tree
from fedpd.problems.build import from_losses, model_of_length


@explained
def quadratic(hessians: np.ndarray, linear: np.ndarray, *, start: np.ndarray | None = None) -> Problem:
    """Return the problem of quadratics f_i(x) = x^T H_i x / 2 - c_i^T x, with one sample per agent.

    The problem's `answer`: x* solves mean(H) x* = mean(c) if mean(H) is positive definite. L is the largest
    |eigenvalue| of all H_i. delta is max_i ||c_i - mean(c)|| if all H_i are equal, and infinite otherwise.

    Args:
        hessians: The symmetric H_i, (N, d, d).
        linear: The c_i, (N, d).
        start: x^0, (d,); None: 0.
    """
    hessians, linear = as_array(hessians, "hessians"), as_array(linear, "linear")
    if not (hessians.ndim == 3 and linear.ndim == 2 and hessians.shape == (*linear.shape, linear.shape[-1])):
        shapes = (hessians.shape, linear.shape)
        refuse("hessians, linear", shapes, "must have shapes (N, d, d), (N, d)", "Give one H_i and one c_i per agent")
    if not np.issubdtype(np.result_type(hessians, linear), np.floating):
        hessians, linear = hessians.astype(np.float64), linear.astype(np.float64)
    start = model_of_length(start, linear.shape[1], np.result_type(hessians, linear))
    data = {"hessian": hessians[:, None], "linear": linear[:, None]}
    problem = from_losses(_losses, data, start, name="quadratic", check=False)
    skew = np.abs(hessians - hessians.swapaxes(1, 2)).max((1, 2))
    if not np.allclose(hessians, hessians.swapaxes(1, 2)):
        agent = int(skew.argmax())
        rule = f"must be symmetric, but differs from its transpose by {skew[agent]:g}"
        refuse(f"hessians[{agent}]", hessians[agent].tolist(), rule, "Use (H + H^T)/2, which is the same function")
    mean_hessian, mean_linear = hessians.mean(0), linear.mean(0)
    convex = np.linalg.eigvalsh(mean_hessian).min() > 0
    equal = bool((hessians == hessians[0]).all())
    answer = Answer(
        minimiser=np.linalg.solve(mean_hessian, mean_linear) if convex else None,
        smoothness=float(np.abs(np.linalg.eigvalsh(hessians)).max()),
        heterogeneity=float(np.linalg.norm(linear - mean_linear, axis=1).max()) if equal else np.inf,
    )
    return replace(problem, answer=answer)


@explained
def random_quadratic(
    agents: int,
    dimension: int,
    *,
    smoothness: float = 1.0,
    convexity: float = 0.1,
    heterogeneity: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Return random strongly convex quadratics whose eigenvectors and minimisers differ between agents.

    Args:
        agents: N.
        dimension: d.
        smoothness: L, the largest eigenvalue of the H_i.
        convexity: mu, the smallest eigenvalue of the H_i.
        heterogeneity: The scale of the differences between agents; 0 gives all agents the same f_i.
        seed: The seed of all random numbers.
    """
    count("agents", agents, "Give N", bits=24)
    count("dimension", dimension, "Give d")
    positive("convexity", convexity, "Give mu, the smallest eigenvalue")
    at_least("smoothness", smoothness, convexity, "L, the largest eigenvalue, is at least mu")
    at_least("heterogeneity", heterogeneity, 0, "0 gives all agents the same f_i")
    count("seed", seed, "Give the seed of all random numbers, an integer", least=0)
    hessians_of = f"{agents} Hessians of {dimension} x {dimension} numbers"
    check_room(hessians_of, (agents + 1) * dimension**2, "Give fewer agents or a smaller dimension")
    rng = np.random.default_rng(seed)
    common, own = _spd(rng, dimension, convexity, smoothness), []
    for _ in range(agents):
        own.append(_spd(rng, dimension, convexity, smoothness))
    share = min(heterogeneity, 1.0)
    hessians = (1 - share) * common + share * np.array(own)
    centres = rng.standard_normal(dimension) + heterogeneity * rng.standard_normal((agents, dimension))
    return quadratic(hessians, np.einsum("nij,nj->ni", hessians, centres))


@explained
def opposing_quadratics(start: float = 1.0) -> Problem:
    """Return Claim 2.2's problem f_1 = x^2/2, f_2 = -x^2/2, so that f = 0.

    FedAvg with Q > 1 diverges on it from every start except 0: a round multiplies x by ((1+eta)^Q + (1-eta)^Q)/2 > 1.

    Args:
        start: x^0.
    """
    return quadratic(np.array([[[1.0]], [[-1.0]]]), np.zeros((2, 1)), start=np.array([float(start)]))


def is_quadratic(problem: Problem) -> bool:
    """Return whether a problem has the function of `quadratic`, whatever its name is."""
    return problem.losses is _losses and problem.penalty is None


def _losses(x: Array, sample: Tree) -> Array:
    """Return x^T H x / 2 - c^T x of each sample."""
    return jnp.einsum("bij,i,j->b", sample["hessian"], x, x) / 2 - sample["linear"] @ x


def _spd(rng: np.random.Generator, dimension: int, low: float, high: float) -> np.ndarray:
    """Return a random symmetric positive definite matrix whose extreme eigenvalues are `low` and `high`."""
    basis, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    eigenvalues = rng.uniform(low, high, dimension)
    eigenvalues[0], eigenvalues[-1] = low, high
    hessian = (basis * eigenvalues) @ basis.T
    return (hessian + hessian.T) / 2
