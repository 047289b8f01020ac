"""The points at which constants are measured."""

from typing import Any

import jax
import numpy as np
import pytest
from tree_math import Vector

from fedpd import FedpdError, Problem
from fedpd.problems import from_losses
from fedpd.theory.points import places, region


def problem_in_parts(dtype: Any = np.float32) -> Problem:
    start = {"a": np.ones((), dtype), "b": np.full((2, 2), 3, dtype)}
    return from_losses(lambda x, c: c * x["a"] + x["b"].sum(), np.ones((1, 1), dtype), start)


def distance(model: Any, other: Any) -> float:
    squares = jax.tree.map(lambda a, b: np.sum((np.float64(a) - b) ** 2), model, other)
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_region_is_a_ball_around_the_start(dtype: Any) -> None:
    problem = problem_in_parts(dtype)
    models = region(problem, radius=2.0, samples=200, seed=3)
    distances = [distance(model, problem.start) for model in models]
    assert max(distances) <= 2 * (1 + 1e-6)
    assert np.mean(distances) == pytest.approx(1, abs=0.15)  # uniform in [0, 2)
    assert np.mean([model["a"] > 1 for model in models]) == pytest.approx(0.5, abs=0.12)
    for leaf, start in zip(jax.tree.leaves(models[0]), jax.tree.leaves(problem.start), strict=True):
        assert (leaf.dtype, leaf.shape) == (start.dtype, start.shape)
    again = region(problem, radius=2.0, samples=200, seed=3)
    assert all(distance(one, other) == 0 for one, other in zip(models, again, strict=True))
    assert distance(region(problem, 2.0, 1, seed=4)[0], models[0]) > 0


def test_a_region_around_given_models() -> None:
    problem = problem_in_parts()
    centres = [{"a": np.float32(100 * k), "b": np.zeros((2, 2), np.float32)} for k in range(3)]
    models = region(problem, 0.5, 30, centres=centres)
    nearest = [min(range(3), key=lambda k: distance(model, centres[k])) for model in models]
    assert set(nearest) == {0, 1, 2}
    assert all(distance(model, centres[k]) <= 0.51 for model, k in zip(models, nearest, strict=True))


def test_places_in_words() -> None:
    problem = problem_in_parts()
    given = [Vector(problem.start), problem.start]
    assert places(problem, None, 1.0, 0, 0).words == "at the start"
    assert places(problem, given, 1.0, 0, 0).words == "at the 2 given points"
    assert places(problem, given[:1], 1.0, 0, 0).words == "at the 1 given point"
    some = places(problem, given[:1], 0.5, 2, 0)
    assert some.words == "at 3 points (1 given and 2 random within 0.5 of it)"
    assert len(some.models) == 3


def test_what_is_refused() -> None:
    problem = problem_in_parts()
    with pytest.raises(FedpdError, match="radius = 0: must be positive and finite"):
        region(problem, 0, 1)
    with pytest.raises(FedpdError, match="samples = -1: must be an integer of at least 0"):
        places(problem, None, 1.0, -1, 0)
    with pytest.raises(FedpdError, match="seed = -1: must be an integer of at least 0"):
        region(problem, 1.0, 1, -1)
    with pytest.raises(FedpdError, match="must hold at least one model"):
        places(problem, [], 1.0, 0, 0)
    with pytest.raises(FedpdError, match=r"points\[1\] = .*must have the start's shapes"):
        places(problem, [problem.start, {"a": 1.0, "b": np.ones(3)}], 1.0, 0, 0)
    with pytest.raises(FedpdError, match=r"points\[0\] holds NaN"):
        places(problem, [{"a": np.nan, "b": np.ones((2, 2))}], 1.0, 0, 0)
