"""Penalised logistic regression against its formula in NumPy, its smoothness, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, simulate
from fedpd.problems import penalized_logistic
from tests.problems import local_values

ALPHA, BETA = 2.0, 0.3


def ragged(seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    sizes = (3, 5, 1)
    return [rng.standard_normal((n, 3)) for n in sizes], [rng.choice((-1.0, 1.0), n) for n in sizes]


def by_formula(a: np.ndarray, b: np.ndarray, x: np.ndarray, beta: float = BETA) -> tuple[float, np.ndarray]:
    """f_i and its gradient, term by term as the paper prints them."""
    margins = b * (a @ x)
    penalty = beta * (ALPHA * x**2 / (1 + ALPHA * x**2)).sum()
    slope = beta * 2 * ALPHA * x / (1 + ALPHA * x**2) ** 2
    value = np.mean(np.log(1 + np.exp(-margins))) + penalty
    return value, np.mean((-b / (1 + np.exp(margins)))[:, None] * a, axis=0) + slope


@pytest.mark.parametrize("beta", [0.0, BETA])
def test_values_and_gradients_are_the_formula_s(beta: float) -> None:
    features, labels = ragged()
    problem = penalized_logistic(features, labels, ALPHA, beta)
    x = np.array([0.7, -1.3, 0.2])
    values, gradients = local_values(problem, x)
    for i, (a, b) in enumerate(zip(features, labels, strict=True)):
        value, gradient = by_formula(a, b, x, beta)
        np.testing.assert_allclose(values[i], value, rtol=1e-14)
        np.testing.assert_allclose(gradients[i], gradient, rtol=1e-13)
    assert (problem.agents, problem.samples, problem.dimension) == (3, 9, 3)


def test_row_0_of_a_run_is_the_average_at_the_start() -> None:
    features, labels = ragged()
    start = np.array([0.5, 0.0, -2.0])
    problem = penalized_logistic(features, labels, ALPHA, BETA, start=start)
    history = simulate(algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1)), problem, rounds=1).history
    values, gradients = zip(*(by_formula(a, b, start) for a, b in zip(features, labels, strict=True)), strict=True)
    np.testing.assert_allclose(history["loss"][0], np.mean(values), rtol=1e-14)
    np.testing.assert_allclose(history["stationarity"][0], (np.mean(gradients, axis=0) ** 2).sum(), rtol=1e-13)


def test_the_start_is_zero_unless_given() -> None:
    problem = penalized_logistic(np.ones((2, 4, 3)), np.ones((2, 4)))
    np.testing.assert_array_equal(problem.start, np.zeros(3))
    values, _ = local_values(problem, problem.start)
    np.testing.assert_allclose(values, np.log(2), rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_margins_do_not_overflow(dtype: Any) -> None:
    features = np.array([[[1e4]], [[-1e4]]], dtype)
    problem = penalized_logistic(features, np.ones((2, 1)), beta=0)
    values, gradients = local_values(problem, np.ones(1, dtype))
    assert values.dtype == gradients.dtype == dtype
    assert values.tolist() == [0, 1e4]  # log(1 + exp(-z)) at z = 1e4 and -1e4
    assert gradients.tolist() == [[0], [1e4]]


def hessian(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    chance = 1 / (1 + np.exp(-(a @ x)))
    curvature = BETA * 2 * ALPHA * (1 - 3 * ALPHA * x**2) / (1 + ALPHA * x**2) ** 3
    return (a.T * (chance * (1 - chance))) @ a / len(a) + np.diag(curvature)


def test_the_known_smoothness_bounds_every_hessian_and_is_reached_at_zero() -> None:
    features, labels = ragged()
    smoothness = penalized_logistic(features, labels, ALPHA, BETA).answer.smoothness
    assert smoothness is not None
    rng = np.random.default_rng(1)
    points = rng.standard_normal((200, 3)) * rng.choice((0.1, 1, 10), (200, 1))
    largest = max(np.abs(np.linalg.eigvalsh(hessian(a, x))).max() for a in features for x in points)
    assert largest <= smoothness
    at_zero = max(np.linalg.eigvalsh(hessian(a, np.zeros(3))).max() for a in features)
    np.testing.assert_allclose(smoothness, at_zero, rtol=1e-14)


def test_precision_is_the_features() -> None:
    labels = np.ones((2, 3))
    assert not penalized_logistic(np.ones((2, 3, 1), np.float32), labels).double
    assert penalized_logistic(np.ones((2, 3, 1), np.float32), labels.astype(int)).start.dtype == np.float32
    assert penalized_logistic(np.ones((2, 3, 1), int), labels.astype(np.int8)).double
    mixed = penalized_logistic([np.ones((1, 1), np.float32), np.full((2, 1), 0.1)], [labels[0, :1], labels[0, :2]])
    assert mixed.double
    assert mixed.start.dtype == mixed.data.dtype == np.float64
    assert mixed.data[1].tolist() == [[0.1], [0.1]]


@pytest.mark.parametrize(
    ("labels", "found"), [([[1, 1], [0, 1]], r"\[0, 1\]"), ([[1, -1], [np.nan, 2]], r"\[2.0, nan\]")]
)
def test_labels_that_are_not_signs_are_refused(labels: Any, found: str) -> None:
    with pytest.raises(FedpdError, match=rf"labels of agent 1 hold {found}: .*-1 or \+1\. For 0/1, give 2\*labels - 1"):
        penalized_logistic(np.ones((2, 2, 3)), np.array(labels))


@pytest.mark.parametrize(
    ("features", "labels", "sentence"),
    [
        (np.ones((2, 3, 1)), np.ones((1, 3)), r"labels = 1: the number of agents .*, 2\. Give one entry per agent"),
        (np.ones((2, 3, 1)), np.ones((2, 4)), r"agent 0 = .*\(3, 1\), \(4,\).*\(n, D\), \(n,\)\. Give one row"),
        (np.ones((2, 3)), np.ones((2, 3)), r"agent 0 = .*\(3,\), \(3,\).*\(n, D\), \(n,\)\. Give one row per sample"),
        ([np.ones((2, 1)), np.ones((2, 3))], np.ones((2, 2)), r"samples of agent 1 = \(3,\): must be the shape of"),
        ([np.ones((2, 1)), np.ones((0, 1))], [np.ones(2), np.ones(0)], r"agent 1 has no samples: .*Leave"),
        ([], [], r"data is empty: .*Give one data set per agent"),
        (np.ones((2, 3, 0)), np.ones((2, 3)), r"features of agent 0 = \(3, 0\): must have D > 0\. Give at least one"),
        (np.array([[[1.0]], [[np.inf]]]), np.ones((2, 1)), r"agent 1 holds NaN or infinity\. Clean or drop"),
        (np.array([[[1.0]], [[np.nan]]]), np.ones((2, 1)), r"agent 1 holds NaN or infinity\. Clean or drop"),
    ],
)
def test_data_that_does_not_fit_is_refused(features: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        penalized_logistic(features, labels)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": 0}, r"alpha = 0: must be positive and finite\. alpha is the scale"),
        ({"beta": -0.1}, r"beta = -0\.1: must be finite and at least 0\. beta is the weight"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        penalized_logistic(np.ones((1, 1, 1)), np.ones((1, 1)), **settings)


@pytest.mark.parametrize("length", [1, 3, 5, 8])
@pytest.mark.parametrize("width", [4, 100])  # 100 columns become 104, which must not hide a start of another length
def test_a_start_of_another_length_is_refused(width: int, length: int) -> None:
    features, labels = np.ones((2, 9, width)), np.ones((2, 9))
    with pytest.raises(FedpdError, match=rf"shape of start = \({length},\): must be \({width},\), one number per"):
        penalized_logistic(features, labels, start=np.zeros(length))
    with pytest.raises(FedpdError, match=rf"shape of start = \({width}, 1\): must be \({width},\)"):
        penalized_logistic(features, labels, start=np.zeros((width, 1)))
