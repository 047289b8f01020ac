"""Skipped rounds on quadratics: the linear maps against runs, and the closed forms for equal Hessians."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, Problem, Run, algorithms, oracles, problems, simulate
from fedpd.theory import skipping
from fedpd.theory.skipping import (
    best_equal_stretch,
    best_stretch,
    contraction,
    effective_eta,
    equal_contraction,
    factors,
    fewest_communications,
    free_mean_map,
    longest_winning_stretch,
    mean_square_contraction,
    paper_floor,
    rate_per_round,
    relative_communications,
    small_eta_floor,
    stretch_map,
    typical_contraction,
)

MENDED: tuple[skipping.Drift, ...] = ("corrected", "corrected-exact")
UNKNOWN: Any = "exact"  # no rule has this name
few = settings(derandomize=True, deadline=None, max_examples=25)
steps = st.floats(0.01, 20)
curvatures = st.floats(0.05, 1)
lengths = st.integers(1, 40)


def quadratics(share: float) -> Problem:
    """Three agents with eigenvalues in [0.3, 1] and solutions of their own; share 0: with equal Hessians."""
    problem = problems.random_quadratic(3, 2, convexity=0.3, heterogeneity=share or 1.0, seed=4)
    hessians, linear = parts(problem)
    return problem if share else problems.quadratic(np.stack([hessians[0]] * 3), linear)


def parts(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    data: Any = problem.data
    return np.asarray(data["hessian"])[:, 0], np.asarray(data["linear"])[:, 0]


def run(problem: Problem, eta: float, drift: Any, p: Any, rounds: int) -> Run:
    """Local problems solved to rounding; their curvature is in 1/eta + [0.3, 1]."""
    oracle = oracles.gd(step=1 / (0.65 + 1 / eta), iterations=60)
    return simulate(algorithms.fedpd(eta=eta, oracle=oracle, p=p, drift=drift), problem, rounds=rounds)


def every(k: int) -> Any:
    return lambda r: 1.0 * ((r + 1) % k != 0)


def measured(errors: np.ndarray) -> float:
    """The factor of the error per communication, fitted where the start is forgotten and rounding is not yet felt."""
    logs = np.log(errors)
    (use,) = np.nonzero((logs < logs[0] - 7) & (logs > math.log(3e-13)))
    return math.exp(np.polyfit(use, logs[use], 1)[0])


@pytest.mark.parametrize("drift", MENDED)
@pytest.mark.parametrize(
    ("share", "eta", "k"), [(0.0, 0.4, 2), (0.0, 1.5, 2), (0.5, 0.2, 6), (1.0, 0.1, 4), (1.0, 1.5, 2)]
)
def test_a_run_contracts_as_computed(share: float, eta: float, k: int, drift: skipping.Drift) -> None:
    """Differences between agents show in the consensus gap of the round after a communication, which is skipped."""
    problem = quadratics(share)
    hessians = parts(problem)[0]
    rho = contraction(hessians, eta, k, drift)
    communications = math.ceil(math.log(1e-14) / math.log(rho))
    history = run(problem, eta, drift, every(k), k * communications + 1).history
    server, gap = np.sqrt(history["stationarity"][k::k]), history["consensus"][k + 1 :: k]
    assert measured(server[: len(gap)] + gap) == pytest.approx(rho, rel=0.01)
    assert measured(server) == pytest.approx(contraction(hessians, eta, k, drift, of="server"), rel=0.01)


def test_the_server_does_not_see_differences_of_equal_hessians() -> None:
    hessians = np.stack([np.diag([0.3, 1.0])] * 3)
    assert contraction(hessians, 0.5, 6) == pytest.approx(1 - 1.5**-6)
    assert contraction(hessians, 0.5, 6, of="server") == pytest.approx(1.15**-6)


@pytest.mark.parametrize("drift", MENDED)
@pytest.mark.parametrize(("share", "eta", "k"), [(0.0, 0.8, 2), (1.0, 0.5, 4)])
def test_a_run_follows_the_map(share: float, eta: float, k: int, drift: skipping.Drift) -> None:
    """State for state: from one communication to the next."""
    problem = quadratics(share)
    states = []
    for communications in (3, 4):
        agents = run(problem, eta, drift, every(k), k * communications).agents
        state = (agents.x.tree - problem.answer.minimiser).reshape(-1)
        states.append(np.concatenate([state, eta * agents.mean.tree[0]]) if drift == "corrected" else state)
    np.testing.assert_allclose(stretch_map(parts(problem)[0], eta, k, drift) @ states[0], states[1], atol=1e-13)


@pytest.mark.parametrize(("eta", "k"), [(0.1, 4), (1.5, 3)])
def test_the_floor_of_algorithm_2_is_where_runs_end(eta: float, k: int) -> None:
    problem = quadratics(1.0)
    floor = paper_floor(*parts(problem), eta, k)
    rho = contraction(parts(problem)[0], eta, k, "paper")
    last = run(problem, eta, "paper", every(k), k * math.ceil(math.log(1e-11) / math.log(rho)))
    np.testing.assert_allclose(last.model - problem.answer.minimiser, floor.offset, atol=1e-9)
    assert last.history["stationarity"][-1] == pytest.approx(floor.stationarity, rel=1e-6)
    assert floor.stationarity > 1e-5


@pytest.mark.slow
def test_the_floor_is_linear_in_eta_and_k_minus_1() -> None:
    hessians, linear = parts(quadratics(1.0))
    for k in (2, 5):
        errors = []
        for eta in (1e-3, 1e-4):
            near = small_eta_floor(hessians, linear, eta, k)
            errors.append(np.abs(paper_floor(hessians, linear, eta, k).offset / near.offset - 1).max())
        assert errors[0] < 0.03
        assert errors[1] < errors[0] / 8


def test_no_floor_without_skipping_or_with_equal_hessians() -> None:
    hessians, linear = parts(quadratics(1.0))
    assert paper_floor(hessians, linear, 0.5, 1).stationarity < 1e-28
    same = np.stack([hessians[0]] * 3)
    assert paper_floor(same, linear, 0.5, 6).stationarity < 1e-28


@few
@given(h=curvatures, ratio=st.floats(1, 10), eta=steps, k=lengths)
def test_equal_hessians_have_the_closed_form(h: float, ratio: float, eta: float, k: int) -> None:
    L = h * ratio
    hessians = np.stack([np.diag([h, (h + L) / 2, L])] * 3)
    assert contraction(hessians, eta, k) == pytest.approx(equal_contraction(h, L, eta, k), rel=1e-9)
    free = contraction(hessians, eta, k, "corrected")
    if k > 1:
        modes = [np.abs(np.linalg.eigvals(free_mean_map(one, eta, k))).max() for one in (h, (h + L) / 2, L)]
        assert free == pytest.approx(max(*modes, factors(L, eta, k).difference), rel=1e-6)
    else:
        assert free == pytest.approx(equal_contraction(h, L, eta, 1), rel=1e-9)
    # Algorithm 2: eigenvalues q and eta h q, and no floor at the mean
    paper = max(max(1, eta * one) * factors(one, eta, k).mean for one in (h, (h + L) / 2, L))
    assert contraction(hessians, eta, k, "paper") == pytest.approx(paper, rel=1e-9, abs=1e-12)


@few
@given(a=st.floats(1e-4, 1e4), k=st.integers(2, 300))
def test_the_free_estimate_is_stable_for_equal_hessians(a: float, k: int) -> None:
    """The three conditions of the proof: 1 - t + det > 0, 1 + t + det > 0, det < 1."""
    matrix = free_mean_map(1.0, a, k)
    trace, determinant = float(np.trace(matrix)), float(np.linalg.det(matrix))
    q = (1 + a) ** -float(k)
    assert 1 - trace + determinant == pytest.approx(q * a * 2 * k / (k + 3), abs=1e-9)
    assert 1 + trace + determinant > 0
    assert determinant < 1


@few
@given(h=curvatures, eta=st.floats(0.01, 2), k=st.integers(1, 12))
def test_a_stretch_is_one_round_of_a_larger_eta(h: float, eta: float, k: int) -> None:
    assert factors(h, effective_eta(h, eta, k), 1) == pytest.approx(factors(h, eta, k), rel=1e-9)


@few
@given(mu=curvatures, ratio=st.floats(1, 10), eta=steps)
def test_the_best_stretch_is_the_best(mu: float, ratio: float, eta: float) -> None:
    L = mu * ratio
    best = best_equal_stretch(mu, L, eta)
    tried = [equal_contraction(mu, L, eta, k) for k in range(1, 2 * best.k + 3)]
    assert best.contraction == min(tried)
    wins = [k for k, rho in enumerate(tried, start=1) if rho < tried[0] * (1 - 1e-12)]
    longest = longest_winning_stretch(mu, L, eta)
    assert not wins or max(wins) <= longest
    if longest > 1:
        assert equal_contraction(mu, L, eta, longest) < tried[0]
    assert equal_contraction(mu, L, eta, longest + 1) >= tried[0] * (1 - 1e-12)


@few
@given(mu=curvatures, ratio=st.floats(1, 100), eta=steps, k=lengths)
def test_nothing_beats_the_best_eta_without_skipping(mu: float, ratio: float, eta: float, k: int) -> None:
    root = math.sqrt(ratio)
    assert equal_contraction(mu, mu * ratio, 1 / (mu * root), 1) == pytest.approx(root / (1 + root), rel=1e-12)
    assert equal_contraction(mu, mu * ratio, eta, k) >= root / (1 + root) * (1 - 1e-12)


def test_half_is_the_best_of_a_single_curvature() -> None:
    best = best_equal_stretch(1.0, 1.0, 1e-3)
    assert best.k in (693, 694)
    assert 0.5 <= best.contraction < 0.5003
    assert best_equal_stretch(1.0, 1.0, 1.0) == (1, 0.5)


@pytest.mark.parametrize(("eta", "accuracy"), [(0.1, 1e-2), (0.5, 1e-2), (1.0, 0.05), (3.0, 0.05)])
def test_no_schedule_has_fewer_communications(eta: float, accuracy: float) -> None:
    """All sequences of stretches with one communication less, and as many rounds as the mean needs, fail."""
    mu, L = 0.4, 1.0
    plan = fewest_communications(mu, L, eta, accuracy)

    def left(stretches: tuple[int, ...]) -> float:
        mean = math.prod(factors(mu, eta, k).mean for k in stretches)
        return max(mean, math.prod(factors(L, eta, k).difference for k in stretches))

    assert left((plan.long,) + (1,) * (plan.communications - 1)) <= accuracy * (1 + 1e-12)
    fewer = plan.communications - 1
    candidates = itertools.combinations_with_replacement(range(1, plan.rounds + 3), min(fewer, 3))
    assert all(left((1,) * (fewer - 3) + one) > accuracy for one in candidates)


def test_few_communications_where_eta_is_small() -> None:
    assert fewest_communications(0.1, 1.0, 0.02, 1e-5) == (4, 5763, 5760)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.8])
def test_random_stretches_by_summation(p: float) -> None:
    mu, L, eta = 0.2, 1.0, 0.7
    chances = {k: (1 - p) * p ** (k - 1) for k in range(1, 400)}
    squares = [sum(c * factors(h, eta, k)[mode] ** 2 for k, c in chances.items()) for mode, h in enumerate((mu, L))]
    assert mean_square_contraction(mu, L, eta, p) == pytest.approx(math.sqrt(max(squares)), rel=1e-9)
    logs = [sum(c * math.log(factors(h, eta, k)[mode]) for k, c in chances.items()) for mode, h in enumerate((mu, L))]
    assert typical_contraction(mu, L, eta, p) == pytest.approx(math.exp(max(logs)), rel=1e-9)
    assert typical_contraction(mu, L, eta, p) <= mean_square_contraction(mu, L, eta, p) * (1 + 1e-12)


def test_a_coin_is_not_worse_than_a_fixed_stretch_of_its_mean() -> None:
    for k, eta in itertools.product((2, 4, 16), (0.05, 0.5, 2.0)):
        fixed = equal_contraction(0.2, 1.0, eta, k)
        assert typical_contraction(0.2, 1.0, eta, 1 - 1 / k) <= fixed * (1 + 1e-12)


def test_a_run_with_a_coin_multiplies_the_factors_of_its_stretches() -> None:
    """Equal Hessians h = 1: mean and differences after any sequence of stretches, from the second communication on."""
    linear, eta = np.array([[1.0], [-3.0], [4.0]]), 0.3
    problem = problems.quadratic(np.ones((3, 1, 1)), linear)
    early, late = (run(problem, eta, "corrected-exact", 0.6, rounds) for rounds in (8, 30))

    def errors(one: Run) -> np.ndarray:
        """At the last communication, where lambda_i = c_i - x_i."""
        u = (linear - one.agents.sent.tree - problem.answer.minimiser)[:, 0]
        return np.concatenate([[u.mean()], u - u.mean()])

    (ends,) = np.nonzero(late.history["communicated"])
    stretches = np.diff(ends[ends >= ends[ends <= 8][-1]]).tolist()
    assert len(set(stretches)) > 1
    mean, difference = (math.prod(factors(1.0, eta, k)[mode] for k in stretches) for mode in (0, 1))
    np.testing.assert_allclose(errors(late), errors(early) * np.array([mean, *[difference] * 3]), atol=1e-14)


@pytest.mark.parametrize("drift", MENDED)
def test_small_eta_saves_k_fold_whatever_the_hessians(drift: skipping.Drift) -> None:
    hessians = parts(quadratics(1.0))[0]
    least = np.linalg.eigvalsh(hessians.mean(0))[0]
    for k in (2, 8):
        assert contraction(hessians, 1e-5, k, drift) == pytest.approx(1 - k * 1e-5 * least, abs=1e-3 * k * 1e-5)
        assert relative_communications(hessians, 1e-5, k, drift) == pytest.approx(1 / k, rel=1e-3)


@pytest.mark.parametrize("drift", skipping.DRIFTS)
def test_no_convex_quadratic_is_known_to_diverge(drift: skipping.Drift) -> None:
    """Evidence, not a proof: Hessians with eigenvalues over four decades."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        bases = np.linalg.qr(rng.standard_normal((3, 2, 2)))[0]
        hessians = (bases * 10 ** rng.uniform(-2, 2, (3, 1, 2))) @ bases.swapaxes(1, 2)
        hessians = (hessians + hessians.swapaxes(1, 2)) / 2
        assert contraction(hessians, 10 ** rng.uniform(-2, 1), int(rng.integers(1, 20)), drift) < 1 + 1e-9


