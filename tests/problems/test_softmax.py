"""Softmax regression: its values by hand, its L as a bound, and what is refused."""

import jax
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems, theory

RNG = np.random.default_rng(0)
ARRAYS = {name: {"x": RNG.normal(size=(20, 3)), "y": RNG.integers(0, 3, 20)} for name in "abc"}


def test_at_zero_all_classes_have_equal_scores() -> None:
    problem = problems.softmax_regression(data.from_arrays(ARRAYS))
    batch = {"x": np.eye(3), "y": np.array([0, 1, 2])}
    np.testing.assert_allclose(problem.losses(problem.start, batch), np.log(3), rtol=1e-6)


def test_l_is_an_upper_bound_that_is_met_within_two() -> None:
    problem = problems.softmax_regression(data.from_arrays(ARRAYS), l2=0.5)
    bound = problem.answer.smoothness
    assert bound is not None
    assert bound / 2 < theory.smoothness(problem) <= bound


def test_one_over_l_converges() -> None:
    problem = problems.softmax_regression(data.from_arrays(ARRAYS), l2=0.1)
    L = problem.answer.smoothness
    assert L is not None
    run = fedpd.simulate(algorithms.fedpd(eta=1 / L, oracle=oracles.gd(0.5 / L, 8)), problem, rounds=200)
    assert run.history["stationarity"][-1] < 1e-12
    assert jax.tree.map(np.shape, run.model) == {"weights": (3, 3), "bias": (3,)}


def test_images_are_flattened_and_scaled() -> None:
    images = {"a": {"x": np.full((2, 2, 2), 255, np.uint8), "y": [0, 1]}}
    problem = problems.softmax_regression(data.from_arrays(images))
    assert problem.start["weights"].shape == (4, 2)
    assert problem.start["weights"].dtype == np.float32
    assert problem.answer.smoothness == pytest.approx(5 / 2)  # (1, 1, 1, 1, 1) twice: ||A||^2/n = 5


def test_one_class_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"classes = \[0\]: must be two or more"):
        problems.softmax_regression(data.from_arrays({"a": {"x": [[1.0]], "y": [0]}}))
