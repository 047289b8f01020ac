"""Theorem 1 as proved: the bound against runs, what is printed against counterexamples, choices for a target."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tree_math import Vector

from fedpd import FedpdError, Problem, algorithms, oracles, problems, simulate
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.theory import max_eta, printed, rates, skip_probability

ETA = (math.sqrt(5) - 1) / 8  # half the bound of Theorem 1 at L = 1
CASE_1: dict[str, Any] = {"L": 1.0, "eta": 0.1, "p": 0.0, "epsilon_1": 0.0}
products = st.floats(1e-3, 0.309)  # L eta below (sqrt(5) - 1)/4
skips = st.floats(0, 0.95)


def test_savings_are_the_columns_of_the_figure() -> None:
    curves = rates.savings([1e-3, 1.0, 1e3], 1.0, ETA)
    assert curves.ratio.tolist() == [1e-3, 1.0, 1e3]
    assert curves.exact.tolist() == [skip_probability(ratio, 1.0, 1.0, ETA) for ratio in curves.ratio]
    assert curves.linear.tolist() == [printed.linear_skip_probability(ratio, 1.0, ETA) for ratio in curves.ratio]
    for curve in curves:
        assert (np.diff(curve) >= 0).all()
    assert (curves.guaranteed < curves.exact).all()


# --- constants by hand ------------------------------------------------------------------------------------------------


def test_constants_by_hand() -> None:
    def by_hand(c_2: float, c_3: float) -> tuple[float, ...]:
        return c_2, c_3, c_2 * (1.3 + 3.4**2 / 20), 2 * c_2, 0.1 * 1.4 / 0.64 + 0.025

    c_2 = 20 * (2 + 0.24**2 / 0.44)
    assert tuple(rates.constants(2.0, 0.1)) == pytest.approx(by_hand(c_2, 0.25))
    assert tuple(rates.constants(2.0, 0.1, 0.5)) == pytest.approx(by_hand(c_2 + 20, math.sqrt(0.52) / 0.8))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(product=products, share=st.floats(0, 0.999), m=st.floats(0, 1))
def test_disagreement_is_the_fixed_point(product: float, share: float, m: float) -> None:
    p = share * rates.max_skip_probability(1.0, product, m)
    x, x0, skipped = rates.disagreement(p, 1.0, product, m)
    step = (p * (x + 1) ** 2 + (1 - p) * (product * x + 2) ** 2) / (1 - m * product) ** 2
    assert step == pytest.approx(x**2, rel=1e-9)
    assert x0 == (1 + product) * x + 1 <= skipped
    assert rates.constants(1.0, product, p, m).C_3 < 1


def test_convex_agents_may_skip_at_any_p() -> None:
    assert rates.max_skip_probability(1.0, ETA, 0.0) == 1
    assert rates.max_skip_probability(1.0, ETA, 1.0) == rates.max_skip_probability(1.0, ETA) < 1 - ETA
    assert rates.bound(10, 1.0, L=1.0, eta=ETA, p=0.999, epsilon_1=0.0, delta=1.0, nonconvexity=0.0) < math.inf


def test_from_some_p_on_nothing_is_guaranteed() -> None:
    p = rates.max_skip_probability(1.0, ETA)
    assert rates.constants(1.0, ETA, p - 1e-9).C_3 < 1 < rates.constants(1.0, ETA, p + 1e-9).C_3
    assert rates.disagreement(p + 1e-9, 1.0, ETA) == (math.inf,) * 3
    assert rates.bound(10, 1.0, L=1.0, eta=ETA, p=p + 1e-9, epsilon_1=0.0, delta=1.0) == math.inf
    assert rates.bound(10, 1.0, L=1.0, eta=ETA, gradients=1.0, p=0.1, epsilon_1=0.0, delta=math.inf) == math.inf
    assert rates.bound(10, 1.0, L=1.0, eta=ETA, p=p + 1e-9, epsilon_1=0.0, delta=0.0) < math.inf  # equal agents
    assert rates.bound(10, 1.0, L=1.0, eta=ETA, p=p + 1e-9, delta=0.0, epsilon_1=1.0, agents=1) < math.inf


@settings(deadline=None, derandomize=True, max_examples=50)
@given(product=products, shares=st.tuples(*[st.floats(0, 0.999)] * 2), T=st.sampled_from([1, 10**6]), m=st.floats(0, 1))
def test_guaranteed_factor_grows_with_p(product: float, shares: tuple[float, float], T: int, m: float) -> None:
    low, high = (share * rates.max_skip_probability(1.0, product, m) for share in sorted(shares))
    assume(high - low > 1e-9)
    assert rates.guaranteed_factor(low, 1.0, product, T, m) < rates.guaranteed_factor(high, 1.0, product, T, m)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(product=products, L=st.floats(0.01, 100), unit=st.floats(0.01, 100), p=st.floats(0, 0.3))
def test_the_bound_does_not_depend_on_units(product: float, L: float, unit: float, p: float) -> None:
    """In x = unit * y: L and eta scale by unit^2 and its inverse, gradients by unit. The printed bound does not."""

    def both(scale: float) -> tuple[float, float]:
        common: dict[str, Any] = {"L": L * scale**2, "eta": product / L / scale**2, "p": p}
        common |= {"delta": 0.3 * scale, "epsilon_1": 0.01 * scale**2}
        return rates.bound(7, 2.0, gradients=scale**2, **common), printed.bound(7, 2.0, **common)

    (here, printed_here), (there, printed_there) = both(1.0), both(unit)
    assert there == pytest.approx(here * unit**2, rel=1e-9)
    assume(abs(math.log(unit)) > 0.1)
    assert printed_there != pytest.approx(printed_here * unit**2, rel=1e-2)


# --- the bound against runs -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A problem with all the constants that the theorem needs."""

    problem: Problem
    gap: float  # f(x^0) - inf f, or above it
    L: float
    delta: float
    gradients: float  # mean_i ||grad f_i(x^0)||^2


