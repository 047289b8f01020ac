"""The lemmas behind Theorem 1 along runs of Algorithm 2 itself: as corrected they hold, as printed some do not."""

from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import Oracle, Problem, algorithms, oracles, problems
from fedpd.core import Work
from fedpd.theory import max_eta, rates
from tests.theory.rounds_played import Path, below, gradients, lagrangians, play, spread, square, values, widest

# --- problems and oracles ---------------------------------------------------------------------------------------------


class Adversary(Oracle):
    """An oracle for one-dimensional quadratics that leaves grad L_i = +-sqrt(eps_1), as far off as it may be."""

    accuracy: float

    def solve(self, phi: Any, x: Vector, memory: None, r: Any, key: Any) -> tuple[Vector, None, Work]:
        hessian = phi.f.data["hessian"][0, 0, 0]
        error = jnp.sqrt(self.accuracy) * (-1.0) ** (r + phi.f.agent)
        right = error + phi.f.data["linear"][0] - phi.linear.tree
        return Vector(right / (hessian + phi.curvature)), None, Work(jnp.int32(1), jnp.int32(1))


def adversary(accuracy: float) -> Oracle:
    return Adversary(accuracy=accuracy)


def same_hessians(hessian: np.ndarray, agents: int = 3, delta: float = 1.0, seed: int = 0) -> Problem:
    """f_i = x^T H x/2 - c_i^T x, with finite delta."""
    rng = np.random.default_rng(seed)
    linear = rng.standard_normal((agents, len(hessian)))
    linear *= delta / np.linalg.norm(linear - linear.mean(0), axis=1).max()
    return problems.quadratic(np.broadcast_to(hessian, (agents, *hessian.shape)), linear, start=np.ones(len(hessian)))


def line(hessians: list[float], linear: list[float], start: float = 0.0) -> Problem:
    """f_i = h_i x^2/2 - c_i x."""
    return problems.quadratic(np.array(hessians)[:, None, None], np.array(linear)[:, None], start=np.array([start]))


def logistic() -> Problem:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3, 8, 4))
    labels = np.where(rng.standard_normal((3, 8)) + features[..., 0] * np.array([[1], [-1], [3]]) > 0, 1.0, -1.0)
    return problems.penalized_logistic(features, labels, start=np.full(4, 0.5))


SADDLE = same_hessians(np.diag([1.0, -1.0, 0.3]))  # the agents' disagreement grows along the second axis
CASES = {
    "different": (problems.random_quadratic(4, 3, seed=2), None),
    "saddle": (SADDLE, None),
    "opposing": (problems.opposing_quadratics(), None),
    "logistic": (logistic(), None),
    "adversary": (line([1.0, -0.5, 1.0], [1.0, -3.0, 0.5], 1.0), adversary),
    "adversary, equal": (line([-1.0, -1.0], [1.0, -1.0], 0.1), adversary),
    "adversary, convex": (line([0.5, 0.5], [1.0, -1.0], 0.1), adversary),
}
SKIPS = np.array([[0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 1, 0]], bool)


class Played(NamedTuple):
    problem: Problem
    L: float
    eta: float
    accuracy: float
    path: Path  # one run for each row of SKIPS


@lru_cache
def played(name: str, share: float, accuracy: float) -> Played:
    problem, make = CASES[name]
    L = problem.answer.smoothness
    assert L is not None
    eta = share * max_eta(L)
    oracle = make(accuracy) if make else oracles.gd(step=1 / (L + 1 / eta), iterations=200, tolerance=accuracy)
    return Played(problem, L, eta, accuracy, play(algorithms.fedpd(eta=eta, oracle=oracle, p=0.5), problem, SKIPS))


SETTINGS = [(name, 0.99, 1e-2) for name in CASES] + [("different", 0.3, 1e-6), ("adversary", 0.3, 1e-6)]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def run(request: pytest.FixtureRequest) -> Played:
    return played(*request.param)


def after_skip(skips: np.ndarray) -> np.ndarray:
    """Whether the round before was skipped: never at r = 0."""
    return np.concatenate([np.zeros_like(skips[..., :1]), skips[..., :-1]], -1)


