"""Claims 2.2, D.1 and D.2: where FedAvg diverges, and what bounded gradients save."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, algorithms, oracles, problems, simulate
from fedpd.base.precision import scope
from fedpd.core import Array, Problem, Tree
from fedpd.engine.run import Run
from fedpd.theory.fedavg import fedavg_bound

PROPERTY = settings(derandomize=True, max_examples=100, deadline=None)
RUNS = settings(PROPERTY, max_examples=3)
Step = Callable[[Any, Any], Any]


def fedavg(problem: Problem, step: float | Step, iterations: int, rounds: int) -> Run:
    return simulate(algorithms.fedavg(oracle=oracles.gd(step, iterations)), problem, rounds=rounds)


def growth(steps: np.ndarray) -> np.ndarray:
    """What a round multiplies x by where f_i = +-x^2/2: (prod_q (1 + eta_q) + prod_q (1 - eta_q))/2; steps (..., Q)."""
    return (np.prod(1 + steps, axis=-1) + np.prod(1 - steps, axis=-1)) / 2


# Claim 2.2: a constant step.


@PROPERTY
@given(eta=st.floats(1e-3, 5), iterations=st.integers(2, 15))
def test_every_step_and_every_q_over_1_grow(eta: float, iterations: int) -> None:
    D, ones = np.diag([1 - eta, 1 + eta]), np.ones((2, 2))
    eigenvalues = np.linalg.eigvals(np.linalg.matrix_power(D, iterations - 1) @ ones @ D / 2)
    factor = growth(np.full(iterations, eta))
    np.testing.assert_allclose(np.sort(np.abs(eigenvalues)) / factor, [0, 1], rtol=1e-9, atol=1e-9)
    assert factor >= (1 + iterations * (iterations - 1) / 2 * eta**2) * (1 - 1e-12)  # > 1


@RUNS
@given(eta=st.floats(1e-2, 2), iterations=st.integers(2, 9))
def test_fedavg_grows_at_the_predicted_rate(eta: float, iterations: int) -> None:
    run = fedavg(problems.opposing_quadratics(), eta, iterations, rounds=5)
    np.testing.assert_allclose(run.model, growth(np.full(iterations, eta)) ** 5, rtol=1e-12)


def test_one_local_step_stays_where_it_is() -> None:
    run = fedavg(problems.opposing_quadratics(start=3.0), 0.7, 1, rounds=50)
    np.testing.assert_allclose(run.model, 3.0, rtol=1e-13)


def test_sgd_on_samples_that_are_equal_is_gd() -> None:
    signs = np.array([[1.0, 1.0], [-1.0, -1.0]])  # each agent has its function twice
    problem = problems.from_losses(lambda x, sign: sign * x[0] ** 2 / 2, signs, np.ones(1))
    run = simulate(algorithms.fedavg(oracle=oracles.sgd(0.5, 3)), problem, rounds=4)
    np.testing.assert_allclose(run.model, growth(np.full(3, 0.5)) ** 4, rtol=1e-13)


def test_the_gradient_diverges_too_on_a_problem_with_a_minimum() -> None:
    """On the paper's f = 0 every point is stationary. f = mu x^2/4, mu = (Q-1) eta/2, has one, and FedAvg flees it."""
    eta, iterations = 0.05, 6
    mu = (iterations - 1) * eta / 2
    problem = problems.quadratic(np.array([[[1 + mu]], [[-1.0]]]), np.zeros((2, 1)), start=np.ones(1))
    run = fedavg(problem, eta, iterations, rounds=200)
    factor = ((1 - (1 + mu) * eta) ** iterations + (1 + eta) ** iterations) / 2
    assert factor >= 1 + iterations * (iterations - 1) * eta**2 / 4
    assert problem.answer.minimiser == 0
    expected = (mu / 2) ** 2 * factor ** (2.0 * np.arange(201))
    np.testing.assert_allclose(run.history["stationarity"], expected, rtol=1e-10)


# Claim D.1: bounded gradients. f_i(x) = L_i w^2 log cosh((x - b_i)/w) has |f_i'| <= L_i w and 0 <= f_i'' <= L_i.


