"""Fidelity: every iterate against the paper's pseudo-code in plain NumPy, on a small problem of unequal agents.

That the pseudo-code is itself right is seen in `test_reference`.
"""

from typing import Any

import numpy as np
import pytest

from fedpd import algorithms, data, oracles, problems, simulate
from fedpd.schedules import inverse_sqrt
from tests.differential import methods as paper
from tests.differential.expected import logistic_agents
from tests.differential.primal_dual import fedpd
from tests.trajectories import recorded_coins, recorded_draw, trajectories

T, N, SIZES = 25, 6, (12, 5, 9, 12, 7, 10)
RNG = np.random.default_rng(0)
COINS = RNG.random(T) < 0.5
INDICES = np.stack([RNG.integers(size, size=(T, 3, 2)) for size in SIZES], axis=2)  # (T, Q, N, B): Q = 3 steps, B = 2
FEATURES, LABELS = (
    [rows[:size] for rows, size in zip(stack, SIZES, strict=True)] for stack in data.strongly_noniid(N, 12, 4, seed=7)
)
SMALL = problems.penalized_logistic(FEATURES, LABELS)
AGENTS = logistic_agents(FEATURES, LABELS)
EVERYONE = paper.Given(
    AGENTS,
    start=np.zeros(4),
    present=np.ones((T, N), bool),
    skipped=np.zeros(T, bool),
    rows=lambda r, i, exchange: INDICES[r, :, i],
)
SOMETIMES = EVERYONE._replace(skipped=~COINS)
STEP = inverse_sqrt(0.3, 3)


def numpy_step(r: int, q: int) -> float:
    return 0.3 / np.sqrt(3 * r + q + 1)


GD, PAPER_GD = oracles.gd(step=0.3, iterations=3), paper.gd(lambda r, q: 0.3, 3)
SGD, PAPER_SGD = oracles.sgd(STEP, 3, 2, draw=recorded_draw(INDICES)), paper.sgd(numpy_step, 3)
ORACLES = {
    "gd": (GD, PAPER_GD),
    "sgd": (SGD, PAPER_SGD),
    "vr": (oracles.vr(0.4, 3, 4, 2, draw=recorded_draw(INDICES)), paper.vr(0.4, 3, 4)),
    "vr_all_samples": (oracles.vr(0.4, 3, 4, None), paper.vr(0.4, 3, 4, stochastic=False)),
    "vr_gamma_inf": (oracles.vr(np.inf, 3, 4, 2, draw=recorded_draw(INDICES)), paper.vr(np.inf, 3, 4)),
}


@pytest.mark.parametrize(
    ("oracle", "x0_rule"), [*((oracle, "paper") for oracle in ORACLES), ("gd", "matlab"), ("vr", "matlab")]
)
def test_fedpd_is_the_pseudo_code(oracle: str, x0_rule: Any) -> None:
    ours, theirs = ORACLES[oracle]
    algorithm = algorithms.fedpd(eta=0.5, oracle=ours, p=recorded_coins(COINS), x0_rule=x0_rule)
    x, last = paper.path(SOMETIMES, fedpd(SOMETIMES, eta=0.5, oracle=theirs, x0_rule=x0_rule))
    (found,) = trajectories(algorithm, SMALL, rounds=T)
    np.testing.assert_allclose(found.x, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.agents.x.tree, last.kept["x"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.agents.dual.tree, last.kept["dual"], rtol=0, atol=1e-12)
    assert np.abs(x[-1]).max() > 0.1  # it went somewhere


@pytest.mark.parametrize("indices", [None, INDICES], ids=["gd", "sgd"])
def test_fedavg_is_the_pseudo_code(indices: np.ndarray | None) -> None:
    oracle = oracles.sgd(STEP, 3, None) if indices is None else SGD
    theirs = paper.gd(numpy_step, 3, stochastic=indices is not None)
    x, _ = paper.path(EVERYONE, paper.fedavg(EVERYONE, oracle=theirs))
    (found,) = trajectories(algorithms.fedavg(oracle=oracle), SMALL, rounds=T)
    np.testing.assert_allclose(found.x, x, rtol=0, atol=1e-12)


PROX_ORACLES = {
    "gd": (GD, PAPER_GD),
    "sgd": (SGD, PAPER_SGD),
    "vr": (oracles.vr(0.4, 3, 1, 2, draw=recorded_draw(INDICES)), paper.vr(0.4, 3, 1)),
}


@pytest.mark.parametrize("oracle", PROX_ORACLES)
def test_fedprox_is_the_pseudo_code(oracle: str) -> None:
    ours, theirs = PROX_ORACLES[oracle]
    x, _ = paper.path(EVERYONE, paper.fedprox(EVERYONE, rho=2.0, oracle=theirs))
    (found,) = trajectories(algorithms.fedprox(rho=2.0, oracle=ours), SMALL, rounds=T)
    np.testing.assert_allclose(found.x, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("oracle", ["gd", "vr"])
def test_simulate_is_the_pseudo_code(oracle: str) -> None:
    ours, theirs = ORACLES[oracle]
    x, last = paper.path(SOMETIMES, fedpd(SOMETIMES, eta=0.5, oracle=theirs))
    run = simulate(algorithms.fedpd(eta=0.5, oracle=ours, p=recorded_coins(COINS)), SMALL, rounds=T)
    gap = [sum(np.mean([agent.gradient(point) for agent in AGENTS], axis=0) ** 2) for point in x]
    np.testing.assert_allclose(run.model, x[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.agents.x.tree, last.kept["x"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.agents.dual.tree, last.kept["dual"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.history["stationarity"], gap, rtol=1e-9)
    assert np.array_equal(run.history["communicated"][1:], COINS)
