"""L and delta: exact where the problem knows them, measured where it does not."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, Problem, TheoryWarning, algorithms, oracles, simulate
from fedpd.data import from_arrays
from fedpd.problems import from_losses, penalized_logistic, quadratic, softmax_regression
from fedpd.theory import estimate_smoothness, heterogeneity, objective, smoothness, smoothness_constants


def parabolas(eigenvalues: Any, linear: Any, dtype: Any = np.float64) -> Problem:
    """f_i(x) = sum_k h_ik x_k^2/2 - c_ik x_k with a model in two parts, through a loss that brings no answer."""
    data = {"h": np.asarray(eigenvalues, dtype)[:, None], "c": np.asarray(linear, dtype)[:, None]}

    def losses(model: Any, batch: Any) -> Any:
        x = jnp.concatenate([model["first"][None], model["rest"]])
        return batch["h"] @ x**2 / 2 - batch["c"] @ x

    return from_losses(losses, data, {"first": np.zeros((), dtype), "rest": np.zeros(2, dtype)})


def test_known_constants_are_handed_back() -> None:
    problem = quadratic(np.array([[[2.0]], [[2.0]]]), np.array([[1.0], [4.0]]))
    assert smoothness(problem) == 2
    assert heterogeneity(problem) == 1.5
    logistic = penalized_logistic(np.ones((1, 1, 2)), np.ones((1, 1)), alpha=3.0, beta=0.5)
    assert smoothness(logistic) == pytest.approx(2 / 4 + 2 * 3 * 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_smoothness_is_found_by_power_iteration(dtype: Any) -> None:
    problem = parabolas([[1, 2, 3], [0.5, -5, 4], [0, 0, 0]], np.ones((3, 3)), dtype)
    assert smoothness(problem, iterations=100) == pytest.approx(1.1 * 5, rel=1e-5)  # |-5|: f need not be convex


def test_smoothness_of_an_unequal_problem_is_of_its_worst_agent() -> None:
    samples = [np.array([1.0]), np.array([2.0, 4.0])]  # f_i = mean(a^2) x^2/2: curvatures 1 and 10
    problem = from_losses(lambda x, a: (a * x) ** 2 / 2, samples, np.float64(1))
    assert smoothness(problem) == pytest.approx(1.1 * 10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_linear_problem_has_smoothness_0(dtype: Any) -> None:
    assert smoothness(parabolas(np.zeros((2, 3)), np.ones((2, 3)), dtype)) == 0


def test_a_hessian_that_is_not_finite_is_refused_at_the_start_and_left_out_elsewhere() -> None:
    problem = from_losses(lambda x, c: c * jnp.sqrt(jnp.abs(x)), np.ones((2, 1)), np.float64(0), check=False)
    with pytest.raises(FedpdError, match=r"point 0: a Hessian is not finite"):
        smoothness(problem)
    domain = from_losses(lambda x, c: -c * jnp.sqrt(x), np.ones((2, 1)), np.float64(0.1))  # f'' = x^-1.5/4 for x > 0
    found = smoothness_constants(domain, safety=1.0)
    assert np.isfinite(found.value)
    assert found.value >= 0.1**-1.5 / 4 * (1 - 1e-9)
    assert "where a Hessian is not finite" in found.how
    assert found.points < 5


def bumps() -> Problem:
    """f_i whose curvature is much larger near the start than at it, as in the problem of 0.83 and 3.04."""
    return from_losses(lambda x, c: c * x**2 / 2 + 2 * jnp.sum(x**4), np.ones((2, 1)) * [[0.5], [0.8]], np.float64(0))


def test_there_is_one_smoothness() -> None:
    problem = bumps()
    constants = smoothness_constants(problem)
    assert smoothness(problem) == constants.value == estimate_smoothness(problem).value
    assert constants.value > 1.1 * 0.8, "it also looks at models near the start"
    assert not constants.exact
    assert not constants.bound
    assert constants.how.endswith("a lower bound before the factor")


@pytest.mark.parametrize(
    "problem",
    [
        quadratic(np.array([[[2.0]], [[3.0]]]), np.ones((2, 1))),
        penalized_logistic(np.arange(12.0).reshape(2, 3, 2), np.array([[1, -1, 1], [-1, 1, 1]])),
        softmax_regression(from_arrays({i: {"x": np.eye(2) * i, "y": [0, 1]} for i in (1, 2)}), l2=0.1),
    ],
    ids=lambda problem: problem.name,
)
def test_a_known_smoothness_is_the_same_everywhere(problem: Problem) -> None:
    constants = smoothness_constants(problem)
    assert smoothness(problem) == pytest.approx(constants.value, rel=1e-12)
    assert constants.exact != constants.bound
    assert ("exact" if constants.exact else "an upper bound for all x") in constants.how
    measured = estimate_smoothness(problem, safety=1.0).value
    assert measured <= constants.value * (1 + 1e-9), "no measurement is above it"


def test_a_large_eta_is_warned_of_once_the_smoothness_is_known() -> None:
    problem = bumps()
    L = smoothness(problem)
    for factor in (1, 3):
        algorithm = algorithms.fedpd(eta=factor / L, oracle=oracles.gd(step=0.1, iterations=2))
        with pytest.warns(TheoryWarning, match=rf"\(L = {L:.3g}\), so Theorem 1 does not cover.* L is an estimate"):
            simulate(algorithm, problem, rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(algorithms.fedpd(eta=0.3 / L, oracle=oracles.gd(step=0.2 / L, iterations=2)), problem, rounds=1)


def test_a_larger_estimate_is_the_smoothness_from_then_on() -> None:
    """`advise` measures again where its trials went, and no function may then give a smaller L."""
    problem = bumps()
    near = smoothness(problem)
    far = estimate_smoothness(problem, points=[np.float64(3.0)], samples=0).value
    assert far == pytest.approx(1.1 * (0.8 + 24 * 9), rel=1e-6)
    assert far > near
    assert smoothness(problem) == smoothness_constants(problem).value == far
    assert smoothness_constants(problem, points=[np.float64(0.0)], samples=0).value == far
    assert smoothness_constants(problem).average is not None
    assert smoothness_constants(problem).kind == "an estimate with a safety factor 1.1; the true L may be larger"


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_a_step_that_need_not_descend_is_warned_of(factor: float) -> None:
    problem = quadratic(np.array([[[2.0]], [[3.0]]]), np.ones((2, 1)))
    limits = {  # 2/L, and with the penalty 1/eta = 20: 2/(L + 20)
        "fedavg": (algorithms.fedavg(oracle=oracles.gd(step=factor * 2 / 3, iterations=2)), 3),
        "sgd": (algorithms.fedavg(oracle=oracles.sgd(step=factor * 2 / 3, iterations=2)), 3),
        "fedpd": (algorithms.fedpd(eta=0.05, oracle=oracles.gd(step=factor * 2 / 23, iterations=2)), 23),
    }
    for method, curvature in limits.values():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            simulate(method, problem, rounds=1)
        words = [str(one.message) for one in caught if one.category is TheoryWarning]
        if factor < 1:
            assert words == []
        else:
            assert f"is not below 2/{curvature} = {2 / curvature:.3g}" in words[0]


def test_the_estimate_finds_an_eigenvalue_whose_negative_is_one_too() -> None:
    assert smoothness(parabolas([[3, -3, 1]], np.ones((1, 3)))) == pytest.approx(1.1 * 3, rel=1e-6)


def test_heterogeneity_is_measured_at_the_start() -> None:
    problem = parabolas(np.ones((3, 3)), [[0, 3, 4], [0, -3, -4], [1.5, 0, 0]])
    # grad f_i(0) = -c_i, their mean is (0.5, 0, 0)
    assert heterogeneity(problem) == pytest.approx(25.25**0.5, rel=1e-14)
    equal = parabolas(np.ones((2, 3)), np.ones((2, 3)))
    assert heterogeneity(equal) == 0


def test_power_iterations_are_a_count() -> None:
    problem = parabolas(np.ones((1, 3)), np.ones((1, 3)))
    with pytest.raises(
        FedpdError, match=r"iterations = 0: must be an integer of at least 1\. Give the number of power"
    ):
        smoothness(problem, iterations=0)


def test_objective_by_hand() -> None:
    problem = parabolas([[1.0, 2.0, 3.0], [5.0, 0.0, 1.0]], [[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]])
    x = {"first": np.array(1.0), "rest": np.array([2.0, -1.0])}
    # f_1 = (1 + 2*4 + 3)/2 - 2 = 4, f_2 = (5 + 1)/2 - 2 = 1
    assert objective(problem, x) == pytest.approx(2.5)
