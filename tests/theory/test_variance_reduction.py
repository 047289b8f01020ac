"""Theorem 3: the bound against runs, the conditions on eta and gamma, the printed constants against counterexamples."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, Problem, algorithms, oracles, problems, simulate
from fedpd.theory import variance_reduction as vr

counts = st.integers(1, 10**4)
schedules = st.tuples(counts, counts, st.none() | counts)
shares = st.floats(1e-3, 0.999999)


# --- constants by hand ------------------------------------------------------------------------------------------------


def test_max_eta_by_hand() -> None:
    assert vr.max_eta(2.0, 8, 20, 10) == pytest.approx(1 / (3 * 12 * 2))
    assert vr.max_eta(2.0, 8, 20, None) == pytest.approx(1 / (3 * 8 * 2))


def test_constants_by_hand() -> None:
    # L = 2, eta = 1/40, gamma = 1, Q = 1, I = 5, B = 4: s = 1, k = 2 (1 + 1/2) + 2 = 5
    c_10 = 20 + 1 - 1 - 2 - 25 / 40
    c_12 = c_10 - (9 + 1) / 40 / (2 * 0.95)
    J = 1.05 * 5 + 3 + math.sqrt(5)
    start = (1 + 2 * 25 / 40 / c_12 + 1.05**2 / 2) / 40
    wanted = (2 * J**2 / c_12 + 160, c_10, c_12, start)
    assert tuple(vr.constants(2.0, 1 / 40, 1.0, 1, 5, 4)) == pytest.approx(wanted, rel=1e-12)


def test_printed_constants_by_hand() -> None:
    # L = 2, eta = 1/40, gamma = 1, Q = 1, I = 5, B = 4
    c_10 = 20 + 1 - 2 - 6 / 40 - 9 * 4 / 40 - (1 + 18 / 20) * 2 * 5 / 8
    c_12 = c_10 - (9 + 4) / (4 * 4 * 2)
    c_13 = 2 * 41**2 + 2 * 5 * (1 + 18 / 1600) * 4 / 4 + 3 * 2 * (1 + 9 / 20) / 1600 / 8 + 18 * 4 / 1600
    c_11 = min(c_12 / c_13, 10)
    wanted = (16 / c_11, c_10, c_11, c_12, c_13)
    assert tuple(vr.printed_constants(2.0, 1 / 40, 1.0, 1, 5, 4)) == pytest.approx(wanted, rel=1e-12)
    assert vr.printed_bound(10, 3.0, L=2.0, eta=1 / 40, gamma=1.0, iterations=1, refresh=5, batch=4) == pytest.approx(
        4.8 / c_11
    )


# --- the conditions on eta and gamma ----------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=200)
@given(schedule=schedules, share=shares, L=st.floats(1e-3, 1e3))
def test_eta_as_printed_and_gamma_of_13_eta_are_always_enough(schedule: Any, share: float, L: float) -> None:
    eta = share * vr.max_eta(L, *schedule)
    assert vr.min_gamma(L, eta, *schedule) < vr.SAFE_GAMMA * eta
    for gamma in (vr.SAFE_GAMMA * eta, math.inf):
        assert 0 < vr.constants(L, eta, gamma, *schedule).C_12 < vr.constants(L, eta, gamma, *schedule).C_10


@settings(deadline=None, derandomize=True, max_examples=50)
@given(schedule=schedules, share=shares)
def test_min_gamma_is_where_c_12_vanishes(schedule: Any, share: float) -> None:
    eta = share * vr.max_eta(1.0, *schedule)
    gamma = vr.min_gamma(1.0, eta, *schedule)
    assert eta * vr.constants(1.0, eta, gamma * (1 + 1e-6), *schedule).C_12 == pytest.approx(0, abs=1e-4)
    with pytest.raises(FedpdError, match=r"gamma = .*: must be above .*\. Theorem 3 needs gamma > .*13 eta is always"):
        vr.constants(1.0, eta, gamma * (1 - 1e-6), *schedule)


def test_printed_condition_on_gamma_does_not_make_the_printed_constants_positive() -> None:
    schedule, L = (1, 1, 100), 1.0
    eta = 0.5 * vr.max_eta(L, *schedule)
    gamma = eta
    assert gamma > 5 * eta / (schedule[2] * math.sqrt(L))
    assert vr.printed_constants(L, eta, gamma, *schedule).C_10 < 0
    assert math.isinf(vr.printed_constants(L, eta, gamma, *schedule).C_9)


def test_printed_condition_on_eta_does_not_make_the_printed_constants_positive() -> None:
    """The variance enters it as L Q I/B, where eta allows for L sqrt(Q I/B): so it enters the corrected one."""
    schedule, L = (1, 100, 1), 1.0
    eta = 0.99 * vr.max_eta(L, *schedule)
    assert vr.printed_constants(L, eta, math.inf, *schedule).C_10 < 0
    assert vr.constants(L, eta, math.inf, *schedule).C_12 > 0


@settings(deadline=None, derandomize=True, max_examples=50)
@given(schedule=schedules, share=shares, L=st.floats(0.01, 100), unit=st.floats(0.01, 100))
def test_the_bound_does_not_depend_on_units(schedule: Any, share: float, L: float, unit: float) -> None:
    names = dict(zip(("iterations", "refresh", "batch"), schedule, strict=True))
    eta = share * vr.max_eta(L, *schedule)
    here = vr.bound(7, 2.0, 3.0, L=L, eta=eta, gamma=20 * eta, **names)
    scaled: dict[str, Any] = {"L": L * unit**2, "eta": eta / unit**2, "gamma": 20 * eta / unit**2}
    assert vr.bound(7, 2.0, 3.0 * unit**2, **scaled, **names) == pytest.approx(here * unit**2, rel=1e-9)


# --- the bound against runs -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    problem: Problem
    gap: float
    L: float  # of the samples, root mean square over an agent's
    gradients: float


def least_squares() -> Case:
    """F(x; (a, b)) = (a x - b)^2/2: E||h(x) - h(y)||^2 = (x-y)^T E[||a||^2 a a^T] (x-y)."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 6, 3)), rng.standard_normal((4, 6)) + np.arange(4)[:, None]
    problem = problems.from_losses(lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2 / 2, {"a": a, "b": b}, np.zeros(3))
    fourth = np.einsum("nk,nki,nkj->nij", np.sum(a**2, -1), a, a) / 6
    best = np.linalg.lstsq(a.reshape(-1, 3), b.ravel())[0]
    gradients = np.einsum("nki,nk->ni", a, -b) / 6
    gap = np.mean(b**2) / 2 - np.mean((a @ best - b) ** 2) / 2
    return Case(
        problem, float(gap), float(np.sqrt(np.linalg.eigvalsh(fourth).max())), float(np.sum(gradients**2, 1).mean())
    )


