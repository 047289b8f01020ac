"""SCALLION and SCAFCOM: a communication by hand, their reduction to SCAFFOLD, compression and momentum."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, problems, simulate, transforms

PROBLEM = problems.random_quadratic(agents=4, dimension=10, seed=3)
STEPS: dict[str, Any] = {"step": 0.1, "iterations": 3}


@pytest.mark.parametrize("options", [{}, {"cohort": 2}])
def test_without_compression_they_are_scaffold_with_half_the_bytes(options: dict[str, Any]) -> None:
    methods = algorithms.scaffold(**STEPS), algorithms.scallion(**STEPS), algorithms.scafcom(**STEPS)
    scaffold, *others = (simulate(method, PROBLEM, rounds=20, **options) for method in methods)
    for run in others:
        np.testing.assert_allclose(run.model, scaffold.model, rtol=1e-10, atol=1e-12)
        assert 2 * run.history["bytes_up"][-1] == scaffold.history["bytes_up"][-1]


def test_a_communication_by_hand() -> None:
    largest = transforms.wrap(algorithms.scafcom(step=0.2, iterations=1, beta=0.5), up=transforms.top_k(0.1))
    run = simulate(largest, PROBLEM, rounds=1)
    start = np.asarray(PROBLEM.start)
    gradients = np.asarray(simulate(algorithms.scafcom(step=1.0, iterations=1), PROBLEM, rounds=1).agents.own.tree)
    v = 0.5 * gradients  # of v_i = (1 - beta) 0 + beta g_i; c_i is g_i after a round without compression
    sent = np.where(np.abs(v) == np.abs(v).max(axis=1, keepdims=True), v, 0)
    np.testing.assert_allclose(run.agents.inner.own.tree, sent, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(run.model, start - 0.2 * sent.mean(axis=0), rtol=1e-10, atol=1e-14)


def test_compressed_they_reach_the_solution() -> None:
    some = transforms.random_k(0.2, unbiased=True)
    scallion = transforms.wrap(algorithms.scallion(**STEPS, alpha=0.2), up=some)
    scafcom = transforms.wrap(algorithms.scafcom(**STEPS, beta=0.7), up=[transforms.top_k(0.2), transforms.sign()])
    for method in (scallion, scafcom):
        run = simulate(method, PROBLEM, rounds=1500, metrics_every=1500)
        assert run.history["stationarity"][-1] < 1e-20


def test_wrong_numbers_and_transforms_are_refused() -> None:
    with pytest.raises(FedpdError, match=r"alpha = 2\.0: must be at most 1\. Give 1/\(1 \+ omega\)"):
        algorithms.scallion(**STEPS, alpha=2.0)
    with pytest.raises(FedpdError, match=r"beta = 0\.0: must be positive and finite\. Give the weight of the newest"):
        algorithms.scafcom(**STEPS, beta=0.0)
    with pytest.raises(FedpdError, match=r"up = .+: scallion needs transforms that are unbiased"):
        transforms.wrap(algorithms.scallion(**STEPS), up=transforms.top_k(0.1))
    with pytest.raises(FedpdError, match=r"up = .+: scafcom with up sends later what was not sent"):
        transforms.wrap(algorithms.scafcom(**STEPS), up=transforms.quantize(4, unbiased=True))
    with pytest.raises(FedpdError, match=r"down = .+: scafcom with down sends later what was not sent"):
        transforms.wrap(algorithms.scafcom(**STEPS), down=transforms.quantize(4, unbiased=True))
