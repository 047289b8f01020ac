"""FedAvg: a round by hand, its divergence on Claim 2.2's problem, its options."""

import numpy as np
import pytest

from fedpd import algorithms, oracles, problems, simulate
from fedpd.schedules import inverse_sqrt

# Gradients x - 1 and 2x + 3, from x^0 = 0.5.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))


def test_a_round_by_hand() -> None:
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=0.125, iterations=2)), HAND, rounds=1)
    # agent 1: 0.5 + 0.125 * 0.5 = 0.5625,   0.5625 + 0.125 * 0.4375 = 0.6171875
    # agent 2: 0.5 - 0.125 * 4   = 0,        0      - 0.125 * 3      = -0.375
    assert run.model.tolist() == [(0.6171875 - 0.375) / 2]
    assert run.agents.x.tree.ravel().tolist() == [0.12109375] * 2  # both start the next round from there
    assert run.history["bytes_up"].tolist() == run.history["bytes_down"].tolist() == [0, 16]  # one model each way


def test_steps_follow_their_schedule_in_both_indices() -> None:
    oracle = oracles.gd(step=inverse_sqrt(0.125, 2), iterations=2)
    run = simulate(algorithms.fedavg(oracle=oracle), HAND, rounds=2)
    x = np.array([0.5])
    for r in range(2):
        ends = np.array([x, x])
        for q in range(2):
            gradients = np.array([ends[0] - 1, 2 * ends[1] + 3])
            ends = ends - 0.125 / np.sqrt(2 * r + q + 1) * gradients
        x = ends.mean(0)
    np.testing.assert_allclose(run.model, x, rtol=1e-13)


@pytest.mark.parametrize(("Q", "eta"), [(1, 0.5), (2, 0.1), (3, 0.5), (8, 0.05)])
def test_it_grows_on_opposing_quadratics(Q: int, eta: float) -> None:
    """Claim 2.2: f = 0, and still every round multiplies x by ((1+eta)^Q + (1-eta)^Q)/2, which is over 1 for Q > 1."""
    run = simulate(algorithms.fedavg(oracle=oracles.gd(eta, Q)), problems.opposing_quadratics(start=-1.5), rounds=40)
    factor = ((1 + eta) ** Q + (1 - eta) ** Q) / 2
    np.testing.assert_allclose(run.model, [-1.5 * factor**40], rtol=1e-12)


def test_it_does_not_reach_a_stationary_point_on_heterogeneous_data() -> None:
    problem = problems.random_quadratic(agents=5, dimension=3, seed=1)
    steps = oracles.gd(step=0.3, iterations=8)
    fedavg = simulate(algorithms.fedavg(oracle=steps), problem, rounds=400, metrics_every=400).history
    fedpd = simulate(algorithms.fedpd(eta=0.5, oracle=steps), problem, rounds=400, metrics_every=400).history
    assert fedavg["stationarity"][-1] > 1e-4
    assert fedpd["stationarity"][-1] < 1e-20
