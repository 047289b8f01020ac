"""Theorem 1 as printed: C(p) against the paper's formula, its approximations, its constants and what they promise."""

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpd import FedpdError
from fedpd.theory import communication_factor, max_eta, printed, skip_probability

ETA = (math.sqrt(5) - 1) / 8  # half the bound of Theorem 1 at L = 1
products = st.floats(1e-3, 0.309)  # L eta below (sqrt(5) - 1)/4
skips = st.floats(0, 0.95)


def as_printed(p: float, L: float, eta: float) -> float:
    c_3 = (p * (1 + L * eta) + L * eta) / (1 - L * eta)
    numerator = (1 - c_3 ** (1 / (1 - p))) ** 2 * p * (p**2 * (3 + L * eta) ** 2 + 4)
    return eta * numerator / (1 - 2 * L * eta - p * (1 + L * eta)) ** 2


def test_max_eta_is_theorem_1_s() -> None:
    assert max_eta(1.0) == pytest.approx(0.30901699437494745, rel=1e-15)
    assert max_eta(4.0) == pytest.approx(max_eta(1.0) / 4, rel=1e-15)
    for L in (0, -1, math.nan, math.inf):
        with pytest.raises(FedpdError, match=rf"L = {L}: must be .*\. L is the smoothness .*theory\.smoothness"):
            max_eta(L)


@pytest.mark.parametrize(("p", "factor"), [(0.1, 0.64), (0.3, 3.4), (0.5, 15.8), (0.7, 133)])
def test_known_values_of_c_over_eta(p: float, factor: float) -> None:
    assert communication_factor(p, 1.0, ETA) / ETA == pytest.approx(factor, rel=0.02)


def test_one_value_by_hand() -> None:
    # L eta = 1/10, p = 1/2: C_3 = (0.55 + 0.1)/0.9 = 13/18, 1 - C_3^2 = 155/324, 1 - 0.2 - 0.55 = 1/4
    expected = 0.2 * (155 / 324) ** 2 * 0.5 * (0.25 * 3.1**2 + 4) * 16
    assert communication_factor(0.5, 0.5, 0.2) == pytest.approx(expected, rel=1e-14)


@settings(deadline=None)
@given(p=skips, product=products, L=st.floats(0.01, 100))
def test_c_is_the_paper_s_away_from_the_singularity(p: float, product: float, L: float) -> None:
    eta = product / L
    assume(abs(1 - 2 * product - p * (1 + product)) > 1e-2)
    assert communication_factor(p, L, eta) == pytest.approx(as_printed(p, L, eta), rel=1e-9)


@settings(deadline=None)
@given(product=products)
def test_the_singularity_is_removed_continuously(product: float) -> None:
    p = (1 - 2 * product) / (1 + product)  # where C_3 = 1 and the printed quotient is 0/0
    root = 1 / ((1 - p) * (1 - product))
    limit = product * root**2 * p * (p**2 * (3 + product) ** 2 + 4)
    assert communication_factor(p, 1.0, product) == pytest.approx(limit, rel=1e-9)
    near = 1e-7 * (1 - p)
    assert communication_factor(p - near, 1.0, product) == pytest.approx(limit, rel=1e-5)
    assert communication_factor(p + near, 1.0, product) == pytest.approx(limit, rel=1e-5)


@settings(deadline=None)
@given(p=st.floats(0, 1, exclude_max=True), other=st.floats(0, 1, exclude_max=True), product=st.just(0.0) | products)
def test_c_grows_with_p(p: float, other: float, product: float) -> None:
    low, high = sorted((p, other))
    assume(high - low > 1e-9)
    small, large = (communication_factor(value, 1.0 if product else 0.0, product or 0.1) for value in (low, high))
    assert small < large or small == large == math.inf


def test_c_is_0_without_skips_and_infinite_beyond_all_numbers() -> None:
    assert communication_factor(0, 1.0, 0.1) == 0
    assert communication_factor(0, 0.0, 0.1) == 0
    assert communication_factor(math.nextafter(1, 0), 1.0, 0.1) == math.inf


@pytest.mark.parametrize("eta", [1e-3, 1e-4, 1e-8])
def test_c_does_not_overflow_on_its_way_to_infinity(eta: float) -> None:
    factors = [communication_factor(1 - 3 * eta / (330 + step / 10), 1.0, eta) for step in range(250)]
    assert factors == sorted(factors)
    assert factors[-1] > 1e290