def bounded(centres: np.ndarray, smoothness: np.ndarray, width: float, start: float) -> Problem:
    data = {"centre": centres[:, None], "smoothness": smoothness[:, None], "width": np.full((len(centres), 1), width)}
    return problems.from_losses(_log_cosh, data, np.array(start))


def _log_cosh(x: Array, sample: Tree) -> Array:
    z = (x - sample["centre"]) / sample["width"]
    return sample["smoothness"] * sample["width"] ** 2 * (jnp.logaddexp(z, -z) - math.log(2))


def diminishing(L: float, iterations: int, share: float) -> Step:
    """eta^{r,0} = share/L, and the largest eta^{r,q} that Claim D.1 allows, over sqrt(r+1)."""
    later = min(1 / (2 * (iterations - 1) * L), share / L / iterations)
    return lambda r, q: jnp.where(q == 0, share / L, later / jnp.sqrt(r + 1.0))


def table(step: Step, rounds: int, iterations: int) -> np.ndarray:
    """(T, Q): eta^{r,q}."""
    with scope(True):
        return np.asarray(step(jnp.arange(rounds)[:, None], jnp.arange(iterations)))


@RUNS
@given(iterations=st.integers(2, 6), share=st.floats(0.1, 0.9), L=st.floats(0.1, 30), seed=st.integers(0, 99))
def test_the_corrected_claim_d_1_holds_round_by_round(iterations: int, share: float, L: float, seed: int) -> None:
    rng, rounds, width = np.random.default_rng(seed), 40, 0.5
    problem = bounded(rng.normal(0, 2, 3), L * np.array([1.0, 0.5, 0.1]), width, start=4.0)
    step = diminishing(L, iterations, share)
    history = fedavg(problem, step, iterations, rounds).history
    steps = table(step, rounds, iterations)
    first, later, moved = steps[:, 0], steps[:, 1:], np.cumsum(steps, axis=1)[:, :-1]
    drift = (L * L * width) ** 2 / 2 * (later * moved**2).sum(1)  # G = L width
    descent = (first * (1 - L * first) + later.sum(1) / 2) * history["stationarity"][:-1]
    assert (np.diff(history["loss"]) <= -descent + drift + 1e-12 * history["loss"][0]).all()  # Lemma D.1
    gap = history["loss"][0]  # the f_i are at least 0
    bound = fedavg_bound(step, rounds=rounds, iterations=iterations, L=L, G=L * width, gap=gap)
    assert history["stationarity"][:-1].mean() <= bound
    c_1, eta = share / L * (1 - share), share / L
    closed = (gap + 2 * (L * L * width * eta) ** 2 * later.sum()) / (c_1 * rounds)
    assert bound <= closed


def test_diminishing_steps_converge() -> None:
    L, iterations = 2.0, 4
    problem = bounded(np.array([-1.0, 3.0]), L * np.array([1.0, 0.2]), 1.0, start=6.0)
    diminished = fedavg(problem, diminishing(L, iterations, 0.5), iterations, rounds=2000).history["stationarity"]
    kept = fedavg(problem, 0.5 / L / iterations, iterations, rounds=2000).history["stationarity"]
    assert diminished[-1] < 1e-2 * kept[-1]  # a constant step stays off
    bounds = [
        fedavg_bound(diminishing(L, iterations, 0.5), rounds=rounds, iterations=iterations, L=L, G=L, gap=10.0)
        for rounds in (10**2, 10**4)
    ]
    assert bounds[1] < bounds[0] / 9  # as 1/sqrt(T)