# --- Theorem 1: what holds --------------------------------------------------------------------------------------------


def test_local_solves_leave_what_they_may(run: Played) -> None:
    errors = gradients(run.problem, run.path.x) + run.path.dual
    assert below(square(errors)[:, 1:], np.array(run.accuracy))


def test_descent_of_local_lagrangians(run: Played) -> None:
    """Lemma 6, as printed; also in round 0."""
    problem, L, eta, accuracy, path = run
    old = lagrangians(problem, eta, path.x, path.x0, path.dual)[:, :-1]
    new = lagrangians(problem, eta, path.x[:, 1:], path.plus, path.dual[:, 1:])
    dx, dual = square(np.diff(path.x, axis=1)), square(np.diff(path.dual, axis=1))
    change = -(1 - 2 * L * eta) / (2 * eta) * dx - square(path.plus - path.x0[:, :-1]) / (2 * eta) + eta * dual
    assert below(new - old, change + accuracy / (2 * L))


def test_steps_of_the_duals(run: Played) -> None:
    """The bound of ||lambda_i^r - lambda_i^{r-1}|| in the proof of Theorem 1, corrected: 8 eps_1, from round 1 on."""
    dx, dual = (square(np.diff(part, axis=1))[:, 1:] for part in (run.path.x, run.path.dual))
    assert below(dual, 2 * run.L**2 * dx + 8 * run.accuracy)


def test_mean_lagrangian_falls_but_for_communications_after_skips(run: Played) -> None:
    """Instead of the expected descent over a communication in the proof of Theorem 1."""
    problem, L, eta, accuracy, path = run
    a = L * eta
    mean = lagrangians(problem, eta, path.x, path.x0, path.dual).mean(-1)
    steps = (1 - 2 * a - 4 * a**2) / (2 * eta) * square(np.diff(path.x, axis=1)).mean(-1)
    steps += square(np.diff(path.x0.mean(2), axis=1)) / (2 * eta)
    rise = np.where(after_skip(SKIPS) & ~SKIPS, spread(path.plus) ** 2 / (2 * eta), 0)
    fall = (1 + 16 * a) / (2 * L) * accuracy - steps + rise
    assert below(np.diff(mean, axis=1)[:, 1:], fall[:, 1:])
    start = square(gradients(problem, path.x[:, 0])).mean(-1)
    first = (1 + 2 * a) * eta / (1 - a) ** 2 * (start + accuracy) + accuracy / (2 * L)
    assert below(mean[:, 1] - mean[:, 0], first)


def test_communication_raises_the_lagrangian_by_the_disagreement(run: Played) -> None:
    """Lemma 8, corrected: an identity, of x_{0,i}^{r+} and not of x_{0,i}^{r+1}."""
    problem, _, eta, _, path = run
    mean = np.broadcast_to(path.plus.mean(2, keepdims=True), path.plus.shape)
    x, dual, agents = path.x[:, 1:], path.dual[:, 1:], path.x.shape[2]
    rise = (lagrangians(problem, eta, x, mean, dual) - lagrangians(problem, eta, x, path.plus, dual)).mean(-1)
    np.testing.assert_allclose(rise, spread(path.plus) ** 2 / (2 * eta), rtol=1e-9, atol=1e-11)
    assert below(rise, (agents - 1) / (4 * agents * eta) * widest(path.plus) ** 2)


def test_objective_is_below_the_lagrangian(run: Played) -> None:
    """Lemma 9, corrected: 1/(2 N eta), and at x_0 = mean_i x_{0,i}."""
    problem, L, eta, accuracy, path = run
    mean = np.broadcast_to(path.x0.mean(2, keepdims=True), path.x0.shape)
    lagrangian = lagrangians(problem, eta, path.x, mean, path.dual).mean(-1)
    distance = square(path.x - mean).mean(-1)
    assert below(
        values(problem, mean).mean(-1), lagrangian - (1 - 2 * L * eta) / (2 * eta) * distance + accuracy / (2 * L)
    )


