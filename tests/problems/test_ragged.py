"""Problems on ragged and lazy data equal those on padded data, in runs and in theory."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_math import Vector

from fedpd import FedpdError, Problem, algorithms, oracles, problems, simulate, theory
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, arrays, local_objective, one_agent
from fedpd.data import Ragged, from_arrays, from_rows, lazy, ragged

SIZES = np.array([1, 30, 2, 7, 100, 3, 64])


def losses(x: Any, rows: Any) -> Any:
    return jnp.log1p(jnp.exp(-rows["b"] * (rows["a"] @ x)))


def rows_for(sizes: np.ndarray, seed: int = 0) -> Ragged:
    rng = np.random.default_rng(seed)
    rows = {"a": rng.standard_normal((sizes.sum(), 3)), "b": rng.choice([-1.0, 1.0], sizes.sum())}
    return ragged(rows, sizes)


def forms(held: Ragged, **more: Any) -> tuple[Problem, Problem, Problem]:
    """Return the problem of the same samples as ragged, as padded and as lazy data."""
    start = np.linspace(-1, 1, 3)
    given = held, list(held), lazy(held.__getitem__, held.sizes)
    flat, padded, loaded = (problems.from_losses(losses, data, start, **more) for data in given)
    return flat, padded, loaded


FLAT, PADDED, LAZY = forms(rows_for(SIZES))


def test_the_forms() -> None:
    assert FLAT.offsets is not None
    assert FLAT.data["a"].shape == (207, 3)
    assert PADDED.offsets is None
    assert PADDED.data["a"].shape == (7, 100, 3)
    assert LAZY.data["a"].shape == (0, 3)
    assert repr(FLAT) == repr(PADDED) == repr(LAZY)
    equal = problems.from_losses(losses, rows_for(np.full(4, 5)), np.zeros(3))
    assert equal.offsets is None
    assert equal.data["a"].shape == (4, 5, 3)


@pytest.mark.parametrize(
    ("execution", "oracle"),
    [
        ("sequential", oracles.gd(step=0.1, iterations=2)),
        ("parallel", oracles.vr(gamma=0.1, iterations=2, refresh=2, batch=2)),
    ],
    ids=["sequential", "parallel"],
)
def test_ragged_runs_equal_padded_runs(execution: Any, oracle: Any) -> None:
    method = algorithms.fedpd(oracle=oracle, eta=0.5)
    runs = [simulate(method, one, rounds=4, execution=execution) for one in (FLAT, PADDED, LAZY.in_memory())]
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-12)
    np.testing.assert_allclose(runs[0].history["stationarity"], runs[1].history["stationarity"], rtol=1e-10)
    np.testing.assert_array_equal(runs[0].model, runs[2].model)


def test_stochastic_runs_draw_the_same_samples() -> None:
    method = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=3, batch=2))
    flat, padded = (simulate(method, one, rounds=3, seed=5, devices=2) for one in (FLAT, PADDED))
    np.testing.assert_allclose(flat.model, padded.model, rtol=1e-12)
    np.testing.assert_allclose(flat.history["loss"], padded.history["loss"], rtol=1e-12)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 3))
def test_values_and_gradients_by_hand(drawn: list[int], seed: int) -> None:
    held = rows_for(np.array(drawn), seed)
    problem, x = problems.from_losses(losses, held, np.linspace(-1, 1, 3)), np.linspace(0, 1, 3)
    margins = [agent["b"] * (agent["a"] @ x) for agent in held]
    value = np.mean([np.mean(np.log1p(np.exp(-margin))) for margin in margins])
    assert theory.objective(problem, x) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("block", [None, 4])
def test_derivatives(block: int | None) -> None:
    pair = [
        problems.from_losses(losses, data, np.zeros(3), block=block)
        for data in (rows_for(SIZES), list(rows_for(SIZES)))
    ]
    found = []
    with scope(True):
        for problem in pair:
            functions, shard = Functions.of(problem), arrays(problem)
            f = local_objective(functions, one_agent(shard, 4))
            x = Vector(jnp.ones(3))
            found.append([f.value(x), f.gradient(x).tree, f.rows(jnp.array([[0, 99], [3, 1]]))["a"]])
    for flat, padded in zip(*found, strict=True):
        np.testing.assert_allclose(flat, padded, rtol=1e-12)


def test_theory_on_ragged_data() -> None:
    functions: list[Callable[[Problem], Any]] = [
        theory.smoothness,
        theory.heterogeneity,
        lambda problem: theory.objective(problem, np.ones(3)),
        lambda problem: theory.estimate_smoothness(problem, samples=0, average=False, per_sample=True).per_sample,
        lambda problem: theory.hessians(problem).condition,
    ]
    for function in functions:
        assert function(FLAT) == pytest.approx(function(PADDED), rel=1e-9)
    with pytest.raises(FedpdError, match=r"not in memory.* all 7 agents. Give .* or call problem.in_memory\(\)"):
        theory.smoothness(LAZY)
    assert theory.smoothness(LAZY.in_memory()) == theory.smoothness(FLAT)


@pytest.mark.parametrize("problem", [FLAT, PADDED, LAZY], ids=["flat", "padded", "lazy"])
def test_rows_of_some_agents(problem: Problem) -> None:
    held = rows_for(SIZES)
    rows, offsets = problem.rows_of(np.array([4, 0, 2]))
    np.testing.assert_array_equal(rows["b"], np.concatenate([held[i]["b"] for i in (4, 0, 2)]))
    assert offsets.tolist() == [0, 100, 101]
    some = problem.subset([5, 1]).in_memory()
    assert some.sizes.tolist() == [3, 30]
    np.testing.assert_array_equal(some.rows_of([0])[0]["a"], held[5]["a"])
    np.testing.assert_array_equal(problem.subset([3]).rows_of([0])[0]["a"], held[3]["a"])


def test_weights_by_samples_are_the_mean_over_all_samples() -> None:
    held, x = rows_for(SIZES), np.ones(3)
    wanted = float(np.mean(losses(x, held.rows)))
    for problem in forms(held, weights="samples"):
        assert theory.objective(problem.in_memory(), x) == pytest.approx(wanted, rel=1e-6)
        np.testing.assert_allclose(problem.scale, SIZES * 7 / 207)
    plain = np.mean([np.mean(losses(x, agent)) for agent in held])
    assert theory.objective(FLAT, x) == pytest.approx(float(plain), rel=1e-6)
    with pytest.raises(FedpdError, match="weights = 'size': must be \"samples\" or 7 positive numbers"):
        problems.from_losses(losses, held, x, weights="size")  # type: ignore[arg-type]


def test_agents_without_samples_are_refused() -> None:
    held = rows_for(np.array([3, 0, 2, 0]))
    for data in (held, lazy(held.__getitem__, held.sizes)):
        with pytest.raises(FedpdError, match="agent 1 and 1 more agents have no samples: its f_i is not defined"):
            problems.from_losses(losses, data, np.zeros(3))
    broken = {key: leaf.copy() for key, leaf in held.rows.items()}
    broken["a"][4] = np.nan
    with pytest.raises(FedpdError, match="data of agent 2 holds NaN or infinity"):
        problems.from_losses(losses, ragged(broken, held.sizes).take(np.array([0, 0, 2])), np.zeros(3))


def test_lists_that_would_waste_memory_are_not_padded() -> None:
    """Padded, each of them takes 19 MB: 32 bytes for each of 600,000 samples."""
    for sizes, padded in ((np.array([1] * 599 + [1000]), False), (np.array([100_000, 200_000, 200_000]), True)):
        assert (problems.from_losses(losses, list(rows_for(sizes)), np.zeros(3)).offsets is None) == padded
    assert problems.from_losses(losses, list(rows_for(SIZES)), np.zeros(3)).offsets is None  # small


TESTS = np.array([0, 3, 2, 0, 5, 1, 9])


def classified(sizes: np.ndarray, seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    return ragged({"x": rng.standard_normal((sizes.sum(), 2)), "y": rng.integers(0, 3, sizes.sum())}, sizes)


@pytest.mark.slow
def test_classification_with_ragged_tests() -> None:
    train, test = classified(SIZES, 0), classified(TESTS, 1)
    listed = from_arrays(dict(enumerate(train)), dict(enumerate(test)), name="rows")
    loaded = from_rows(lazy(train.__getitem__, SIZES), lazy(test.__getitem__, TESTS), classes=3)
    three = [
        problems.softmax_regression(d, l2=0.1, weights="samples") for d in (from_rows(train, test), listed, loaded)
    ]
    assert three[0].answer.smoothness == three[1].answer.smoothness
    assert three[2].answer.smoothness is None
    method = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    runs = [simulate(method, one.in_memory(), rounds=3) for one in three]
    for name in ("loss", "test_accuracy", "test_accuracy_agents"):
        np.testing.assert_allclose(runs[0].history[name], runs[1].history[name], rtol=1e-12)
        np.testing.assert_array_equal(runs[0].history[name], runs[2].history[name])


def test_logistic_regression_on_ragged_data() -> None:
    held = rows_for(SIZES)
    features, labels = ragged(held.rows["a"], SIZES), ragged(held.rows["b"], SIZES)
    flat = problems.penalized_logistic(features, labels)
    padded = problems.penalized_logistic(list(features), list(labels))
    assert flat.answer == padded.answer
    exact, other = theory.exact_smoothness(flat), theory.exact_smoothness(padded)
    assert exact is not None
    assert other is not None
    assert (exact.value, exact.average, exact.per_sample) == (other.value, other.average, other.per_sample)
    assert theory.objective(flat, np.ones(3)) == pytest.approx(theory.objective(padded, np.ones(3)), rel=1e-12)
    with pytest.raises(FedpdError, match="labels = 'ndarray': must be ragged with the sizes of the features"):
        problems.penalized_logistic(features, held.rows["b"][:7])


def test_shared_blocks_of_ragged_data() -> None:
    flat, padded = problems.share_blocks(FLAT, 1), problems.share_blocks(PADDED, 1)
    assert flat.sizes.tolist() == padded.sizes.tolist() == [31, 32, 9, 107, 103, 67, 65]
    np.testing.assert_array_equal(flat.rows_of([6])[0]["a"], padded.rows_of([6])[0]["a"])