def test_the_printed_claim_d_1_fails_where_l_squared_exceeds_q() -> None:
    """Without L^2 the drift's part of the bound has other units than the gradient, and shrinks as x is rescaled."""
    L, iterations, rounds, eta = 1000.0, 2, 300, 0.0005
    smoothness = L * np.array([1.0, 0.2])
    low, high = -1.0, 3.0  # start at the minimiser of f: nothing is left to gain
    for _ in range(60):
        middle = (low + high) / 2
        rising = smoothness @ np.tanh(middle - np.array([-1.0, 3.0])) > 0
        low, high = (low, middle) if rising else (middle, high)
    problem, gap = bounded(np.array([-1.0, 3.0]), smoothness, width=1.0, start=low), 1e-9

    def step(r: Any, q: Any) -> Any:  # as large as is allowed for T rounds, and diminishing afterwards
        return jnp.where(q == 0, eta, eta / iterations / jnp.maximum(1.0, r - rounds))

    found = fedavg(problem, step, iterations, rounds).history["stationarity"][:-1].mean()
    drift = 2 * iterations * L**2 * eta**2 * rounds * eta / iterations  # 2 Q G^2 eta^2 times the sum of the later steps
    printed = (2 * gap + drift) / (eta * (1 - L * eta) * rounds)
    assert printed < found / 20
    assert found <= fedavg_bound(step, rounds=rounds, iterations=iterations, L=L, G=L, gap=gap)


def test_one_local_step_is_gradient_descent_and_its_bound() -> None:
    assert fedavg_bound(0.5, rounds=4, iterations=1, L=1.0, G=3.0, gap=2.0) == 2 / (0.25 * 4)


def test_the_bound_by_hand() -> None:
    # Q = 3, steps 1/2, 1/8, 1/8: drift 4/2 (1/8 (1/2)^2 + 1/8 (5/8)^2) a round, L = 1, G = 2, C_1 = 1/4
    drift = 2 * (0.03125 + 0.048828125)
    found = fedavg_bound(lambda r, q: jnp.where(q == 0, 0.5, 0.125), rounds=2, iterations=3, L=1.0, G=2.0, gap=1.0)
    assert found == pytest.approx((1 + 2 * drift) / (0.25 * 2), rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": 1.0}, r"step\(r, 0\) = 1\.0: must be below 1/L = 1\. Use a smaller first"),
        ({"step": 0.3}, r"step\(r, q\) = 0\.3: must be at most 1/\(2\(Q-1\)L\) = 0\.25 for q >= 1\. Use smaller"),
        ({"step": lambda r, q: 0.1 - 0.1 * r}, r"step = 0\.0: must be positive in every round"),
        ({"rounds": 0}, r"rounds = 0: must be an integer of at least 1"),
        ({"iterations": 0}, r"iterations = 0: must be an integer of at least 1"),
        ({"L": 0.0}, r"L = 0\.0: must be positive and finite"),
        ({"G": math.inf}, r"G = inf: must be positive and finite\. G bounds"),
        ({"gap": -1.0}, r"gap = -1\.0: must be finite and at least 0"),
    ],
)
def test_what_the_claim_excludes_is_refused(changes: dict[str, Any], sentence: str) -> None:
    chosen: dict[str, Any] = {"step": 0.1, "rounds": 2, "iterations": 3, "L": 1.0, "G": 1.0, "gap": 1.0} | changes
    with pytest.raises(FedpdError, match=sentence):
        fedavg_bound(chosen.pop("step"), **chosen)


# Claim D.2: the same steps without bounded gradients.


def printed_step(iterations: int) -> Step:
    """1/2 at the first local step of a round, kQ+1 in the paper's count, and 1/sqrt of the count at the others."""
    return lambda r, q: jnp.where(q == 0, 0.5, 1 / jnp.sqrt(iterations * r + q + 1.0))


@pytest.mark.parametrize("curvature", [1.0, 2.0])
def test_the_printed_steps_and_the_factor_of_a_round(curvature: float) -> None:
    """The printed recursion 1 -+ eta is that of +-x^2/2; for the printed f = +-x^2 it is 1 -+ 2 eta."""
    iterations, rounds = 3, 20
    problem = problems.quadratic(curvature * np.array([[[1.0]], [[-1.0]]]), np.zeros((2, 1)), start=np.ones(1))
    run = fedavg(problem, printed_step(iterations), iterations, rounds)
    factors = growth(curvature * table(printed_step(iterations), rounds, iterations))
    np.testing.assert_allclose(run.model, np.prod(factors), rtol=1e-12)
    assert (run.history["stationarity"] == 0).all()  # f = 0: x diverges, the gradient of f does not


