"""FedProx: a round by hand, FedAvg as its rho = 0, refusals."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate

# Gradients x - 1 and 2x + 3, from x^0 = 0.5.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))


def test_rounds_by_hand() -> None:
    algorithm = algorithms.fedprox(rho=2.0, oracle=oracles.gd(step=0.125, iterations=2))
    # agent 1: 0.5 + 0.125 * 0.5 = 0.5625,   0.5625 - 0.125 (-0.4375 + 2 * 0.0625) = 0.6015625
    # agent 2: 0.5 - 0.125 * 4   = 0,        0      - 0.125 (3 + 2 * -0.5)         = -0.25
    assert simulate(algorithm, HAND, rounds=1).model.tolist() == [0.17578125]
    # agent 1: 0.17578125 + 0.10302734375 = 0.27880859375,   + 0.125 * 0.51513671875 = 0.34320068359375
    # agent 2: 0.17578125 - 0.4189453125  = -0.2431640625,   - 0.125 * 1.67578125    = -0.45263671875
    assert simulate(algorithm, HAND, rounds=2).model.tolist() == [-0.054718017578125]


def test_rho_zero_is_fedavg() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=3, samples=10, dimension=3, seed=1))
    rows = np.random.default_rng(0).integers(10, size=(12, 3, 2))
    oracle = oracles.sgd(0.2, 3, 2, draw=lambda key, r, agent, size, shape: (jnp.asarray(rows)[r] + agent) % size)
    fedprox = simulate(algorithms.fedprox(rho=0.0, oracle=oracle), problem, rounds=12, seed=4)
    fedavg = simulate(algorithms.fedavg(oracle=oracle), problem, rounds=12, seed=4)
    assert np.array_equal(fedprox.model, fedavg.model)
    assert all(np.array_equal(fedprox.history[name], fedavg.history[name]) for name in fedavg.history)


def test_a_large_rho_holds_the_agents_at_the_servers_model() -> None:
    """With rho -> infinity a round is one gradient step of length 1/rho on f: here to first order in 1/rho."""
    rho = 1e6
    run = simulate(algorithms.fedprox(rho=rho, oracle=oracles.gd(step=1 / rho, iterations=5)), HAND, rounds=1)
    assert (run.model[0] - 0.5) * rho == pytest.approx(-(1.5 * 0.5 + 1), rel=1e-5)  # -grad f = -((x-1) + (2x+3))/2


@pytest.mark.parametrize(
    ("rho", "words"),
    [
        (-1.0, ["rho = -1.0", "at least 0", "0 is FedAvg"]),
        (float("nan"), ["rho = nan", "not NaN", "0 is FedAvg"]),
        (float("inf"), ["rho = inf", "finite", "0 is FedAvg"]),
        ("2", ["rho = '2'", "number, not str", "0 is FedAvg"]),
    ],
)
def test_wrong_settings_are_refused(rho: float, words: list[str]) -> None:
    with pytest.raises(FedpdError, match=".*".join(map(re.escape, words))):
        algorithms.fedprox(rho=rho, oracle=oracles.gd(0.1, 1))
