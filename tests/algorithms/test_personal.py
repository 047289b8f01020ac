"""Ditto and pFedMe: rounds by hand, the settings with which they are other methods, and absent agents."""

import numpy as np
import pytest

from fedpd import Algorithm, algorithms, data, oracles, problems, simulate

# Gradients x - 1 and 2x + 3, from x^0 = 0.5.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))


def test_two_rounds_of_ditto_by_hand() -> None:
    algorithm = algorithms.ditto(rho=2.0, oracle=oracles.gd(0.125, 2), own=oracles.gd(0.25, 1))
    run = simulate(algorithm, HAND, rounds=1)
    # x_1: 0.5 + 0.125 * 0.5 = 0.5625, + 0.125 * 0.4375 = 0.6171875;  x_2: 0.5 - 0.125 * 4 = 0, - 0.125 * 3 = -0.375
    assert run.model.tolist() == [0.12109375]
    # v_1: 0.5 - 0.25 (-0.5 + 2 * 0) = 0.625;  v_2: 0.5 - 0.25 (4 + 2 * 0) = -0.5
    assert run.agents.personal.tree.tolist() == [[0.625], [-0.5]]
    # v_1: 0.625 - 0.25 (-0.375 + 2 * 0.50390625) = 0.466796875
    # v_2: -0.5 - 0.25 (2 - 2 * 0.62109375) = -0.689453125
    run = simulate(algorithm, HAND, rounds=2)
    assert run.agents.personal.tree.tolist() == [[0.466796875], [-0.689453125]]
    assert run.history["local_updates"].tolist() == [0, 3, 6]  # two steps on x_i and one on v_i


def test_a_round_of_pfedme_by_hand() -> None:
    algorithm = algorithms.pfedme(rho=2.0, step=0.25, iterations=2, oracle=oracles.gd(0.25, 1), server_step=0.5)
    run = simulate(algorithm, HAND, rounds=1)
    # agent 1: theta 0.625, w 0.5625; theta 0.625 + 0.25 (0.375 - 2 * 0.0625) = 0.6875, w 0.625
    # agent 2: theta -0.5, w 0; theta -0.5 - 0.25 (2 - 2 * 0.5) = -0.75, w -0.375
    assert run.agents.personal.tree.tolist() == [[0.6875], [-0.75]]
    assert run.model.tolist() == [0.3125]  # 0.5 + 0.5 (0.125 - 0.5)
    assert run.history["local_updates"].tolist() == [0, 2]


def test_the_shared_model_of_ditto_is_fedavg_s() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=3, samples=10, dimension=3, seed=1))
    oracle = oracles.sgd(0.2, 3, 2)
    ditto = simulate(algorithms.ditto(rho=0.5, oracle=oracle), problem, rounds=5, seed=4)
    fedavg = simulate(algorithms.fedavg(oracle=oracle), problem, rounds=5, seed=4)
    assert np.array_equal(ditto.model, fedavg.model)


def test_ditto_with_rho_zero_learns_alone() -> None:
    run = simulate(algorithms.ditto(rho=0.0, oracle=oracles.gd(0.25, 8)), HAND, rounds=20)
    np.testing.assert_allclose(run.agents.personal.tree, [[1.0], [-1.5]], atol=1e-9)


def test_pfedme_minimises_the_mean_of_the_moreau_envelopes() -> None:
    """For f_i = h (x - a)^2 / 2 the envelope is h rho/(h + rho) (x - a)^2 / 2: its mean is least at a weighted mean."""
    rho = 2.0
    algorithm = algorithms.pfedme(rho=rho, step=0.2, iterations=1, oracle=oracles.gd(0.2, 60))
    run = simulate(algorithm, HAND, rounds=200)
    weights = np.array([1 * rho / (1 + rho), 2 * rho / (2 + rho)])
    assert run.model[0] == pytest.approx(weights @ [1.0, -1.5] / weights.sum(), rel=1e-9)
    assert run.history["stationarity"][-1] > 1e-2  # it is no stationary point of f


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.ditto(rho=1.0, oracle=oracles.gd(0.2, 2)),
        algorithms.pfedme(rho=1.0, step=0.2, iterations=1, oracle=oracles.gd(0.2, 2)),
    ],
    ids=["ditto", "pfedme"],
)
def test_absent_agents_keep_their_personal_models(algorithm: Algorithm) -> None:
    present = np.array([[1, 1], [0, 1], [0, 1]])
    run = simulate(algorithm, HAND, rounds=3, participation=present)
    first = simulate(algorithm, HAND, rounds=1)
    found = run.personal(HAND).models
    np.testing.assert_array_equal(found[0], first.agents.personal.tree[0])
    assert found[1] != first.agents.personal.tree[1]