def known(problem: Problem, infimum: float, L: float | None = None, delta: float = math.inf) -> Case:
    """`infimum` may be any lower bound of f."""
    functions = Functions(problem.losses, problem.penalty)

    def at_start(one: Any) -> Any:
        return local_objective(functions, one).value_and_gradient(Vector(problem.start))

    with scope(True):
        values, gradients = jax.vmap(at_start)(arrays(problem))
        squares = jnp.sum(gradients.tree**2, -1)
        L = problem.answer.smoothness if L is None else L
        assert L is not None
        return Case(problem, float(values.mean()) - infimum, L, delta, float(squares.mean()))


def quadratic(problem: Problem) -> Case:
    hessian, linear = (problem.data[name][:, 0].mean(0) for name in ("hessian", "linear"))
    assert problem.answer.heterogeneity is not None
    return known(problem, -linear @ np.linalg.solve(hessian, linear) / 2, delta=problem.answer.heterogeneity)


def logistic() -> Problem:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3, 8, 4))
    labels = np.where(rng.standard_normal((3, 8)) + features[..., 0] * np.array([[1], [-1], [3]]) > 0, 1.0, -1.0)
    return problems.penalized_logistic(features, labels, start=np.full(4, 0.5))


DIRECTIONS = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


def same_hessian(delta: float) -> Case:
    """Return quadratics with the same Hessian, whose gradients differ by delta."""
    hessians = np.broadcast_to(np.diag([1.0, 0.05]), (4, 2, 2))
    return quadratic(problems.quadratic(hessians, delta * DIRECTIONS + 0.3, start=np.array([2.0, -1.0])))


def wells(delta: float) -> Case:
    """Not convex, and delta apart: sum_d x_d^2/(1 + x_d^2) + ||x||^2/20 - c_i x, of curvatures in [-0.4, 2.1]."""

    def losses(x: Any, rows: Any) -> Any:
        return jnp.sum(x**2 / (1 + x**2)) + x @ x / 20 - rows["c"] @ x

    problem = problems.from_losses(losses, {"c": (delta * DIRECTIONS + 0.1)[:, None]}, np.array([1.5, -0.5]))
    return known(problem, -5 * 2 * 0.1**2, L=2.1, delta=delta)


CASES = {
    "different": quadratic(problems.random_quadratic(4, 3, seed=2)),
    "opposing": known(problems.opposing_quadratics(), 0.0),
    "logistic": known(logistic(), 0.0),
    "wells": wells(0.5),
}


def solver(L: float, eta: float, accuracy: float) -> Any:
    return oracles.gd(step=1 / (L + 1 / eta), iterations=500, tolerance=accuracy)


def averages(stationarity: np.ndarray) -> np.ndarray:
    """(1/T) sum_{r=0}^{T-1} ||grad f(x^r)||^2, for T = 1, 2, ..."""
    return np.cumsum(stationarity[:-1]) / np.arange(1, len(stationarity))


