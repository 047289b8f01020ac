"""The condition number of the mean Hessian, and how much the Hessians differ."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, problems, theory


@pytest.fixture(params=["whole", "products"])
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with whole Hessians, and with Hessian-vector products only."""
    if request.param == "products":
        monkeypatch.setattr("fedpd.theory.curvature.LARGEST", 0)
    return bool(request.param == "whole")


def test_quadratics_by_hand(whole: bool) -> None:
    """H = diag(4, 2, 1), and H_1 - H = -(H_2 - H) = diag(0, -3, 0.5)."""
    matrices = np.array([np.diag([4.0, -1.0, 1.5]), np.diag([4.0, 5.0, 0.5])])
    found = theory.hessians(problems.quadratic(matrices, np.ones((2, 3))))
    assert found.exact == whole
    assert found.condition == pytest.approx(4, rel=1e-12)
    assert (found.largest, found.least) == pytest.approx((4, 1), rel=1e-12)
    assert found.dissimilarity == pytest.approx(3, rel=1e-4)
    assert found.points == 1
    assert ("lower bound" in found.how) != whole


def test_equal_hessians_do_not_differ(whole: bool) -> None:
    found = theory.hessians(problems.quadratic(np.array([np.diag([1.0, 1e-3])] * 3), np.eye(3)[:, :2]))
    assert found.dissimilarity == pytest.approx(0, abs=1e-12)
    assert found.condition == pytest.approx(1e3)


def test_an_indefinite_mean(whole: bool) -> None:
    """H = diag(2, -1): only whole Hessians tell its smallest |eigenvalue|."""
    found = theory.hessians(problems.quadratic(np.array([np.diag([1.0, -3.0]), np.diag([3.0, 1.0])]), np.ones((2, 2))))
    assert (found.largest, found.least, found.dissimilarity) == pytest.approx((2, -1, 2))
    assert found.condition == (pytest.approx(2) if whole else None)


def test_bad_scaling_is_told_from_bad_conditioning() -> None:
    """With the diagonal scaled to 1, H = [[1, 1/2], [1/2, 1]], whose eigenvalues are 1/2 and 3/2."""
    scales = np.array([1.0, 1e-3])
    matrix = np.outer(scales, scales) * np.array([[1.0, 0.5], [0.5, 1.0]])
    found = theory.hessians(problems.quadratic(np.array([matrix, matrix]), np.ones((2, 2))))
    assert found.scaled == pytest.approx(3)
    assert found.condition == pytest.approx(4 / 3 * 1e6, rel=1e-5)
    flat = theory.hessians(problems.quadratic(np.array([np.diag([1.0, -1.0])] * 2), np.ones((2, 2))))
    assert flat.scaled is None


def test_a_singular_mean_is_infinitely_ill_conditioned() -> None:
    found = theory.hessians(problems.quadratic(np.array([np.diag([1.0, 0.0])] * 2), np.ones((2, 2))))
    assert found.condition == np.inf


def test_lanczos_is_a_lower_bound_in_many_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    noise = rng.standard_normal((3, 60, 60))
    matrices = turn @ np.diag(np.geomspace(0.1, 10, 60)) @ turn.T + 0.01 * (noise + noise.swapaxes(1, 2))
    problem = problems.quadratic(matrices, rng.standard_normal((3, 60)))
    exact = theory.hessians(problem)
    monkeypatch.setattr("fedpd.theory.curvature.LARGEST", 0)
    found = theory.hessians(problem)
    assert found.condition is not None
    assert exact.condition is not None
    assert 0.7 * exact.condition < found.condition <= exact.condition
    assert found.largest == pytest.approx(exact.largest, rel=1e-6)
    assert 0.9 * exact.dissimilarity < found.dissimilarity <= exact.dissimilarity * (1 + 1e-9)


def test_models_of_any_structure_and_several_points() -> None:
    """f_i = c (a^4 + b^4)/12 has the Hessian c diag(a^2, b^2)."""
    start = {"a": np.float64(1.0), "b": np.array([0.5])}
    samples = [np.array([1.0, 3.0]), np.array([4.0])]  # c is 2 and 4
    problem = problems.from_losses(lambda x, c: c * (x["a"] ** 4 + jnp.sum(x["b"] ** 4)) / 12, samples, start)
    told: list[tuple[int, int]] = []
    there = {"a": np.float64(2.0), "b": np.array([2.0])}
    found = theory.hessians(problem, [start, there], progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    assert found.points == 2
    assert problem.scale.tolist() == [1.0, 1.0]
    assert (found.condition, found.largest) == pytest.approx((4, 3))  # at the start
    assert found.dissimilarity == pytest.approx(4)  # at the other point, where H_1 = 8 and H_2 = 16
    with pytest.raises(FedpdError, match=r"points\[0\] holds NaN or infinity\. Leave diverged models out"):
        theory.hessians(problem, [{"a": np.float64(np.nan), "b": np.array([0.5])}])