def logistic() -> Case:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 5, 4)), np.where(rng.standard_normal((3, 5)) > 0, 1.0, -1.0)
    L = np.sum(a**2, -1).max() / 4 + 0.2
    gradients = np.einsum("nki,nk->ni", a, -b / 2) / 5  # at x = 0, where the penalty is flat
    return Case(problems.penalized_logistic(a, b), math.log(2), float(L), float(np.sum(gradients**2, 1).mean()))


@pytest.mark.parametrize(
    ("make", "schedule", "share", "ratio"),
    [
        (least_squares, (2, 3, 1), 0.99, math.inf),
        (least_squares, (3, 2, 2), 0.5, 5.0),
        (logistic, (1, 4, 1), 0.99, 13.0),
    ],
)
def test_theorem_3_holds(make: Any, schedule: tuple[int, int, int | None], share: float, ratio: float) -> None:
    problem, gap, L, gradients = make()
    eta = share * vr.max_eta(L, *schedule)
    gamma = ratio * eta
    oracle = oracles.vr(gamma, *schedule)
    history = simulate(algorithms.fedpd(eta=eta, oracle=oracle), problem, rounds=30, seed=range(8)).mean
    names = dict(zip(("iterations", "refresh", "batch"), schedule, strict=True))
    measured = np.cumsum(history["stationarity"][:-1]) / np.arange(1, 31)
    proved = [vr.bound(T, gap, gradients, L=L, eta=eta, gamma=gamma, **names) for T in range(1, 31)]  # type: ignore[arg-type]
    assert (measured <= proved).all()