def test_a_round_s_factor_is_not_the_printed_eigenvalue() -> None:
    """Rounds differ: y' = M_k y, M_k = u_k v_k^T of rank 1, and M_{k+1} M_k grows by v_{k+1}^T u_k, not v_k^T u_k."""
    iterations, k = 3, 2
    steps = table(printed_step(iterations), k + 1, iterations).ravel()  # those of 1, 2, ..., (k+1)Q in its count
    count = k * iterations
    eigenvalue = growth(steps[count - 1 : count + iterations - 1])  # the steps kQ, ..., (k+1)Q-1
    later = [1 / math.sqrt(r) for r in (count, *range(count + 2, count + iterations))]
    low, high = (math.prod(1 + sign * step for step in later) for sign in (-1, 1))
    assert eigenvalue == pytest.approx(low / 4 + 3 * high / 4, rel=1e-14)  # the printed lambda_2
    assert abs(growth(steps[count:]) / eigenvalue - 1) > 0.01


@pytest.mark.parametrize("L", [1.0, 2.0])
def test_the_printed_steps_break_the_conditions_of_claim_d_1(L: float) -> None:
    with pytest.raises(FedpdError, match=r"step\(r, [0q]\)"):  # 1/2 is 1/L for x^2; 1/sqrt(2) is over 1/(2L) for x^2/2
        fedavg_bound(printed_step(2), rounds=9, iterations=2, L=L, G=1.0, gap=0.0)


@pytest.mark.parametrize("iterations", [2, 5])
def test_steps_that_keep_them_diverge_too(iterations: int) -> None:
    step, rounds = diminishing(1.0, iterations, 0.5), 2000
    fedavg_bound(step, rounds=rounds, iterations=iterations, L=1.0, G=1.0, gap=0.0)  # not refused
    run = fedavg(problems.opposing_quadratics(), step, iterations, rounds)
    factors = growth(table(step, rounds, iterations))
    np.testing.assert_allclose(run.model, np.prod(factors), rtol=1e-10)
    assert run.model[0] > math.exp(0.5 * 0.5 / iterations * math.sqrt(rounds))  # sum_r eta eta^{r,1} has no end


def test_an_eigenvalue_over_1_in_every_round_is_not_yet_divergence() -> None:
    """Where the later steps have a finite sum, the product of the factors has a limit."""
    steps = np.stack([np.full(10**5, 0.5), 0.25 / np.arange(1, 10**5 + 1) ** 2], axis=1)
    factors = growth(steps)
    assert (factors > 1).all()
    assert np.prod(factors) < math.exp(0.5 * 0.25 * math.pi**2 / 6)
    run = fedavg(problems.opposing_quadratics(), lambda r, q: jnp.where(q == 0, 0.5, 0.25 / (r + 1.0) ** 2), 2, 300)
    np.testing.assert_allclose(run.model, np.prod(factors[:300]), rtol=1e-11)


def test_the_gradient_diverges_too_where_a_flat_direction_drags_another() -> None:
    """f = v^2/8 over (u, v): u is flat, grows, and pushes v through the H_i's off-diagonals, which cancel in f."""
    hessians = np.array([[[1.0, 0.5], [0.5, 0.25]], [[-1.0, -0.5], [-0.5, 0.25]]])
    problem = problems.quadratic(hessians, np.zeros((2, 2)), start=np.array([1.0, 0.0]))
    assert problem.answer.smoothness == pytest.approx(1.25)
    step = diminishing(1.25, 4, 0.5)
    fedavg_bound(step, rounds=1000, iterations=4, L=1.25, G=1.0, gap=0.0)  # the steps are allowed
    stationarity = fedavg(problem, step, 4, rounds=1000).history["stationarity"]
    assert stationarity[0] == 0
    assert stationarity[100] > 0.05
    assert stationarity[1000] > 1000
