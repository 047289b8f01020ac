"""FedAvgM: rounds by hand, FedAvg as its momentum 0, the server's optimiser with momentum."""

from typing import Any

import numpy as np
import optax
import pytest

from fedpd import algorithms, oracles, problems, simulate, transforms

# Gradients x - 1 and 2x + 3, from x^0 = 0.5.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))
PROBLEM = problems.random_quadratic(agents=5, dimension=3, seed=2)
SGD = oracles.sgd(step=0.1, iterations=3, batch=None)


def test_two_rounds_by_hand() -> None:
    algorithm = algorithms.fedavgm(oracle=oracles.gd(step=0.125, iterations=1), step=0.5, momentum=0.75)
    # changes -0.125 (x - 1) and -0.125 (2x + 3), in the mean -0.125 (1.5 x + 1)
    first = -0.125 * 1.75
    x = 0.5 + 0.5 * first
    assert simulate(algorithm, HAND, rounds=1).model.tolist() == [x]
    second = 0.75 * first - 0.125 * (1.5 * x + 1)
    assert simulate(algorithm, HAND, rounds=2).model[0] == pytest.approx(x + 0.5 * second, rel=1e-15)


@pytest.mark.parametrize("options", [{}, {"cohort": 2}], ids=["all", "cohort"])
def test_without_momentum_it_is_fedavg(options: dict[str, Any]) -> None:
    with_none = simulate(algorithms.fedavgm(oracle=SGD, momentum=0.0), PROBLEM, rounds=9, **options)
    fedavg = simulate(algorithms.fedavg(oracle=SGD), PROBLEM, rounds=9, **options)
    np.testing.assert_allclose(with_none.history["loss"], fedavg.history["loss"], rtol=1e-12)
    assert with_none.history["bytes_up"].tolist() == fedavg.history["bytes_up"].tolist()


@pytest.mark.parametrize("options", [{}, {"cohort": 2}], ids=["all", "cohort"])
def test_it_is_fedavg_with_sgd_with_momentum_at_the_server(options: dict[str, Any]) -> None:
    step = transforms.server_optimizer(optax.sgd(0.7, momentum=0.6))
    stepped = transforms.wrap(algorithms.fedavg(oracle=SGD), mean=step)
    plain = algorithms.fedavgm(oracle=SGD, step=0.7, momentum=0.6)
    runs = [simulate(one, PROBLEM, rounds=9, **options) for one in (stepped, plain)]
    np.testing.assert_allclose(runs[1].history["loss"], runs[0].history["loss"], rtol=1e-12)