def test_gradient_of_the_objective(run: Played) -> None:
    """Instead of the bounds of grad L_i and of grad f in the proof of Theorem 1; also in round 0."""
    problem, L, eta, accuracy, path = run
    mean = np.broadcast_to(path.x0.mean(2, keepdims=True), path.x0.shape)[:, :-1]
    gradient = np.sqrt(square(gradients(problem, mean).mean(2)))
    dual = np.sqrt(square(np.diff(path.dual, axis=1)).mean(-1))
    step = np.sqrt(square(np.diff(path.x0.mean(2), axis=1)))
    assert below(gradient, (1 + L * eta) * dual + step / eta + np.sqrt(accuracy) + L * spread(path.x0[:, :-1]))


@pytest.mark.parametrize(("name", "m"), [("saddle", 1.0), ("adversary, equal", 1.0), ("adversary, convex", 0.0)])
@pytest.mark.parametrize(("share", "accuracy"), [(0.99, 1e-2), (0.3, 1e-6)])
def test_disagreement_in_a_round(name: str, m: float, share: float, accuracy: float) -> None:
    """Lemma 7, corrected: pathwise, by what happened the round before, with f_i + (m/2) x^2 convex."""
    problem, L, eta, _, path = played(name, share, accuracy)
    delta = problem.answer.heterogeneity
    assert delta is not None
    a, unit, x = L * eta, eta * (delta + np.sqrt(accuracy)), spread(path.x)
    after = np.where(after_skip(SKIPS), x[:, :-1] + unit, a * x[:, :-1] + 2 * unit) / (1 - m * eta)
    assert below(x[:, 1:], after)
    assert below(spread(path.plus), (1 + a) * x[:, 1:] + unit)


@pytest.mark.parametrize(("curvature", "share"), [(-1.0, 0.9), (-1.0, 0.3), (0.0, 0.9), (1.0, 0.9)])
def test_disagreement_in_expectation(curvature: float, share: float) -> None:
    """rates.disagreement bounds the root mean squares, here over all 2^9 sequences of coins."""
    accuracy = 1e-4
    problem = line([curvature] * 2, [1.0, -1.0], 0.1)
    eta, nonconvexity = share * max_eta(1.0), max(0.0, -curvature)
    coins = np.array(list(product([False, True], repeat=9)))
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(accuracy), p=0.5), problem, coins)
    for p in (0.05, 0.3, 0.6, 0.95):
        chance = np.prod(np.where(coins, p, 1 - p), -1)
        unit = eta * (1 + np.sqrt(accuracy))
        x, plus, skipped = (unit * bound for bound in rates.disagreement(p, 1.0, eta, nonconvexity))
        assert np.isfinite(x) == (p < rates.max_skip_probability(1.0, eta, nonconvexity))
        assert below(np.sqrt(chance @ spread(path.x) ** 2), np.array(x))
        assert below(np.sqrt(chance @ spread(path.plus) ** 2), np.array(plus))
        after = after_skip(coins) * spread(path.plus) ** 2
        assert below(np.sqrt(chance @ after / p), np.array(skipped))


# --- Theorem 1: what does not hold as printed -------------------------------------------------------------------------


def test_printed_dual_step_fails_with_4_epsilon() -> None:
    path = played("adversary, equal", 0.3, 1e-2).path
    dx, dual = (square(np.diff(part, axis=1))[0, 1:] for part in (path.x, path.dual))
    assert (dual > 2 * dx + 4e-2).any()


def test_printed_dual_step_fails_in_the_first_round() -> None:
    path = played("different", 0.3, 1e-6).path  # lambda^0 = 0 is not -grad f_i(x^0)
    dx, dual = (square(np.diff(part, axis=1))[:, 0] for part in (path.x, path.dual))
    assert (dual > 2 * dx + 8e-6).any()


def test_printed_err_fails_where_everyone_communicates() -> None:
    """Its right-hand side, max_ij ||x_{0,i}^{r+1} - x_{0,j}^{r+1}||^2, is 0 then."""
    problem, _, eta, _, path = played("different", 0.3, 1e-6)
    x, dual = path.x[0, 1:], path.dual[0, 1:]
    assert (widest(path.x0[0]) == 0).all()
    after = lagrangians(problem, eta, x, path.x0[0, 1:], dual).mean(-1)
    before = lagrangians(problem, eta, x, path.plus[0], dual).mean(-1)
    assert (before < after - 1e-3).any()


