"""Appendix A: the corrected bounds hold on random data, and what is printed is shown wrong, or loose by how much."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError
from fedpd.problems import from_losses, penalized_logistic, random_quadratic, share_blocks
from fedpd.theory.curvature import smoothness_constants
from fedpd.theory.dissimilarity import (
    delta_bound,
    linear_regression_delta,
    logistic_delta,
    sigmoid_delta,
    similarity,
    tanh_delta,
)

ROUNDING = 1 + 1e-12


def sigmoid(z: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(z / 2)) / 2


def sigmoid_slope(z: np.ndarray) -> np.ndarray:
    return sigmoid(z) * sigmoid(-z)


def printed_delta(features: list[np.ndarray]) -> float:
    """max_ij of ||A_i||/sqrt(n_i) + ||A_j||/sqrt(n_j), i and j different, as Appendix A has it for the sigmoid."""
    roots = sorted(np.linalg.norm(a, 2) / np.sqrt(len(a)) for a in features)
    return roots[-1] + roots[-2]


class Case(NamedTuple):
    features: list[np.ndarray]
    offsets: list[np.ndarray]
    labels: list[np.ndarray]
    x: np.ndarray


def make_case(seed: int, agents: int, spread: float) -> Case:
    """Random agents, unequal in size, scale and direction, and an x that may be far out."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, agents)
    features = [rng.standard_normal((n, 3)) * 10 ** rng.uniform(-1, 1) + rng.standard_normal(3) for n in sizes]
    offsets = [rng.standard_normal(n) * spread for n in sizes]
    labels = [rng.choice((-1.0, 1.0), n) for n in sizes]
    return Case(features, offsets, labels, rng.standard_normal(3) * spread)


cases = st.builds(make_case, st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([0.01, 0.3, 1.0, 30.0]))


def farthest(case: Case, gradient: Callable[..., np.ndarray]) -> float:
    """max_ij ||grad f_i - grad f_j|| at the case's x, of means over samples of gradient(a, b, label)."""
    parts = zip(case.features, case.offsets, case.labels, strict=True)
    each = np.array([gradient(*part).mean(0) for part in parts])
    return float(np.linalg.norm(each[:, None] - each, axis=-1).max())


@settings(deadline=None, max_examples=150)
@given(cases)
def test_the_corrected_bounds_hold(case: Case) -> None:
    x = case.x
    measured = farthest(case, lambda a, b, _: a * sigmoid_slope(a @ x - b)[:, None])
    bound = sigmoid_delta(case.features)
    assert measured <= bound.tight * ROUNDING <= bound.plain * ROUNDING**2
    assert bound.plain == pytest.approx(printed_delta(case.features) / 4)

    measured = farthest(case, lambda a, b, _: -a * (4 * sigmoid_slope(2 * (b - a @ x)))[:, None])
    four_times = tanh_delta(case.features)
    assert measured <= four_times.tight * ROUNDING
    np.testing.assert_allclose(four_times, np.multiply(4, bound))

    measured = farthest(case, lambda a, _, label: -a * (label * sigmoid(-label * (a @ x)))[:, None])
    logistic = logistic_delta(case.features, case.labels)
    assert measured <= logistic.tight * ROUNDING <= logistic.plain * ROUNDING**2
    assert logistic.plain == pytest.approx(printed_delta(case.features))


def test_the_corrected_sigmoid_bound_is_reached_and_the_printed_one_four_times_that() -> None:
    a, b = np.array([[3.0, 4.0]]), 0.7
    x = a[0] * b / 25  # a^T x = b, where the slope is 1/4; and the same for (-a, -b)
    difference = np.linalg.norm(a * sigmoid_slope(a @ x - b) - -a * sigmoid_slope(-a @ x + b))
    bound = sigmoid_delta([a, -a])
    assert difference == pytest.approx(2.5)
    assert bound == pytest.approx((2.5, 2.5))
    assert printed_delta([a, -a]) == pytest.approx(10)


def test_equal_agents_halve_the_tight_bound() -> None:
    features = [np.random.default_rng(0).standard_normal((4, 3))] * 2
    for bound in (sigmoid_delta(features), tanh_delta(features), logistic_delta(features, [np.ones(4)] * 2)):
        assert bound.tight <= bound.plain / 2 * ROUNDING
    assert sigmoid_delta(features[:1]) == (0, 0)


def test_the_slope_of_the_sigmoid_is_at_most_a_quarter() -> None:
    slopes = sigmoid_slope(np.linspace(-30, 30, 2001))
    assert slopes.max() == 0.25
    assert slopes.min() > 0


