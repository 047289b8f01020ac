"""5GCS: one round by hand, and exact convergence with agents that come and go."""

import numpy as np
import pytest

from fedpd import algorithms, oracles, problems, simulate, sweep

L, MU = 1.0, 0.2
PROBLEM = problems.random_quadratic(5, 4, smoothness=L, convexity=MU, seed=3)


def test_steps_can_be_swept() -> None:
    """The start does not depend on the step, as `sweep` needs it."""
    found = sweep(
        lambda step: algorithms.five_gcs(step=step, tau=1.0, oracle=oracles.gd(0.5, 4), mu=0.1),
        PROBLEM,
        {"step": [0.2, 0.4]},
        rounds=30,
    )
    assert found.runs[0][0].history["stationarity"][0] == found.runs[1][0].history["stationarity"][0]


def test_two_rounds_by_hand() -> None:
    hessians, linear = PROBLEM.data["hessian"][:, 0], PROBLEM.data["linear"][:, 0]
    step, tau, mu, x, u = 0.7, 0.9, 0.1, np.zeros(4), np.zeros((5, 4))
    for _ in range(2):
        v = (x - step * u.mean(0)) / (1 + step * mu)
        y = [
            np.linalg.solve(h + (tau - mu) * np.eye(4), c + own + tau * v)
            for h, c, own in zip(hessians, linear, u, strict=True)
        ]
        new = np.array([h @ w - c - mu * w for h, c, w in zip(hessians, linear, y, strict=True)])
        x, u = v - step * (new - u).mean(0), new
    v = (x - step * u.mean(0)) / (1 + step * mu)
    exact = oracles.gd(step=1 / (L + tau - mu), iterations=300)
    run = simulate(algorithms.five_gcs(step=step, tau=tau, oracle=exact, mu=mu), PROBLEM, rounds=2)
    np.testing.assert_allclose(run.model, v, atol=1e-12)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_it_converges_to_the_minimiser_with_agents_away(participation: float) -> None:
    algorithm = algorithms.five_gcs(step=0.5, tau=1.0, oracle=oracles.gd(0.5, 8))
    run = simulate(algorithm, PROBLEM, rounds=400, participation=participation)
    np.testing.assert_allclose(run.model, np.asarray(PROBLEM.answer.minimiser), atol=1e-8)
