"""Quadratics carry their answers; these are checked by hand and against the gradients."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, simulate
from fedpd.problems import opposing_quadratics, quadratic, random_quadratic
from tests.problems import local_values


def test_two_parabolas_by_hand() -> None:
    problem = quadratic(np.array([[[2.0]], [[4.0]]]), np.array([[1.0], [5.0]]))
    assert problem.answer.minimiser == [1.0]  # mean(H) = mean(c) = 3
    assert problem.answer.smoothness == 4
    assert problem.answer.heterogeneity == np.inf
    assert problem.start.tolist() == [0]
    values, gradients = local_values(problem, np.array([2.0]))
    assert values.tolist() == [2, -2]  # 2*4/2 - 1*2, 4*4/2 - 5*2
    assert gradients.tolist() == [[3], [3]]


def test_equal_hessians_have_a_finite_heterogeneity() -> None:
    hessian = np.array([[2.0, 1.0], [1.0, 2.0]])
    problem = quadratic(np.stack([hessian, hessian]), np.array([[3.0, 4.0], [-3.0, -4.0]]))
    assert problem.answer.heterogeneity == 5
    assert problem.answer.minimiser == pytest.approx([0, 0])
    assert problem.answer.smoothness == pytest.approx(3)


def test_smoothness_counts_negative_curvature_and_a_minimiser_needs_positive() -> None:
    answer = quadratic(np.array([[[-3.0]], [[1.0]]]), np.ones((2, 1))).answer
    assert answer.smoothness == 3
    assert answer.minimiser is None


def test_the_random_answer_is_where_the_gradient_vanishes() -> None:
    problem = random_quadratic(5, 3, smoothness=2.0, convexity=0.5, heterogeneity=1.0, seed=3)
    _, gradients = local_values(problem, problem.answer.minimiser)
    np.testing.assert_allclose(gradients.mean(0), 0, atol=1e-14)
    assert np.abs(gradients).max() > 0.1  # no agent is content there
    eigenvalues = np.linalg.eigvalsh(problem.data["hessian"][:, 0])
    np.testing.assert_allclose(eigenvalues[:, 0], 0.5, rtol=1e-12)
    np.testing.assert_allclose(eigenvalues[:, -1], 2.0, rtol=1e-12)
    assert problem.answer.smoothness == pytest.approx(2.0, rel=1e-12)
    assert problem.answer.heterogeneity == np.inf
    assert (problem.agents, problem.samples, problem.dimension) == (5, 5, 3)


def test_heterogeneity_0_makes_all_agents_equal() -> None:
    problem = random_quadratic(4, 3, heterogeneity=0)
    assert (problem.data["hessian"] == problem.data["hessian"][0]).all()
    assert (problem.data["linear"] == problem.data["linear"][0]).all()
    assert problem.answer.heterogeneity == pytest.approx(0, abs=1e-15)


def test_random_quadratics_are_reproducible_and_seeds_differ() -> None:
    one, again, other = (random_quadratic(2, 2, seed=seed).data["hessian"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_opposing_quadratics_cancel_and_fedavg_diverges_from_them_as_claimed() -> None:
    problem = opposing_quadratics(start=2.0)
    assert problem.answer.minimiser is None
    assert problem.answer.smoothness == 1
    values, gradients = local_values(problem, problem.start)
    assert values.tolist() == [2, -2]
    assert gradients.tolist() == [[2], [-2]]
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=2)), problem, rounds=3)
    assert run.model.tolist() == [2 * 1.25**3]  # ((1 + 1/2)^2 + (1 - 1/2)^2)/2 = 1.25
    assert run.history["loss"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("hessians", "linear", "sentence"),
    [
        (np.ones((1, 2, 2)), np.ones((1, 3)), r"= \(\(1, 2, 2\), \(1, 3\)\): .*\(N, d, d\), \(N, d\)\. Give one H_i"),
        (np.ones((2, 2)), np.ones(2), r"= \(\(2, 2\), \(2,\)\): .*\(N, d, d\), \(N, d\)\. Give one H_i"),
        (np.ones((1, 2, 2)), np.array(1.0), r"= \(\(1, 2, 2\), \(\)\): .*\(N, d, d\), \(N, d\)\. Give one H_i"),
        (
            np.array([[[1.0, 2.0], [0.0, 1.0]]]),
            np.ones((1, 2)),
            r"hessians.* must be symmetric, .*\. Use \(H \+ H\^T\)/2",
        ),
        (np.array([[[1.0]], [[np.nan]]]), np.ones((2, 1)), r"agent 1 holds NaN or infinity"),
        (np.ones((0, 2, 2)), np.ones((0, 2)), r"(no agents|\(0, )"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(hessians: Any, linear: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        quadratic(hessians, linear)


def test_integer_matrices_are_numbers_too() -> None:
    problem = quadratic(np.array([[[2]], [[4]]]), np.array([[1], [5]]))
    assert problem.start.dtype == np.float64
    assert problem.answer.minimiser == [1.0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agents": 0}, r"agents = 0: must be an integer of at least 1\. Give N"),
        ({"dimension": 2.0}, r"dimension = 2\.0: must be an integer of at least 1\. Give d"),
        ({"convexity": 0}, r"convexity = 0: must be positive and finite\. Give mu"),
        ({"smoothness": 0.05}, r"smoothness = 0\.05: must be finite and at least 0\.1\. L"),
        ({"heterogeneity": -1}, r"heterogeneity = -1: must be finite and at least 0\. 0 gives"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        random_quadratic(**({"agents": 2, "dimension": 2} | settings))


@pytest.mark.parametrize("start", [np.zeros(1), np.zeros(3), np.zeros((2, 1)), np.zeros(())])
def test_a_start_of_another_shape_is_refused(start: np.ndarray) -> None:
    with pytest.raises(FedpdError, match=r"shape of start = \(.*\): must be \(2,\)"):
        quadratic(np.stack([np.eye(2)] * 2), np.ones((2, 2)), start=start)
    with pytest.raises(FedpdError, match=r"start = .*: must hold at least one number"):
        quadratic(np.zeros((2, 0, 0)), np.zeros((2, 0)))