def test_printed_gradient_lemma_fails() -> None:
    problem = line([1.0, 1.0], [1.0, -1.0], 1.0)  # convex, of the largest curvature, solved exactly
    eta = 0.3 * max_eta(1.0)
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(0.0)), problem, SKIPS[:1])
    lagrangian = lagrangians(problem, eta, path.x, path.x0, path.dual).mean(-1)
    distance = square(path.x - path.x0).mean(-1)
    assert (values(problem, path.x0).mean(-1) > lagrangian - (1 - 2 * eta) / eta * distance + 1e-6).any()


def test_printed_propagation_fails_for_the_second_form_of_delta() -> None:
    """||grad f_i - grad f|| <= delta allows agents 2 delta apart: the two forms of Assumption 5 are not equivalent."""
    problem, eta = line([0.01, 0.01], [1.0, -1.0]), 1.0
    assert problem.answer.heterogeneity == 1
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(0.0), p=0.5), problem, np.array([True]))
    product = 0.01 * eta
    assert widest(path.x0)[1] > (3 + product) / (1 - product) * eta  # the lemma given a skip, from Delta^0 = 0
    assert widest(path.x0)[1] <= (3 + product) / (1 - product) * eta * 2


def test_printed_matrix_is_not_of_rank_1() -> None:
    p, a = 0.4, 0.2
    printed = np.array([[p * (1 + a), a * (1 - a)], [1, a]])
    corrected = np.array([[p * (1 + a), p * a * (1 + a)], [1, a]])
    assert np.linalg.matrix_rank(printed) == 2
    assert np.linalg.matrix_rank(corrected) == 1
    np.testing.assert_allclose(sorted(np.linalg.eigvals(corrected)), [0, a + p * (1 + a)], atol=1e-15)


def test_mean_square_is_above_the_squared_mean() -> None:
    """The proof of Theorem 1 squares a bound of E Delta: a coin of probability p contributes sqrt(p), not p."""
    problem, p, eta = line([0.5, 0.5], [1.0, -1.0]), 0.1, 0.3
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(0.0), p=0.5), problem, np.array([[False], [True]]))
    gaps, chance, a = widest(path.x0)[:, 1], np.array([1 - p, p]), 0.5 * eta
    bound = p * eta * (3 + a) / (1 - a) * 2  # Lemma 7 from Delta^0 = 0, with delta = 2 between the agents
    assert chance @ gaps <= bound
    assert chance @ gaps**2 > bound**2


def test_printed_last_step_fails_where_l_is_small() -> None:
    """The last bound in the proof of Theorem 1 ends in 4 L^2 sum ||grad L_i||^2: it needs max(4 L^2, 2)."""
    L = 0.1
    problem, eta = line([L], [0.0], 1.0), 0.5 * max_eta(L)
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(0.0)), problem, SKIPS[:1])
    slope = gradients(problem, path.x) + path.dual + (path.x - path.x0) / eta
    lagrangian = (np.sqrt(square(slope)) + np.sqrt(square(path.x - path.x0))) ** 2
    assert (square(gradients(problem, path.x0)) > 4 * L**2 * lagrangian).all()


def test_printed_last_step_fails_after_a_skip() -> None:
    """That bound takes ||x_i - x_0|| for ||x_i - x_{0,i}||: here all grad L_i vanish, and grad f does not."""
    problem, eta = line([1.0, 0.2], [1.0, -1.0], 0.0), 0.3
    path = play(algorithms.fedpd(eta=eta, oracle=adversary(0.0), p=0.5), problem, np.ones(300, bool))
    slope = gradients(problem, path.x) + path.dual + (path.x - path.x0) / eta
    assert (square(slope) + square(path.x - path.x0)).max(1)[-1] < 1e-9
    mean = np.broadcast_to(path.x0.mean(1, keepdims=True), path.x0.shape)
    assert square(gradients(problem, mean).mean(1))[-1] > 0.1