@pytest.mark.parametrize(
    ("p", "L", "eta", "sentence"),
    [
        (1.0, 1.0, 0.1, r"p = 1\.0: must lie in \[0, 1\)\. p is the probability of skipping"),
        (-0.1, 1.0, 0.1, r"p = -0\.1: must lie in \[0, 1\)\. p is the probability of skipping"),
        (math.nan, 1.0, 0.1, r"p = nan: must .*\. p is the probability of skipping"),
        ("often", 1.0, 0.1, r"p = 'often': must .*\. p is the probability of skipping"),
        (0.5, -1.0, 0.1, r"L = -1\.0: must be finite and at least 0\. L is the smoothness"),
        (0.5, 1.0, 0.0, r"eta = 0\.0: must be positive and finite\. Theorem 1 needs eta < max_eta\(L\)"),
        (0.5, 2.0, 0.5, r"L \* eta = 1\.0: must be below 1\. Theorem 1 needs eta < max_eta\(L\)"),
    ],
)
def test_what_the_theorem_excludes_is_refused(p: Any, L: float, eta: float, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        communication_factor(p, L, eta)


@settings(deadline=None)
@given(p=st.floats(1e-3, 0.9), product=products, delta=st.floats(1e-3, 1e3))
def test_skip_probability_inverts_c(p: float, product: float, delta: float) -> None:
    epsilon = 3 * delta**2 * communication_factor(p, 1.0, product)
    found = skip_probability(epsilon, delta, 1.0, product)
    assert found == pytest.approx(p, abs=1e-12)


def test_skip_probability_is_the_largest_that_is_allowed() -> None:
    epsilon, delta = 1e-2, 0.7
    p, allowed = skip_probability(epsilon, delta, 1.0, ETA), epsilon / (3 * delta**2)
    assert communication_factor(p, 1.0, ETA) <= allowed < communication_factor(p + 1e-12, 1.0, ETA)
    assert 0 < p < 1


def test_equal_agents_allow_any_skip_and_agents_without_bound_none() -> None:
    assert skip_probability(1e-6, 0, 1.0, ETA) == math.nextafter(1, 0)
    assert skip_probability(1e-6, math.inf, 1.0, ETA) == 0


@pytest.mark.parametrize(("delta", "low", "high"), [(1e-200, 0.99, 1.0), (1e200, 0.0, 1e-15)])
def test_extreme_heterogeneities_have_an_answer(delta: float, low: float, high: float) -> None:
    assert low <= skip_probability(1e-6, delta, 1.0, ETA) < high


@pytest.mark.parametrize(
    ("epsilon", "delta", "sentence"),
    [
        (0, 1.0, r"epsilon = 0: must be positive and finite\. epsilon is the target"),
        (1e-6, -1.0, r"delta = -1\.0: must be at least 0\. theory\.heterogeneity\(problem\)"),
        (1e-6, math.nan, r"delta = nan: must be .*\. theory\.heterogeneity\(problem\)"),
        (1e-6, "much", r"delta = 'much': must be .*\. theory\.heterogeneity\(problem\)"),
    ],
)
def test_skip_probability_refuses(epsilon: float, delta: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        skip_probability(epsilon, delta, 1.0, ETA)


# --- the table's approximations, the figure's curves ------------------------------------------------------------------


def test_linear_approximation_is_low_by_a_factor_of_2_at_small_p() -> None:
    exact, linear = skip_probability(1e-6, 1.0, 1.0, ETA), printed.linear_skip_probability(1e-6, 1.0, ETA)
    assert linear == pytest.approx(1e-6 / (36 * ETA), rel=1e-12)
    assert exact / linear == pytest.approx(36 / 3 / (4 / (1 - ETA) ** 2), rel=1e-4)
    assert printed.linear_skip_probability(1.0, 0.0, ETA) == 1
    assert printed.linear_skip_probability(1.0, math.inf, ETA) == 0


def test_logarithmic_approximation_leaves_out_log_c_3() -> None:
    ratio = 1e12
    logarithmic = printed.logarithmic_skip_probability(ratio, 1.0, ETA)
    assert logarithmic == pytest.approx(1 - 2 / math.log(ratio / (42 * ETA)), rel=1e-12)
    c_3, prefactor = (1 + 2 * ETA) / (1 - ETA), ((3 + ETA) ** 2 + 4) / (3 * ETA) ** 2  # both at p = 1
    corrected = 1 - 2 * math.log(c_3) / math.log(ratio / (3 * prefactor * ETA))
    exact = skip_probability(ratio, 1.0, 1.0, ETA)
    assert abs(exact - corrected) < 0.01 < abs(exact - logarithmic)
    assert printed.logarithmic_skip_probability(1e-6, 1.0, ETA) == 0
    assert printed.logarithmic_skip_probability(1e-6, 0.0, ETA) == 1


def test_printed_constants_by_hand() -> None:
    c = printed.constants(2.0, 0.1, 0.5)  # L eta = 1/5: 1 - 2/5 - 4/25 = 11/25, 1 + 8/5 = 13/5
    c_6 = 144  # ((1 + 1/5)/(1/10))^2
    c_7 = 2 * c_6 / 0.65  # the least of 2.2, 5 and 13/20
    c_2, c_8 = 16 * c_7, (0.5 * 1.2 + 0.2) / 0.8
    assert tuple(c) == pytest.approx((c_2, c_8, 1.3 * c_2, 8 * c_2, c_6, c_7, c_8))


def test_printed_bound_by_hand() -> None:
    c = printed.constants(2.0, 0.1, 0.5)
    skipping = c.C_5 * communication_factor(0.5, 2.0, 0.1) * (0.3**2 + 0.01) * 3 / 4
    settings: dict[str, Any] = {"L": 2.0, "eta": 0.1, "epsilon_1": 0.01, "p": 0.5, "delta": 0.3}
    assert printed.bound(5, 7.0, agents=4, **settings) == pytest.approx(c.C_2 * 7 / 5 + skipping + c.C_4 * 0.01)
    assert printed.bound(5, 7.0, L=2.0, eta=0.1, p=0.0, epsilon_1=0.0) == pytest.approx(c.C_2 * 7 / 5)


def test_printed_choice_of_p_misses_the_target() -> None:
    """C(p) <= epsilon/(3 delta^2) leaves out C_5: the printed bound is far above epsilon then."""
    epsilon, delta = 1e-2, 1.0
    c, p = printed.constants(1.0, ETA), skip_probability(epsilon, delta, 1.0, ETA)
    T, accuracy = math.ceil(2 * c.C_2 / epsilon), min(epsilon / (4 * c.C_4), delta**2)
    settings: dict[str, Any] = {"L": 1.0, "eta": ETA, "epsilon_1": accuracy, "p": p, "delta": delta, "agents": 100}
    assert printed.bound(T, 1.0, **settings) > 500 * epsilon
