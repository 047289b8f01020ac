"""delta, B and G against plain NumPy on all gradients."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from tree_math import Vector

from fedpd import FedpdError, Problem
from fedpd.algorithms import fedavg
from fedpd.base.precision import scope
from fedpd.core.agents import AGENTS, AXIS, SHARED, Functions, Layout, arrays, sharded, with_padding_agents
from fedpd.engine.plan import choose_layout
from fedpd.oracles import gd
from fedpd.problems import from_losses, quadratic, random_quadratic
from fedpd.theory.dissimilarity import gradient_dissimilarity, profile, similarity


def gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Of a quadratic problem: H_i x - c_i."""
    return np.einsum("nij,j->ni", problem.data["hessian"][:, 0], x) - problem.data["linear"][:, 0]


def by_hand(g: np.ndarray) -> tuple[float, float, float, float, float]:
    mean = g.mean(0)
    pairs = np.linalg.norm(g[:, None] - g, axis=-1)
    centred = np.linalg.norm(g - mean, axis=1)
    return pairs.max(), centred.max(), np.linalg.norm(g, axis=1).max(), (g**2).sum(), (mean**2).sum()


@pytest.mark.parametrize("agents", [1, 3, 130])  # 130 is more than is compared at once
def test_a_profile_is_what_numpy_finds(agents: int) -> None:
    problem = random_quadratic(agents, 3, seed=1)
    points = np.random.default_rng(0).standard_normal((4, 3))
    at = profile(problem, points)
    expected = np.array([by_hand(gradients(problem, x)) for x in points]).T
    np.testing.assert_allclose(at, expected, rtol=1e-12, atol=1e-15)
    assert (at.pairwise <= 2 * at.centred * (1 + 1e-12)).all()
    assert (at.centred <= (agents - 1) / agents * at.pairwise * (1 + 1e-12)).all()


def test_the_two_deltas_differ_by_a_factor_between_n_over_n_minus_1_and_2() -> None:
    opposite = quadratic(np.zeros((2, 1, 1)), np.array([[1.0], [-1.0]]))
    found = similarity(opposite, samples=0)
    assert (found.pairwise, found.centred) == (2, 1)
    outlier = quadratic(np.zeros((4, 1, 1)), np.array([[4.0], [0.0], [0.0], [0.0]]))
    found = similarity(outlier, samples=0)
    assert (found.pairwise, found.centred) == (4, 3)


def test_similarity_is_the_largest_over_its_points() -> None:
    problem = random_quadratic(5, 3, seed=2)
    points = np.random.default_rng(1).standard_normal((6, 3))
    told: list[tuple[int, int]] = []
    found = similarity(problem, points, samples=0, progress=lambda *t: told.append(t))
    at = profile(problem, points)
    assert (found.pairwise, found.centred, found.G) == (at.pairwise.max(), at.centred.max(), at.largest.max())
    bound = found.B
    assert bound == pytest.approx(np.sqrt(np.max(at.squares / at.stationarity)))
    assert bound > np.sqrt(5)
    assert found.points == 6
    assert told[-1] == (6, 6)
    assert found.how == (
        "largest values of the gradients of the 5 f_i at the 6 given points: lower bounds; "
        "B over the 6 with ||grad f||^2 > 1e-06"
    )
    more = similarity(problem, points, radius=10.0, samples=20)
    assert more.points == 26
    assert more.pairwise > found.pairwise  # for these quadratics delta is infinite
    assert "at 26 points (6 given and 20 random within 10 of them)" in more.how


def test_b_is_over_points_that_are_not_stationary() -> None:
    problem = quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]))  # grad f = x, grad f_i = x -+ 1
    bound = similarity(problem, np.array([[0.0], [1.0]]), samples=0).B
    assert bound == pytest.approx(2)  # at 1, where the gradients are 0 and 2
    near = np.array([[0.1]])
    bound = similarity(problem, near, samples=0, epsilon=1e-3).B
    assert bound == pytest.approx(np.sqrt((0.9**2 + 1.1**2) / 0.01))
    nowhere = similarity(problem, near, samples=0, epsilon=0.02)
    assert nowhere.B is None
    assert nowhere.how.endswith("no B, because no point is with ||grad f||^2 > 0.02")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_differences_of_large_gradients_are_kept(dtype: Any) -> None:
    linear = np.array([[1000.0, 0.0], [1000.0, 0.0], [1000.0, 0.25]], dtype)
    found = similarity(quadratic(np.zeros((3, 2, 2), dtype), linear), samples=0)
    assert found.pairwise == 0.25
    assert found.centred == pytest.approx(0.25 * 2 / 3, rel=1e-6)
    equal = similarity(quadratic(np.zeros((3, 2, 2), dtype), np.full((3, 2), 0.1, dtype)), samples=0)
    assert equal.pairwise == equal.centred == 0
    bound = equal.B
    assert bound == pytest.approx(np.sqrt(3), rel=1e-6)


def test_models_in_parts_and_agents_of_unequal_sizes_and_weights() -> None:
    samples = [np.array([1.0]), np.array([2.0, 6.0])]
    start = {"a": np.float64(0.0), "b": np.zeros(2)}
    problem = from_losses(lambda x, c: c * (x["a"] - 2 * x["b"][1]), samples, start, weights=[1.0, 1.0])
    found = similarity(problem, samples=3)  # gradients (1, -2) and 8 (1, -2), at every point
    assert (found.pairwise, found.centred, found.G) == pytest.approx(np.sqrt(5) * np.array([7, 3.5, 8]))
    bound = found.B
    assert bound == pytest.approx(np.sqrt(65) / 4.5)


def test_what_is_refused() -> None:
    problem = random_quadratic(2, 1, seed=0)
    with pytest.raises(FedpdError, match="epsilon = -1: must be finite and at least 0"):
        similarity(problem, epsilon=-1)
    with pytest.raises(FedpdError, match=r"point 1: a gradient is not finite\."):
        profile(problem, np.array([[0.0], [1e308]]))


@pytest.mark.parametrize(("parallel", "devices"), [(False, 1), (True, 1), (False, 2)])
def test_gradient_dissimilarity_in_any_layout(parallel: bool, devices: int) -> None:
    problem = random_quadratic(3, 4, seed=3)  # 3 agents: two devices make a padding agent
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,)) if devices > 1 else None
    layout = Layout(problem.agents, parallel, mesh)
    functions = Functions(problem.losses, problem.penalty)
    with scope(True):

        def at(shard: Any, x: Any) -> Any:
            return gradient_dissimilarity(functions, layout, shard, x)

        compiled = jax.jit(sharded(at, layout, (AGENTS, SHARED), SHARED))
        found = float(compiled(with_padding_agents(arrays(problem), layout), Vector(np.ones(4))))
    assert found == pytest.approx(by_hand(gradients(problem, np.ones(4)))[1], rel=1e-12)


def test_gradient_dissimilarity_in_the_layout_of_a_run() -> None:
    problem = random_quadratic(3, 4, seed=3)
    layout = choose_layout(fedavg(oracle=gd(step=0.1, iterations=1)), problem, devices=1)
    compiled = jax.jit(gradient_dissimilarity, static_argnames=("functions", "layout"))
    with scope(True):
        functions = Functions(problem.losses, problem.penalty)
        found = float(compiled(functions, layout, arrays(problem), Vector(problem.start)))
    assert found == pytest.approx(by_hand(gradients(problem, np.zeros(4)))[1], rel=1e-12)