def test_the_best_stretch_of_any_hessians_and_the_rate_per_round() -> None:
    hessians = parts(quadratics(1.0))[0]
    best = best_stretch(hessians, 0.1, longest=20)
    assert best.contraction == min(contraction(hessians, 0.1, k) for k in range(1, 21))
    assert 1 < best.k < 20
    assert rate_per_round(hessians, 0.1, 4) ** 4 == pytest.approx(contraction(hessians, 0.1, 4))


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda: contraction(np.eye(2), 1.0, 1), "must have shape \\(N, d, d\\)"),
        (lambda: contraction(-np.eye(2)[None], 1.0, 1), "no negative eigenvalue"),
        (lambda: contraction(np.array([[[1.0, 1.0], [0.0, 1.0]]]), 1.0, 1), "must be symmetric"),
        (lambda: contraction(np.eye(2)[None], 1.0, 0), "k = 0: must be an integer of at least 1"),
        (lambda: contraction(np.eye(2)[None], 1.0, 1, UNKNOWN), "there is no such choice"),
        (lambda: paper_floor(np.zeros((2, 1, 1)), np.zeros((2, 1)), 1.0, 1), "must be positive definite"),
        (lambda: paper_floor(np.ones((2, 1, 1)), np.zeros(2), 1.0, 1), "linear = \\(2,\\): must have shape"),
        (lambda: equal_contraction(1.0, 0.5, 1.0, 1), "L = 0.5: must be finite and at least 1"),
        (lambda: mean_square_contraction(1.0, 1.0, 1.0, 1.0), "p = 1.0: must be below 1"),
        (lambda: fewest_communications(1.0, 1.0, 1.0, 1.5), "accuracy = 1.5: must be below 1"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        call()