@pytest.mark.parametrize(
    ("name", "share", "accuracy"),
    [
        ("different", 0.99, 1e-2),
        ("different", 0.2, 1e-9),
        ("opposing", 0.99, 1e-9),
        ("logistic", 0.99, 1e-2),
        ("wells", 0.99, 1e-9),
        ("wells", 0.2, 1e-2),
    ],
)
def test_case_1_holds(name: str, share: float, accuracy: float) -> None:
    problem, gap, L, _, gradients = CASES[name]
    eta, rounds = share * max_eta(L), 40
    run = simulate(algorithms.fedpd(eta=eta, oracle=solver(L, eta, accuracy)), problem, rounds=rounds)
    for T, measured in enumerate(averages(run.history["stationarity"]), 1):
        assert measured <= rates.bound(T, gap, L=L, eta=eta, p=0.0, gradients=gradients, epsilon_1=accuracy)


@pytest.mark.parametrize(
    ("make", "share", "p", "delta", "accuracy"),
    [
        (same_hessian, 0.9, 0.9, 2.0, 1e-2),
        (wells, 0.9, 0.1, 0.3, 1e-8),
        (wells, 0.9, 0.3, 2.0, 1e-2),
        (wells, 0.3, 0.7, 2.0, 1e-8),
    ],
)
def test_case_2_holds(make: Any, share: float, p: float, delta: float, accuracy: float) -> None:
    problem, gap, L, delta, gradients = make(delta)
    eta, rounds = share * max_eta(L), 40
    algorithm = algorithms.fedpd(eta=eta, oracle=solver(L, eta, accuracy), p=p)
    history = simulate(algorithm, problem, rounds=rounds, seed=range(8)).mean
    settings: dict[str, Any] = {"L": L, "eta": eta, "epsilon_1": accuracy, "p": p, "delta": delta, "agents": 4}
    settings["nonconvexity"] = 0.0 if make is same_hessian else 0.4
    for T, measured in enumerate(averages(history["stationarity"]), 1):
        proved = rates.bound(T, gap, gradients=gradients, **settings)
        assert measured <= proved < math.inf
        assert proved <= rates.bound(T, gap, **settings)  # gradients by 2 L gap + delta^2


def adversarial(rng: np.random.Generator, eta: float, T: int) -> np.ndarray:
    """measured/bound for T = 1, 2, ... at p = 0, on f_i = h_i x^2/2 - c_i x, with errors of sqrt(eps_1)."""
    agents, accuracy = rng.integers(1, 5), rng.choice([0, 0.01, 1])
    h = rng.uniform(-1, 1, agents)
    h += max(0, 0.01 - h.mean()) * (1 - h) / (1 - h).mean()  # f is bounded below, and no |h_i| above 1
    c, start = rng.standard_normal(agents) * rng.choice([0, 1, 10]), rng.standard_normal() * rng.choice([0.1, 1, 10])
    gap, gradients = h.mean() / 2 * (start - c.mean() / h.mean()) ** 2, np.mean((h * start - c) ** 2)
    x0, dual, squares = start, np.zeros(agents), []
    for _ in range(T):
        squares.append((h.mean() * x0 - c.mean()) ** 2)
        x = (np.sqrt(accuracy) * rng.choice([-1, 1], agents) + c - dual + x0 / eta) / (h + 1 / eta)
        dual = dual + (x - x0) / eta
        x0 = np.mean(x + eta * dual)
    settings: dict[str, Any] = {
        "L": 1.0,
        "eta": eta,
        "gradients": float(gradients),
        "epsilon_1": float(accuracy),
        "p": 0.0,
    }
    proved = np.array([rates.bound(t, float(gap), **settings) for t in range(1, T + 1)])
    return np.cumsum(squares) / np.arange(1, T + 1) / proved


@pytest.mark.parametrize("share", [0.9, 0.3])
def test_case_1_holds_and_is_not_idle(share: float) -> None:
    rng = np.random.default_rng(0)
    ratios = np.array([adversarial(rng, share * max_eta(1.0), 40) for _ in range(200)])
    assert 0.05 < ratios.max() <= 1


def test_terms_add_up() -> None:
    settings: dict[str, Any] = {"L": 1.0, "eta": ETA, "gradients": 2.0, "epsilon_1": 0.1, "p": 0.2, "delta": 0.5}
    terms, c = rates.terms(5, 3.0, **settings), rates.constants(1.0, ETA, 0.2)
    assert terms.start == pytest.approx(c.C_2 * (3 + 2 * c.start) / 5)
    assert terms.skipping == pytest.approx(c.C_5 * rates.guaranteed_factor(0.2, 1.0, ETA, 5) * 0.35)
    assert terms.accuracy == pytest.approx(c.C_4 * 0.1)
    assert rates.bound(5, 3.0, **settings) == sum(terms)


# --- the printed bound against counterexamples ------------------------------------------------------------------------


