"""Methods in which agents only evaluate f_i: one step by hand, line searches that cost communications, memory."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import Algorithm, Problem, algorithms, oracles, problems, simulate

PROBLEM = problems.random_quadratic(4, 5, smoothness=1.0, convexity=0.1, seed=1)
HESSIAN, LINEAR = PROBLEM.data["hessian"][:, 0].mean(0), PROBLEM.data["linear"][:, 0].mean(0)


def value(x: np.ndarray) -> float:
    return float(x @ HESSIAN @ x / 2 - LINEAR @ x)


def gradient(x: np.ndarray) -> np.ndarray:
    return HESSIAN @ x - LINEAR


def models(algorithm: Algorithm, rounds: int, problem: Problem = PROBLEM) -> list[np.ndarray]:
    """The model after each round."""
    found: list[np.ndarray] = []
    simulate(algorithm, problem, rounds=rounds, callback=lambda r, model, row: found.append(np.asarray(model)))
    return found[1:]  # without the start


def communications(algorithm: Algorithm, problem: Problem, target: float = 1e-10, rounds: int = 200) -> int:
    history = simulate(algorithm, problem, rounds=rounds).history
    return int(np.flatnonzero(history["stationarity"] <= target * history["stationarity"][0])[0])


def test_gradient_descent_is_fedavg_with_one_step() -> None:
    fedavg = algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=1))
    np.testing.assert_allclose(models(algorithms.gradient_descent(step=0.5), 5), models(fedavg, 5), atol=1e-14)


def test_nesterov_by_hand_and_restarted() -> None:
    x, y, t, expected = np.zeros(5), np.zeros(5), 1.0, []
    for _ in range(6):
        new = y - gradient(y)
        grown = (1 + np.sqrt(1 + 4 * t * t)) / 2
        x, y, t = new, new + (t - 1) / grown * (new - x), grown
        expected.append(y)
    np.testing.assert_allclose(models(algorithms.nesterov(step=1.0, restart=False), 6), expected, atol=1e-13)
    hard = problems.quadratic(np.diag(np.logspace(-3, 0, 20))[None], np.ones((1, 20)))
    assert communications(algorithms.nesterov(step=1.0), hard, rounds=600) < 600
    kept = simulate(algorithms.nesterov(step=1.0, restart=False), hard, rounds=600).history["stationarity"]
    assert kept[-1] > 1e-8 * kept[0]  # the momentum carries it to and fro


@pytest.mark.parametrize("rule", ["long", "short"])
def test_barzilai_borwein_by_hand(rule: Any) -> None:
    x, g = np.zeros(5), gradient(np.zeros(5))
    step, expected = 0.1 / np.linalg.norm(g), []
    for _ in range(6):
        new = x - step * g
        s, y = new - x, gradient(new) - g
        step = s @ s / (s @ y) if rule == "long" else s @ y / (y @ y)
        x, g = new, gradient(new)
        expected.append(x)
    np.testing.assert_allclose(models(algorithms.barzilai_borwein(rule=rule, first=0.1), 6), expected, atol=1e-11)


def test_lbfgs_by_hand() -> None:
    """The matrix from its definition, with as many pairs as the method keeps."""
    x, g, expected = np.zeros(5), gradient(np.zeros(5)), []
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    inverse = np.eye(5) * 0.1 / np.linalg.norm(g)
    for _ in range(7):
        new = x - inverse @ g
        assert value(new) < value(x)
        expected.append(new)
        pairs = [*pairs, (new - x, gradient(new) - g)][-3:]
        x, g = new, gradient(new)
        s, y = pairs[-1]
        inverse = np.eye(5) * (s @ y) / (y @ y)
        for s, y in pairs:
            turn = np.eye(5) - np.outer(s, y) / (s @ y)
            inverse = turn @ inverse @ turn.T + np.outer(s, s) / (s @ y)
    np.testing.assert_allclose(models(algorithms.lbfgs(memory=3, first=0.1), 7), expected, atol=1e-10)


@pytest.mark.parametrize("make", [algorithms.lbfgs, algorithms.barzilai_borwein])
def test_a_refused_step_costs_a_communication_and_is_shortened(make: Any) -> None:
    """f(x) = x^2/2 from 1: a first step of length 10 leads to -9, where f is 81 times as large."""
    problem = problems.quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)), start=np.ones(1))
    tried = [float(model[0]) for model in models(make(first=10.0), 2, problem)]
    assert tried[0] == pytest.approx(-9)
    assert tried[1] == pytest.approx(0, abs=1e-12)  # the minimum of the parabola, a tenth of the way


@pytest.mark.parametrize("make", [algorithms.lbfgs, algorithms.barzilai_borwein, algorithms.newton_cg])
def test_no_tuning_and_no_convexity_are_needed(make: Any) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((20, 6)) + i for i in range(3)]
    problem = problems.from_losses(
        lambda x, a: 1 - jnp.tanh(a @ x), rows, np.full(6, 0.1), penalty=lambda x: 0.05 * (x @ x)
    )
    assert communications(make(), problem) < 60


def test_a_problem_in_other_units_costs_the_same() -> None:
    """Scaling f changes nothing: steps follow from lengths and pairs, not from L."""
    large = problems.quadratic(1e6 * PROBLEM.data["hessian"][:, 0], 1e6 * PROBLEM.data["linear"][:, 0])
    assert communications(algorithms.lbfgs(), large) == communications(algorithms.lbfgs(), PROBLEM)
