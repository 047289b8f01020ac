"""Skipped rounds that keep the solution a fixed point."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, Problem, Run, algorithms, data, oracles, problems, simulate, theory

DRIFTS: tuple[Any, ...] = ("corrected", "corrected-exact")


def logistic(agents: int = 10) -> Problem:
    return problems.penalized_logistic(*data.strongly_noniid(agents, 40, 5, seed=1))


def solve(problem: Problem, rounds: int, relative_eta: float = 0.4, **settings: Any) -> Run:
    L = theory.smoothness(problem)
    eta = relative_eta / L
    oracle = oracles.gd(step=1 / (L + 1 / eta), iterations=8)
    return simulate(algorithms.fedpd(eta=eta, oracle=oracle, **settings), problem, rounds=rounds)


def test_one_round_by_hand() -> None:
    """f_1 = x^2/2 - x, f_2 = x^2/2 + 3x; eta = 1, one exact step (1/(L + 1/eta) = 1/2 of a parabola 2 x^2/2)."""
    problem = problems.quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-3.0]]))
    for drift in DRIFTS:
        algorithm = algorithms.fedpd(
            eta=1.0, oracle=oracles.gd(step=0.5, iterations=1), p=lambda r: 1.0 * (r == 1), drift=drift
        )
        # Round 0: x_i = c_i/2 = (1/2, -3/2), lambda_i = x_i; x_0 = mean(x_i + lambda_i) = -1; m = mean lambda = -1/2.
        # Round 1: x_i = (c_i - lambda_i + x_0)/2 = (-1/4, -5/4); lambda_i + (x_i - x_0) = (5/4, -7/4);
        # Skipped: x_{0,i} = x_i + lambda_i - lambda_i^c + m = (-1/4 + 5/4 - 1/2 - 1/2, -5/4 - 7/4 + 3/2 - 1/2).
        run = simulate(algorithm, problem, rounds=2)
        np.testing.assert_allclose(run.agents.x.tree[:, 0], [-0.25, -1.25])
        np.testing.assert_allclose(run.agents.dual.tree[:, 0], [1.25, -1.75])
        np.testing.assert_allclose(run.agents.mean.tree[:, 0], [-0.5, -0.5])
        np.testing.assert_allclose(run.agents.x0.tree[:, 0], [0.0, -2.0])
        assert run.history["communications"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("drift", DRIFTS)
def test_without_skipping_it_is_algorithm_2(drift: Any) -> None:
    problem = logistic()
    np.testing.assert_allclose(solve(problem, 12, drift=drift).model, solve(problem, 12).model, atol=1e-13)


@pytest.mark.parametrize("drift", DRIFTS)
def test_no_floor_where_the_paper_has_one(drift: Any) -> None:
    problem = logistic()
    paper, mended = (solve(problem, 400, p=0.75, drift=rule).history for rule in ("paper", drift))
    assert np.array_equal(paper["communicated"], mended["communicated"])  # the same coins
    assert paper["stationarity"][-1] > 1e-7
    assert mended["stationarity"][-1] < 1e-24


def test_the_solution_is_a_fixed_point() -> None:
    """From x*, lambda_i = -grad f_i(x*), m = 0, a skipped round stays; the paper's moves by eta grad f_i(x*)."""
    problem = problems.random_quadratic(4, 3, seed=2)
    run = solve(problem, 3000, relative_eta=1.0, p=0.5, drift="corrected-exact")
    assert np.abs(run.model - problem.answer.minimiser).max() < 1e-10
    assert run.history["consensus"][-10:].max() < 1e-9
    assert solve(problem, 3000, relative_eta=1.0, p=0.5).history["consensus"][-10:].max() > 1e-2


@pytest.mark.parametrize(
    "oracle",
    [oracles.vr(gamma=1.0, iterations=8, refresh=1, batch=None), oracles.vr(gamma=1.0, iterations=8, refresh=5)],
    ids=["full", "sampled"],
)
@pytest.mark.parametrize("drift", DRIFTS)
def test_variance_reduction_keeps_the_limit(drift: Any, oracle: Any) -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracle, p=0.5, drift=drift)
    assert simulate(algorithm, logistic(), rounds=300).history["stationarity"][-1] < 1e-16


@pytest.mark.parametrize("drift", DRIFTS)
def test_stochastic_gradients_end_below_the_papers_floor(drift: Any) -> None:
    problem = logistic()
    oracle = oracles.sgd(lambda r, q: 0.3 / (1 + 0.05 * r), iterations=8, batch=20)

    def last(rule: Any) -> float:
        algorithm = algorithms.fedpd(eta=0.5, oracle=oracle, p=0.75, drift=rule)
        return float(np.mean(simulate(algorithm, problem, rounds=400).history["stationarity"][-50:]))

    assert last(drift) < last("paper") / 2


@pytest.mark.slow
def test_agents_may_come_and_go_with_exact_duals() -> None:
    problem = logistic()
    L = theory.smoothness(problem)
    oracle = oracles.gd(step=1 / (L + 1), iterations=8)
    algorithm = algorithms.fedpd(eta=1.0, oracle=oracle, p=0.5, drift="corrected-exact")
    run = simulate(algorithm, problem, rounds=1500, participation=0.5)
    assert run.history["stationarity"][-1] < 1e-20


def test_the_free_estimate_needs_everyone() -> None:
    algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(0.1, 1), p=0.5, drift="corrected")
    with pytest.raises(FedpdError, match="needs all agents in every communication"):
        simulate(algorithm, logistic(), rounds=2, participation=0.5)


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"drift": "correct"}, "Did you mean 'corrected'"),
        ({"drift": "corrected", "x0_rule": "matlab"}, "needs drift='paper'"),
        ({"p": "auto", "drift": "corrected"}, 'must be "corrected-exact" with p="auto"'),
        ({"p": "half"}, 'a number in \\[0, 1\\), a schedule or "auto"'),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        algorithms.fedpd(eta=1.0, oracle=oracles.gd(0.1, 1), **settings)