def test_printed_case_1_fails_from_a_minimiser() -> None:
    """D_0 = 0 and exact local solves make it 0, but the first round moves away: lambda^0 = 0, and curvatures differ."""
    hessians, linear = np.array([[[1.0]], [[0.2]]]), np.array([[1.0], [-1.0]])
    case, eta, accuracy = quadratic(problems.quadratic(hessians, linear)), 0.3, 1e-20
    assert case.gap == 0
    run = simulate(algorithms.fedpd(eta=eta, oracle=solver(1.0, eta, accuracy)), case.problem, rounds=5)
    printed_left = run.history["stationarity"].sum() / 5  # r = 0, ..., T
    assert printed_left > 1e-4 > 1e9 * printed.bound(5, case.gap, L=1.0, eta=eta, p=0.0, epsilon_1=accuracy)
    assert printed_left <= rates.bound(5, case.gap, L=1.0, eta=eta, p=0.0, gradients=case.gradients, epsilon_1=accuracy)


def test_printed_case_2_fails_from_a_minimiser() -> None:
    """The same with a finite delta: f_i = k_i sqrt(1 + x^2) - c_i x, of gradients at most 1.1 apart, at p near 0."""

    def losses(x: Any, rows: Any) -> Any:
        return rows["k"] * jnp.sqrt(1 + x[0] ** 2) - rows["c"] * x[0]

    data = {"k": np.array([[1.0], [0.2]]), "c": np.array([[0.3], [-0.3]])}
    case = known(problems.from_losses(losses, data, np.zeros(1)), 0.6, L=1.0, delta=1.1)
    eta = 0.3
    settings: dict[str, Any] = {"L": 1.0, "epsilon_1": 1e-20, "p": 1e-12, "delta": case.delta}
    algorithm = algorithms.fedpd(eta=eta, oracle=solver(1.0, eta, 1e-20), p=1e-12)
    history = simulate(algorithm, case.problem, rounds=5).history
    assert history["communications"][-1] == 5
    left = history["stationarity"].sum() / 5  # r = 0, ..., T
    assert left > 1e-6 > printed.bound(5, abs(case.gap), eta=eta, **settings)
    assert left <= rates.bound(5, abs(case.gap), eta=eta, **settings)


# --- what to choose for a target --------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    product=products,
    L=st.floats(0.01, 100),
    epsilon=st.floats(1e-6, 10),
    delta=st.floats(0, 10),
    share=st.floats(0, 1),
    gap=st.floats(0, 10),
    m=st.floats(0, 1),
)
def test_choices_reach_the_target(
    product: float, L: float, epsilon: float, delta: float, share: float, gap: float, m: float
) -> None:
    eta = product / L
    p = share * rates.guaranteed_skip_probability(epsilon, delta, L, eta, m * L)
    settings: dict[str, Any] = {"L": L, "eta": eta, "p": p, "delta": delta}
    T, accuracy = (
        rates.rounds_for(epsilon, gap, **settings),
        rates.local_accuracy(epsilon, nonconvexity=m * L, **settings),
    )
    assert rates.bound(T, gap, epsilon_1=accuracy, nonconvexity=m * L, **settings) <= epsilon * (1 + 1e-9)
    assert p == 0 or accuracy >= min(epsilon / (4 * rates.constants(L, eta, p).C_4), delta**2) * (1 - 1e-9)


def test_a_run_with_these_choices_reaches_the_target() -> None:
    problem, gap, L, delta, gradients = wells(0.02)
    eta, epsilon = 0.5 * max_eta(L), 0.1
    p = rates.guaranteed_skip_probability(epsilon, delta, L, eta)
    assert p > 0.05
    settings: dict[str, Any] = {"L": L, "eta": eta, "p": p, "delta": delta}
    T = rates.rounds_for(epsilon, gap, gradients=gradients, **settings)
    oracle = solver(L, eta, rates.local_accuracy(epsilon, **settings))
    history = simulate(algorithms.fedpd(eta=eta, oracle=oracle, p=p), problem, rounds=T).history
    assert averages(history["stationarity"])[-1] <= epsilon


def test_more_skips_than_the_target_bears_are_refused() -> None:
    p = rates.guaranteed_skip_probability(1e-2, 1.0, 1.0, ETA)
    with pytest.raises(
        FedpdError, match=r"p = .*: is too large: .*leaves more than epsilon.*guaranteed_skip_probability"
    ):
        rates.local_accuracy(1e-2, L=1.0, eta=ETA, p=3 * p, delta=1.0)


