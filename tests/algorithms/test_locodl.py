"""LoCoDL: a communication by hand, its invariant, its solution with and without compression."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, problems, simulate, transforms

PROBLEM = problems.random_quadratic(agents=4, dimension=10, seed=3)
SOME = transforms.random_k(0.2, unbiased=True)  # omega = 4


def test_a_communication_by_hand() -> None:
    run = simulate(algorithms.locodl(step=0.5, p=0.0, omega=1.0, rho=0.4, strength=0.1), PROBLEM, rounds=1)
    start = np.asarray(PROBLEM.start)
    gradients = np.asarray(simulate(algorithms.scafcom(step=1.0, iterations=1), PROBLEM, rounds=1).agents.own.tree)
    x = start - 0.5 * (gradients - 0.1 * start)
    y = start - 0.5 * 0.1 * start
    d = (x - y).mean(axis=0) / 2
    k = 0.4 / (0.5 * 3)
    np.testing.assert_allclose(run.model, y + 0.4 * d, rtol=1e-10)
    np.testing.assert_allclose(run.agents.x.tree, 0.6 * x + 0.4 * (y + d), rtol=1e-10)
    np.testing.assert_allclose(run.agents.u.tree, k * (d - (x - y)), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(run.agents.v.tree[0], k * d, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("strength", [0.0, 0.05])
def test_it_reaches_the_solution_with_compressed_messages(strength: float) -> None:
    plain = algorithms.locodl(step=0.5, p=0.5, omega=4.0, rho=0.5, strength=strength)
    run = simulate(transforms.wrap(plain, up=SOME), PROBLEM, rounds=3000, metrics_every=3000)
    assert run.history["stationarity"][-1] < 1e-20
    sent = run.history["bytes_up"][-1] / run.history["communications"][-1] / 4
    assert sent == 2 * 8 + 8  # 2 of 10 numbers, and the key
    agents = run.agents.inner
    np.testing.assert_allclose(np.mean(agents.u.tree, axis=0) + agents.v.tree[0], 0, atol=1e-12)


def test_wrong_numbers_and_transforms_are_refused() -> None:
    usual: dict[str, Any] = {"step": 0.1, "p": 0.5}
    for options, sentence in (({"omega": -1.0}, "omega = -1"), ({"rho": 2.0}, "rho = 2"), ({"p": 1.0}, "p = 1")):
        with pytest.raises(FedpdError, match=sentence):
            algorithms.locodl(**usual | options)
    with pytest.raises(FedpdError, match="locodl needs transforms that are unbiased"):
        transforms.wrap(algorithms.locodl(step=0.1, p=0.5), up=[SOME, transforms.quantize(4)])
