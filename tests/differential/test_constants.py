"""Constants of the theory against eigenvalues and gradients of NumPy, and epsilon against the formula."""

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedpd import problems, theory
from fedpd.transforms import Accountant

from .seeds import same, seeds

N, D = 4, 3


def drawn_quadratic(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return symmetric matrices, positive definite in their mean but not one by one, and linear terms."""
    roots = rng.normal(size=(N, D, D))
    away = rng.normal(size=(N, D, D))
    return roots @ roots.transpose(0, 2, 1) + 0.3 * (away + away.transpose(0, 2, 1)), rng.normal(size=(N, D))


def test_the_constants_of_quadratics_are_eigenvalues() -> None:
    for seed in seeds(8):
        rng = np.random.default_rng(seed)
        H, c = drawn_quadratic(rng)
        problem, mean = problems.quadratic(H, c), H.mean(axis=0)
        eigenvalues, of_mean = np.abs(np.linalg.eigvalsh(H)), np.linalg.eigvalsh(mean)
        exact = theory.exact_smoothness(problem)
        assert exact is not None
        same(seed, "L", theory.smoothness(problem), eigenvalues.max())
        same(seed, "L of each agent", exact.per_agent, eigenvalues.max(axis=1))
        same(seed, "L of f", exact.average, np.abs(of_mean).max())
        found = theory.hessians(problem)
        same(seed, "the largest eigenvalue of H", found.largest, np.abs(of_mean).max())
        same(seed, "the least eigenvalue of H", found.least, of_mean.min())
        same(seed, "max ||H_i - H||", found.dissimilarity, np.abs(np.linalg.eigvalsh(H - mean)).max())
        if of_mean.min() > 0:
            same(seed, "the condition number", found.condition, np.abs(of_mean).max() / of_mean.min())
            same(seed, "the minimiser", problem.answer.minimiser, np.linalg.solve(mean, c.mean(axis=0)))


def test_a_profile_is_made_of_gradients() -> None:
    for seed in seeds(6):
        rng = np.random.default_rng(seed)
        H, c = drawn_quadratic(rng)
        points = rng.normal(size=(3, D))
        found = theory.profile(problems.quadratic(H, c), list(points))
        for p, x in enumerate(points):
            gradients = H @ x - c
            pairs = gradients[:, None] - gradients[None]
            mean = gradients.mean(axis=0)
            same(seed, "pairwise", found.pairwise[p], np.linalg.norm(pairs, axis=-1).max())
            same(seed, "centred", found.centred[p], np.linalg.norm(gradients - mean, axis=1).max())
            same(seed, "largest", found.largest[p], np.linalg.norm(gradients, axis=1).max())
            same(seed, "squares", found.squares[p], (gradients**2).sum())
            same(seed, "stationarity", found.stationarity[p], mean @ mean)
            value = np.mean([x @ A @ x / 2 - b @ x for A, b in zip(H, c, strict=True)])
            same(seed, "f", theory.objective(problems.quadratic(H, c), x), value)


def test_smoothness_of_logistic_regression_with_weights() -> None:
    """max_i w_i |D_i| (||A_i||^2/(4 n_i) + 2 alpha beta)."""
    for seed in seeds(6):
        rng = np.random.default_rng(seed)
        A = [rng.normal(size=(n, D)) for n in rng.integers(1, 9, N)]
        y = [np.where(rng.random(len(a)) < 0.5, 1.0, -1.0) for a in A]
        weights: Any = [None, "samples", rng.uniform(0.1, 2, N)][rng.integers(3)]
        sizes = np.array([len(a) for a in A])
        scale = np.ones(N) if weights is None else sizes / sizes.mean() if isinstance(weights, str) else weights * sizes
        problem = problems.penalized_logistic(A, y, 1.3, 0.2, weights=weights)
        own = [np.linalg.norm(a, 2) ** 2 / (4 * len(a)) + 2 * 1.3 * 0.2 for a in A]
        found = theory.exact_smoothness(problem)
        assert found is not None
        same(seed, "L of each agent", found.per_agent, scale * own)
        same(seed, "L", theory.smoothness(problem), found.value)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism, from delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu)."""

    def excess(epsilon: float) -> float:
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(np.exp(first) * -np.expm1(second - first)) - delta

    return float(brentq(excess, 0, 10 * mu * (mu + math.sqrt(-2 * math.log(delta))), xtol=1e-12, rtol=1e-13))


def test_epsilon_without_sampling_is_that_of_the_gaussian_mechanism() -> None:
    for seed in seeds(12):
        rng = np.random.default_rng(seed)
        z, delta, rounds = float(rng.uniform(0.5, 5)), 10.0 ** rng.uniform(-8, -3), int(rng.integers(1, 300))
        found = Accountant(noise_multiplier=z, delta=delta, agents=10).epsilon(rounds)
        same(seed, f"epsilon of {rounds} rounds", found, gaussian_epsilon(rounds**0.5 / z, delta), rtol=1e-6)