def test_printed_theorem_3_fails_from_a_minimiser() -> None:
    """D_0 = 0 makes its right-hand side 0, but the first round moves away: lambda^0 = 0, and curvatures differ."""
    problem = problems.quadratic(np.array([[[1.0]], [[0.2]]]), np.array([[1.0], [-1.0]]))
    settings: dict[str, Any] = {"L": 1.0, "eta": 0.3, "gamma": 30.0, "iterations": 1, "refresh": 1, "batch": None}
    run = simulate(algorithms.fedpd(eta=0.3, oracle=oracles.vr(30.0, 1, 1, None)), problem, rounds=5)
    assert run.history["stationarity"][0] == 0
    left = run.history["stationarity"].sum() / 5  # r = 0, ..., T
    assert left > 1e-6 > vr.printed_bound(5, 0.0, **settings)
    assert left <= vr.bound(5, 0.0, 1.0, **settings)


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "rounds"), [((2, 3, 1), 7), ((2, 3, None), 6)])
def test_sample_gradients_are_as_simulated(schedule: tuple[int, int, int | None], rounds: int) -> None:
    problem = least_squares().problem
    oracle = oracles.vr(1.0, *schedule)
    history = simulate(algorithms.fedpd(eta=0.01, oracle=oracle), problem, rounds=rounds).history
    counted = [vr.sample_gradients(T, problem.samples, problem.agents, *schedule) for T in range(rounds + 1)]
    assert history["samples"].tolist() == counted


def test_the_paper_s_schedule() -> None:
    assert vr.schedule(40_000, 10, 2) == (2, 200, 10)
    assert vr.schedule(40_000, 100, 8) == (8, 200, 1)  # I/(Q N) = 1/4
    assert vr.schedule(1, 1, 1) == (1, 1, 1)


def test_rounds_grow_with_q_and_sqrt_n_under_the_paper_s_schedule() -> None:
    """The remark's "T = O(1/epsilon), independent of Q" hides it in the constant: C_9 is of the order of 1/eta."""
    M = 10**8

    def c_9(agents: int, iterations: int) -> float:
        plan = vr.schedule(M, agents, iterations)
        eta = 0.9 * vr.max_eta(1.0, *plan)
        return vr.constants(1.0, eta, math.inf, *plan).C_9

    assert c_9(4, 16) / c_9(4, 4) == pytest.approx(4, rel=0.25)
    assert c_9(400, 4) / c_9(4, 4) == pytest.approx(21 / 3, rel=0.25)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: vr.max_eta(0.0, 1, 1, 1), r"L = 0\.0: must be positive and finite\. L is the smoothness"),
        (lambda: vr.max_eta(1.0, 0, 1, 1), r"iterations = 0: must be an integer of at least 1\. iterations is Q"),
        (lambda: vr.max_eta(1.0, 1, 0, 1), r"refresh = 0: must be an integer of at least 1\. refresh is I"),
        (lambda: vr.max_eta(1.0, 1, 1, 0), r"batch = 0: must be an integer of at least 1\. batch is B"),
        (lambda: vr.min_gamma(1.0, 0.2, 1, 1, 1), r"eta = 0\.2: must be below 0\.166667\. Theorem 3 needs eta <"),
        (
            lambda: vr.constants(1.0, 0.1, 0.1, 1, 1, 1),
            r"gamma = 0\.1: must be above 0\.\d+\. Theorem 3 needs gamma",
        ),
        (lambda: vr.constants(1.0, 0.1, -1.0, 1, 1, 1), r"gamma = -1\.0: must be positive"),
        (lambda: vr.schedule(0, 1, 1), r"samples = 0: must be an integer of at least 1\. samples is M"),
        (lambda: vr.sample_gradients(-1, 1, 1, 1, 1, 1), r"T = -1: must be an integer of at least 0\. T is"),
    ],
)
def test_variance_reduction_refuses(call: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        call()
