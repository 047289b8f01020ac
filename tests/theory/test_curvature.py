"""L: exact in closed form, and by power iteration on Hessian-vector products."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from tree_math import Vector

from fedpd import FedpdError, Problem
from fedpd.base.precision import scope
from fedpd.core import Answer
from fedpd.core.agents import AGENTS, AXIS, SHARED, Functions, Layout, arrays, sharded, with_padding_agents
from fedpd.data import strongly_noniid
from fedpd.problems import from_losses, penalized_logistic, quadratic, share_blocks
from fedpd.theory.curvature import (
    estimate_smoothness,
    exact_smoothness,
    local_smoothness,
    power_iteration,
    smoothness_constants,
)

ALPHA, BETA = 2.0, 0.3


def ragged_logistic(agents: int = 3, dtype: Any = np.float64) -> tuple[list[np.ndarray], Problem]:
    rng = np.random.default_rng(0)
    features = [rng.standard_normal((n, 3)).astype(dtype) for n in (4, 2, 7, 1, 3)[:agents]]
    labels = [rng.choice((-1.0, 1.0), len(a)) for a in features]
    return features, penalized_logistic(features, labels, ALPHA, BETA)


def quartics() -> Problem:
    """f_i = mean of c (x_1^4 + x_2^4)/12 over two models in one: the Hessian is mean(c) diag(x^2)."""
    samples = [np.array([1.0, 3.0]), np.array([-5.0])]
    start = {"a": np.float64(1.0), "b": np.array([0.5])}
    return from_losses(lambda x, c: c * (x["a"] ** 4 + jnp.sum(x["b"] ** 4)) / 12, samples, start)


def test_exact_of_quadratics() -> None:
    hessians = np.array([[[2.0, 1.0], [1.0, 2.0]], [[-4.0, 0.0], [0.0, 1.0]]])
    found = exact_smoothness(quadratic(hessians, np.zeros((2, 2))))
    assert found is not None
    np.testing.assert_allclose(found.per_agent, [3, 4], rtol=1e-14)
    assert found.exact
    assert found.value == found.per_agent.max() == found.per_sample
    assert found.average == pytest.approx(np.abs(np.linalg.eigvalsh(hessians.mean(0))).max())
    assert found.how.startswith("exact, for all x")


def test_exact_of_quadratics_that_share_blocks() -> None:
    problem = share_blocks(quadratic(np.array([[[1.0]], [[-3.0]], [[9.0]]]), np.zeros((3, 1))), copies=1)
    found = exact_smoothness(problem)
    assert found is not None
    np.testing.assert_allclose(found.per_agent, [1, 3, 5])
    assert (found.value, found.per_sample) == (5, 9)
    assert found.average == pytest.approx(7 / 3)


def test_exact_of_the_logistic_problem_is_reached_at_zero() -> None:
    features, problem = ragged_logistic()
    found = exact_smoothness(problem)
    assert found is not None
    at_zero = [a.T @ a / (4 * len(a)) + 2 * ALPHA * BETA * np.eye(3) for a in features]
    np.testing.assert_allclose(found.per_agent, [np.linalg.eigvalsh(h)[-1] for h in at_zero], rtol=1e-13)
    assert found.average == pytest.approx(np.linalg.eigvalsh(np.mean(at_zero, axis=0))[-1], rel=1e-13)
    squares = np.concatenate([(a**2).sum(1) for a in features])
    assert found.per_sample == pytest.approx(squares.max() / 4 + 2 * ALPHA * BETA, rel=1e-13)
    assert found.value == pytest.approx(problem.answer.smoothness, rel=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_estimate_meets_the_exact_values_where_they_are_reached(dtype: Any) -> None:
    _, problem = ragged_logistic(dtype=dtype)
    exact = exact_smoothness(problem)
    found = estimate_smoothness(problem, samples=2, iterations=200, safety=1.0, per_sample=True)
    assert exact is not None
    assert not found.exact
    np.testing.assert_allclose(found.per_agent, exact.per_agent, rtol=1e-4)
    assert (found.average, found.per_sample) == pytest.approx((exact.average, exact.per_sample), rel=1e-4)


def test_an_estimate_says_what_it_is() -> None:
    told: list[tuple[int, int]] = []
    path = [{"a": np.float64(1.0), "b": np.array([0.5])}, {"a": 0.0, "b": np.array([-2.0])}]
    found = estimate_smoothness(quartics(), points=path, samples=0, per_sample=True, progress=lambda *t: told.append(t))
    assert found.value == pytest.approx(1.1 * 5 * 4)
    np.testing.assert_allclose(found.per_agent, [1.1 * 2 * 4, 1.1 * 5 * 4], rtol=1e-6)
    assert found.average == pytest.approx(1.1 * 1.5 * 4)
    assert found.per_sample == pytest.approx(1.1 * 5 * 4)
    assert found.points == 2
    assert 8 <= found.iterations <= 50
    assert found.how == (
        f"largest |eigenvalue| of the Hessians of the 2 f_i at the 2 given points, by up to {found.iterations} power "
        "iterations, times a safety factor 1.1: a lower bound before the factor"
    )
    assert told == [(k, 6) for k in range(1, 7)]
    # Where the curvature grows with x, more points find more of it.
    wider = estimate_smoothness(quartics(), radius=3.0, samples=6, seed=1, safety=1.0, average=False)
    assert 5 < wider.value <= 5 * 4**2
    assert "at 7 points (the start and 6 random within 3 of it)" in wider.how
    assert wider.how.endswith("power iterations: a lower bound")


def test_a_network_against_its_whole_hessian() -> None:
    rng = np.random.default_rng(0)
    data = {"a": rng.standard_normal((2, 5, 2)), "b": rng.standard_normal((2, 5))}
    start = {"first": rng.standard_normal((2, 3)), "last": rng.standard_normal(3)}

    def losses(model: Any, batch: Any) -> Any:
        return (jnp.tanh(batch["a"] @ model["first"]) @ model["last"] - batch["b"]) ** 2

    with scope(True):
        flat, unravel = ravel_pytree(start)

        def value(x: Any, a: Any, b: Any) -> Any:
            return losses(unravel(x), {"a": a, "b": b}).mean()

        hessians = jax.jit(jax.vmap(jax.hessian(value), (None, 0, 0)))(flat, data["a"], data["b"])
    expected = np.abs(np.linalg.eigvalsh(hessians)).max(-1)
    found = estimate_smoothness(from_losses(losses, data, start), samples=0, iterations=500, safety=1, average=False)
    np.testing.assert_allclose(found.per_agent, expected, rtol=1e-4)


def test_only_problems_known_in_closed_form_are_exact() -> None:
    known = from_losses(lambda x, c: c * x**2, np.ones((2, 1)), np.float64(0), answer=Answer(smoothness=2.0))
    assert exact_smoothness(known) is None
    named = from_losses(lambda x, c: c * x**2, np.ones((2, 1)), np.float64(0), name="quadratic")
    assert exact_smoothness(named) is None
    assert smoothness_constants(named, samples=0, safety=1.0).value == pytest.approx(2)
    assert smoothness_constants(quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)))).exact


@jax.jit
def largest(matrix: Any, start: Any, iterations: Any) -> Any:
    return power_iteration(lambda v: Vector(matrix @ v.tree), Vector(start), iterations)


@settings(deadline=None, max_examples=40)
@given(entries=numpy_arrays(np.float64, (4, 4), elements=st.floats(-3, 3)), seed=st.integers(0, 10))
def test_power_iteration_never_exceeds_and_never_falls(entries: np.ndarray, seed: int) -> None:
    matrix, start = entries + entries.T, np.random.default_rng(seed).standard_normal(4)
    true = np.abs(np.linalg.eigvalsh(matrix)).max()
    with scope(True):
        values = [float(largest(matrix, start, k)[0]) for k in (1, 2, 3, 5, 50)]
    assert values[-1] <= true * (1 + 1e-12)
    assert (np.diff(values) >= 0).all()


def test_power_iteration_with_eigenvalues_of_both_signs_stops_early() -> None:
    with scope(True):
        value, taken = largest(np.diag([5.0, -5.0, 1.0]), np.array([1.0, 0.3, 1.0]), 1000)
        assert float(value) == pytest.approx(5, rel=1e-6)  # the Rayleigh quotient stays at 5 (1 - 0.09)/(1 + 0.09)
        assert int(taken) < 20
        assert int(largest(np.zeros((2, 2)), np.ones(2), 1000)[1]) == 1
        value, _ = largest(np.diag([1.0, 1.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0, 1e-3]), 1000)
        assert float(value) == pytest.approx(2, rel=1e-5)  # a start that hardly sees the largest one


def test_what_is_refused() -> None:
    problem = quartics()
    with pytest.raises(FedpdError, match=r"safety = 0\.5: must be finite and at least 1"):
        estimate_smoothness(problem, safety=0.5)
    with pytest.raises(FedpdError, match="tolerance = -1: must be finite and at least 0"):
        estimate_smoothness(problem, tolerance=-1)
    with pytest.raises(FedpdError, match=r"point 0: a Hessian is not finite\."):
        estimate_smoothness(problem, points=[{"a": 1e200, "b": np.ones(1)}], samples=0)


@pytest.mark.parametrize(("parallel", "devices"), [(False, 1), (True, 1), (False, 2)])
def test_local_smoothness_in_any_layout(parallel: bool, devices: int) -> None:
    _, problem = ragged_logistic()  # of 3 agents: two devices make a padding agent
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,)) if devices > 1 else None
    layout = Layout(problem.agents, parallel, mesh)
    functions = Functions(problem.losses, problem.penalty)
    with scope(True):

        def at(shard: Any, x: Any) -> Any:
            return local_smoothness(functions, layout, shard, x, iterations=60)

        compiled = jax.jit(sharded(at, layout, (AGENTS, SHARED), SHARED))
        found = float(compiled(with_padding_agents(arrays(problem), layout), Vector(problem.start)))
    assert found == pytest.approx(problem.answer.smoothness, rel=1e-5)


def test_what_a_problem_is_decides_and_not_its_name() -> None:
    problem = penalized_logistic(*strongly_noniid(agents=3, samples=6, dimension=2))
    found, retitled = exact_smoothness(problem), exact_smoothness(replace(problem, name="hospitals"))
    assert found is not None
    assert retitled is not None
    assert found.value == retitled.value
    part = exact_smoothness(problem.subset([0, 1]))
    assert part is not None
    np.testing.assert_allclose(part.per_agent, found.per_agent[:2])
    own = from_losses(lambda x, a: (a @ x) ** 2, np.ones((2, 3, 2)), np.zeros(2), name="penalized_logistic")
    for name in ("penalized_logistic", "quadratic"):
        assert exact_smoothness(replace(own, name=name, answer=Answer(smoothness=1.0))) is None
    assert exact_smoothness(replace(problem, penalty=lambda x: x @ x)) is None