@pytest.mark.parametrize("accuracy", [1e-2, 1e-9])
def test_local_iterations_are_enough_and_none_too_many(accuracy: float) -> None:
    """f = -x^2/2 is as little convex as L = 1 allows: every step leaves just 2 L eta/(1 + L eta) of grad L_i."""
    eta = 0.25
    problem = problems.quadratic(np.array([[[-1.0]]]), np.zeros((1, 1)), start=np.ones(1))
    Q = rates.local_iterations(accuracy, 1.0, 1.0, eta)
    oracle = oracles.gd(step=1 / (1 + 1 / eta), iterations=10 * Q, tolerance=accuracy)
    assert simulate(algorithms.fedpd(eta=eta, oracle=oracle), problem, rounds=1).updates.tolist() == [Q]
    assert rates.local_iterations(accuracy, accuracy, 1.0, eta) == 0


def test_local_iterations_are_enough_on_a_problem_that_is_not_quadratic() -> None:
    problem, _, L, _, _ = CASES["logistic"]
    eta, accuracy = 0.3 / L, 1e-10
    oracle = oracles.gd(step=1 / (L + 1 / eta), iterations=100, tolerance=accuracy)
    updates = simulate(algorithms.fedpd(eta=eta, oracle=oracle), problem, rounds=1).updates
    case = known(problem, 0.0)
    worst = rates.local_iterations(accuracy, problem.agents * case.gradients, L, eta)  # in round 0, grad L_i = grad f_i
    assert 0 < updates.max() <= worst < 100


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: rates.constants(1.0, 0.31),
            r"eta = 0\.31: must be below 0\.309017\. Theorem 1 needs eta < max_eta",
        ),
        (lambda: rates.constants(0.0, 0.1), r"L = 0\.0: must be positive and finite\. L is the smoothness"),
        (
            lambda: rates.disagreement(0.1, 1.0, 0.1, 2.0),
            r"nonconvexity = 2\.0: must be at most 1\. nonconvexity is 0 for",
        ),
        (lambda: rates.disagreement(0.1, 1.0, 0.1, -1.0), r"nonconvexity = -1\.0: must be finite and at least 0\."),
        (lambda: rates.constants(1.0, 0.1, 1.0), r"p = 1\.0: must lie in \[0, 1\)\. p is the probability"),
        (lambda: rates.bound(0, 1.0, **CASE_1, gradients=1.0), r"T = 0: must be an integer of at least 1\. T is"),
        (
            lambda: rates.bound(1, -1.0, **CASE_1, gradients=1.0),
            r"gap = -1\.0: must be finite and at least 0\. gap",
        ),
        (
            lambda: rates.bound(1, 1.0, **CASE_1),
            r"gradients = None: is needed if delta is infinite\. Give",
        ),
        (
            lambda: rates.bound(1, 1.0, **CASE_1, delta=-1.0),
            r"delta = -1\.0: must be at least 0\. theory\.heterog",
        ),
        (lambda: printed.bound(1, 1.0, L=1.0, eta=0.1, p=0.0, epsilon_1=-1), r"epsilon_1 = -1: must be .*exact solve"),
        (
            lambda: rates.bound(1, 1.0, **CASE_1 | {"p": 0.1}, gradients=1.0),
            r"delta = None: is needed if p = 0\.1 is ab",
        ),
        (lambda: printed.bound(1, 1.0, **CASE_1 | {"p": 0.1}), r"delta = None: is needed if p = 0\.1 is above 0"),
        (lambda: rates.rounds_for(0.0, 1.0, L=1.0, eta=0.1), r"epsilon = 0\.0: must be positive .*target"),
        (
            lambda: rates.local_iterations(1e-3, 1.0, 1.0, 1.0),
            r"L \* eta = 1\.0: must be below 1\. Lower eta: L_i is strongly",
        ),
        (lambda: printed.linear_skip_probability(1.0, 1.0, 0.0), r"eta = 0\.0: must be positive"),
    ],
)
def test_rates_refuse(call: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        call()


@pytest.mark.parametrize("bound", [rates.bound, rates.terms, printed.bound])
@pytest.mark.parametrize("name", ["p", "epsilon_1", "L", "eta"])
def test_a_forgotten_argument_has_no_silent_value(bound: Any, name: str) -> None:
    """Without p, the bound would be that of a run in which every round communicates."""
    with pytest.raises(TypeError, match=f"missing a required argument: '{name}'"):
        bound(1, 1.0, **{key: value for key, value in CASE_1.items() if key != name})
    with pytest.raises(TypeError, match="unexpected keyword argument 'skip'"):
        bound(1, 1.0, **CASE_1, skip=0.5)