@given(z=st.floats(0.01, 10))
def test_the_printed_identity_of_tanh_has_the_wrong_sign_and_its_gradient_the_wrong_factor(z: float) -> None:
    printed = 2 / (1 + np.exp(2 * z)) - 1
    assert np.tanh(z) == pytest.approx(-printed)
    # d/dz of 1/(1 + exp(2z)) is -2 s(2z), with s the slope of the sigmoid, and that of tanh is 4 s(2z) = 1/cosh^2.
    inner, true = -2 * sigmoid_slope(np.array(2 * z)), 1 / np.cosh(z) ** 2
    assert true == pytest.approx(-2 * inner)
    assert true != pytest.approx(4 * inner)


def test_sigmoidal_networks_with_cross_entropy_have_no_finite_delta() -> None:
    """The paper says its analysis covers them. But the slope of the first layer w grows with the second layer u."""

    def losses(model: Any, batch: Any) -> Any:
        return jnp.logaddexp(-batch * model["u"] * jnp.tanh(model["w"]), 0)  # labels +-1, the feature is 1

    problem = from_losses(losses, np.array([[1.0], [-1.0]]), {"w": np.float64(0), "u": np.float64(0)})
    deltas = [similarity(problem, [{"w": 0.0, "u": u}], samples=0).pairwise for u in (1.0, 10.0, 1000.0)]
    np.testing.assert_allclose(deltas, [1, 10, 1000], rtol=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), far=st.sampled_from([0.0, 1.0, 100.0]))
def test_linear_regression_with_equal_gram_matrices_is_exact(seed: int, far: float) -> None:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((3, 2))
    features = [np.linalg.qr(rng.standard_normal((3, 3)))[0] @ common for _ in range(4)]
    targets = [rng.standard_normal(3) for _ in range(4)]
    x = far * rng.standard_normal(2)
    gradients = np.array([a.T @ (a @ x + b) for a, b in zip(features, targets, strict=True)])
    pairs = np.linalg.norm(gradients[:, None] - gradients, axis=-1)
    assert linear_regression_delta(features, targets) == pytest.approx(pairs.max(), rel=1e-9)
    assert linear_regression_delta([a * (1 + i) for i, a in enumerate(features)], targets) == np.inf


@settings(deadline=None, max_examples=5)
@given(st.builds(make_case, st.integers(0, 100), st.just(3), st.just(1.0)))
def test_the_bound_of_a_logistic_problem(case: Case) -> None:
    problem = penalized_logistic(case.features, case.labels)
    bound = delta_bound(problem)
    assert bound is not None
    assert bound == pytest.approx(logistic_delta(case.features, case.labels))
    found = similarity(problem, radius=20.0, samples=3)
    assert found.pairwise <= bound.tight * ROUNDING
    assert found.centred <= 2 / 3 * bound.tight * ROUNDING


def test_problems_without_such_a_bound() -> None:
    assert delta_bound(random_quadratic(2, 2)) is None
    shared = share_blocks(penalized_logistic(np.ones((2, 3, 2)), np.ones((2, 3))), copies=1)
    assert delta_bound(shared) == pytest.approx((2 * np.sqrt(2), np.sqrt(2)))
    weighted = from_losses(
        shared.losses, shared.data, shared.start, weights=[1.0, 2.0], answer=shared.answer, name=shared.name
    )
    assert delta_bound(weighted) is None


def test_what_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"features = \[\(2,\)\]: must be matrices \(n_i, D\)"):
        sigmoid_delta([np.ones(2)])
    with pytest.raises(FedpdError, match=r"features = \[\(1, 2\), \(1, 3\)\]: must be matrices"):
        tanh_delta([np.ones((1, 2)), np.ones((1, 3))])
    with pytest.raises(FedpdError, match=r"labels = \[\(3,\)\]: must have one entry per row"):
        logistic_delta([np.ones((2, 2))], [np.ones(3)])
    with pytest.raises(FedpdError, match=r"targets = \[\(3,\)\]: must have one entry per row"):
        linear_regression_delta([np.ones((2, 2))], [np.ones(3)])


@pytest.mark.parametrize("bound", [sigmoid_delta, tanh_delta])
def test_features_that_are_not_finite_have_no_bound(bound: Callable[[Any], Any]) -> None:
    with pytest.raises(FedpdError, match="features of agent 1 hold NaN or infinity"):
        bound([np.ones((2, 2)), np.array([[np.nan, 1.0]])])


def test_an_unknown_setting_of_the_constants_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"setting = 'radios'.*Did you mean 'radius'"):
        smoothness_constants(random_quadratic(agents=2, dimension=2), radios=1)
