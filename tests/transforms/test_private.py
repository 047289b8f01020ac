"""Client-level differential privacy: clipping, noise, epsilon."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, algorithms, oracles, problems, simulate, sweep, transforms
from fedpd.experiments.calls import build_algorithm

AGENTS, ETA, STEP = 4, 0.3, 0.1
CURVATURE, LINEAR = np.array([0.5, 1.0, 1.5, 2.0]), np.arange(24.0).reshape(AGENTS, 6)
PROBLEM = problems.quadratic(CURVATURE[:, None, None] * np.eye(6), LINEAR)
ORACLE = oracles.gd(step=STEP, iterations=2)
FEDPD = algorithms.fedpd(eta=ETA, oracle=ORACLE)
BOTH: Any = [transforms.gaussian(0.1, 1.0), transforms.top_k(0.1)]
FEDAVG = algorithms.fedavg(oracle=ORACLE)


def private(method: Algorithm = FEDPD, *arguments: Any, **named: Any) -> Algorithm:
    return transforms.wrap(method, up=transforms.gaussian(*arguments, **named))


def scaled(eta: float) -> Algorithm:
    return private(algorithms.fedpd(eta=eta, oracle=ORACLE), 0.1, 1.0)


def fedpd_by_hand(clip: float, rounds: int) -> np.ndarray:
    """Return x_0 of FedPD where each agent clips x_i - x_0 before it updates its dual."""
    x0, mean_dual = np.zeros(6), np.zeros(6)
    x, dual = np.zeros((AGENTS, 6)), np.zeros((AGENTS, 6))
    for _ in range(rounds):
        for _ in range(2):
            x = x - STEP * (CURVATURE[:, None] * x - LINEAR + dual + (x - x0) / ETA)
        change = x - x0
        change *= np.minimum(1, clip / np.linalg.norm(change, axis=1, keepdims=True))
        x, dual = x0 + change, dual + change / ETA
        mean_dual = mean_dual + change.mean(axis=0) / ETA
        x0 = x.mean(axis=0) + ETA * mean_dual
    return x0


def test_fedpd_clips_before_it_updates_the_dual() -> None:
    run = simulate(private(FEDPD, 2.0, 1e-9), PROBLEM, rounds=5)  # agent 0 is clipped in no round, agent 3 in all
    np.testing.assert_allclose(run.model, fedpd_by_hand(2.0, 5), rtol=1e-7)
    sums = np.mean(run.agents.inner.dual.tree, axis=0)
    np.testing.assert_allclose(run.server.inner.dual.tree, sums, rtol=1e-6, atol=1e-7)  # the server's and the agents'


def test_no_agent_moves_the_mean_by_more_than_its_share() -> None:
    far = problems.quadratic(np.tile(np.eye(6), (2, 1, 1)), np.array([[1e9] * 6, [0.0] * 6]))
    run = simulate(private(FEDAVG, 0.5, 1e-9), far, rounds=1)
    np.testing.assert_allclose(np.linalg.norm(run.model), 0.25, rtol=1e-7)


def test_noise_of_the_sum_has_the_standard_deviation_noise_multiplier_times_clip() -> None:
    agents, size = 3, 60
    flat = problems.quadratic(np.tile(1e-9 * np.eye(size), (agents, 1, 1)), np.zeros((agents, size)))
    models = np.stack([run.model for run in simulate(private(FEDAVG, 0.5, 4.0), flat, rounds=1, seed=range(40)).runs])
    sums = agents * models
    assert abs(sums.std() / (0.5 * 4.0) - 1) < 0.05  # 2400 draws: three standard deviations are 4.3 %
    assert abs(sums.mean()) < 3 * 2.0 / 2400**0.5
    assert len(np.unique(models)) == models.size


def test_bound_follows_the_quantile_of_the_norms() -> None:
    flat = problems.quadratic(np.tile(1e-9 * np.eye(2), (AGENTS, 1, 1)), np.zeros((AGENTS, 2)))
    rule = {"quantile": 0.5, "rate": 0.2, "count_noise": 1e-6}
    run = simulate(private(FEDAVG, 1.0, 1e-9, **rule), flat, rounds=3)
    np.testing.assert_allclose(run.server.bounds, [np.exp(-0.2 * 0.5 * 3)], rtol=1e-4)  # all norms are below C


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    # sigma = 1, delta = 1e-5: 4.3766 by the analytic Gaussian mechanism of Balle and Wang
    assert transforms.Accountant(1.0, 1e-5, 100).epsilon(1) == pytest.approx(4.37718, abs=1e-3)
    assert transforms.Accountant(2.0, 1e-5, 100).epsilon(4) == transforms.Accountant(1.0, 1e-5, 100).epsilon(1)


def test_epsilon_with_a_cohort_is_the_bound_for_sampling_without_replacement() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    counted = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(1.0))
    counted.compose(event, 50)
    found = transforms.Accountant(2.0, 1e-5, 1000, 10).epsilon(50)
    assert found == pytest.approx(counted.get_epsilon(1e-5))
    assert found < transforms.Accountant(2.0, 1e-5, 1000).epsilon(50) / 2


def test_history_counts_epsilon_of_every_communication() -> None:
    skips = algorithms.fedpd(eta=ETA, oracle=ORACLE, p=0.5)
    history = simulate(private(skips, 1.0, 3.0), PROBLEM, rounds=6).history
    count = transforms.Accountant(3.0 / 2**0.5, 1e-5, AGENTS)  # two vectors: x_i and the change of the dual
    assert 0 < history["communications"][-1] < 6
    assert history["epsilon"].tolist() == [count.epsilon(number) for number in history["communications"]]


@pytest.mark.slow
def test_epsilon_finds_the_noise_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    method = build_algorithm(
        {
            "name": "fedavg",
            "oracle": {"name": "gd", "step": STEP, "iterations": 2},
            "up": {"name": "gaussian", "clip": 1.0, "epsilon": 4, "quantile": 0.5, "count_noise": 9.0},
        },
        rounds=4,
    )
    whole = simulate(method, PROBLEM, rounds=4, cohort=2)
    assert 3.99 < whole.history["epsilon"][-1] <= 4
    end = lambda r, model, row: r == 2  # noqa: E731
    simulate(method, PROBLEM, rounds=4, cohort=2, checkpoints=tmp_path, callback=end)
    again = simulate(method, PROBLEM, rounds=4, cohort=2, checkpoints=tmp_path)
    for name, column in whole.history.items():
        np.testing.assert_array_equal(again.history[name], column)
    with pytest.raises(FedpdError, match="noise_multiplier"):  # other rounds need other noise
        simulate(method, PROBLEM, rounds=5, cohort=2, checkpoints=tmp_path)


def test_agents_without_state_gain_from_a_cohort_and_agents_with_duals_do_not() -> None:
    many = problems.quadratic(np.tile(np.eye(2), (200, 1, 1)), np.zeros((200, 2)))
    spent = [
        simulate(private(method, 1.0, 4.0), many, rounds=1, cohort=2).history["epsilon"][-1]
        for method in (FEDAVG, FEDPD)
    ]
    assert spent == [transforms.Accountant(4.0, 1e-5, 200, cohort).epsilon(1) for cohort in (2, None)]
    assert spent[0] < spent[1]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: transforms.gaussian(0.1), "noise_multiplier = None: must be given, or epsilon, and not both"),
        (lambda: transforms.gaussian(0.1, 1.0, epsilon=4), "and not both"),
        (lambda: transforms.gaussian(-1.0, 1.0), "clip = -1.0: must be positive"),
        (lambda: transforms.gaussian(0.1, 1.0, delta=2), "delta = 2: must be below 1"),
        (lambda: transforms.gaussian(0.1, 1.0, quantile=1.5), "quantile = 1.5"),
        (lambda: private(algorithms.fedpd(eta="auto", oracle=oracles.lbfgs()), 0.1, 1.0), "cannot be clipped"),
        (lambda: transforms.wrap(FEDPD, up=BOTH), "the only"),
        (lambda: transforms.wrap(FEDPD, up=transforms.gaussian(0.1, 1.0), mean=transforms.median()), "the only"),
        (lambda: transforms.wrap(private(FEDPD, 0.1, 1.0), mean=transforms.median()), "Wrap the method itself"),
        (lambda: simulate(private(FEDPD, 0.1, 1.0, agents=3), PROBLEM, rounds=1), "agents = 3: must be 4"),
        (lambda: simulate(private(FEDPD, 0.1, 1.0), PROBLEM, rounds=1, participation=[0.5] * 4), "Give cohort=K"),
        (
            lambda: simulate(private(FEDPD, 0.1, epsilon=1e300), PROBLEM, rounds=1),
            "is so large that it protects nobody",
        ),
        (
            lambda: simulate(private(FEDPD, 0.1, 1.0, quantile=0.5, count_noise=0.5), PROBLEM, rounds=1),
            "must be above noise_multiplier/2 = 0.5",
        ),
        (lambda: sweep(scaled, PROBLEM, {"eta": [0.1, 0.2]}, rounds=1), "Call simulate"),
    ],
)
def test_refusals_say_the_value_the_rule_and_the_remedy(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence.replace("(", r"\(")):
        call()


def test_spec_has_all_settings() -> None:
    made = private(FEDPD, 0.1, epsilon=4)
    assert made.description.endswith("up=gaussian(clip=0.1, epsilon=4))")
    assert made.spec.plain()["up"]["delta"] == 1e-5
