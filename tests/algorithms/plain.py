"""Quadratics, who is present, and gradient steps in plain NumPy, for the programs that methods are compared with."""

from typing import Any

import numpy as np

from fedpd import Algorithm, oracles, problems, simulate

PROBLEM = problems.random_quadratic(agents=4, dimension=3, smoothness=1.0, convexity=0.2, seed=5)
HESSIANS, LINEARS = (np.asarray(PROBLEM.data[name])[:, 0] for name in ("hessian", "linear"))
SOME = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1]], bool)
EVERYONE = np.ones((5, 4), bool)
STEP, Q = 0.2, 3
GD = oracles.gd(step=STEP, iterations=Q)


def gradient(i: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(HESSIANS[i] @ x - LINEARS[i])


def descend(
    i: int,
    x: np.ndarray,
    linear: Any = 0.0,
    curvature: float = 0.0,
    *,
    own: float = 1.0,
    rho: Any = None,
    steps: int = Q,
) -> np.ndarray:
    """Return the end of gradient steps of size STEP from x on own f_i(y) + <linear, y> + (curvature/2) ||y||^2.

    With rho, the gradient of f_i is that at the point to which a step of length rho uphill leads.
    """
    for _ in range(steps):
        g = gradient(i, x)
        if rho is not None:
            g = gradient(i, x + rho * g / (np.linalg.norm(g) + 1e-7))
        x = x - STEP * (own * g + linear + curvature * x)
    return x


def agents(here: np.ndarray) -> list[int]:
    return [int(i) for i in np.flatnonzero(here)]


def assert_model(algorithm: Algorithm, present: np.ndarray, x: Any, **options: Any) -> None:
    run = simulate(algorithm, PROBLEM, rounds=len(present), participation=present, **options)
    np.testing.assert_allclose(run.model, x, rtol=1e-11, atol=1e-13)
