"""Wrapped methods in simulation: bytes, convergence, specs."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate, transforms

PROBLEM = problems.random_quadratic(agents=5, dimension=40, seed=1)
FEDPD = algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.3, iterations=8))


def test_bytes_are_those_of_the_packed_arrays() -> None:
    small = transforms.wrap(FEDPD, up=[transforms.top_k(0.1), transforms.quantize(8)])
    history = simulate(small, PROBLEM, rounds=2).history
    # 4 of 40 positions: 4 x 3 low bits, 4 + 4 high bits; 4 codes of 8 bits; the scale and the prediction, float32; a
    # byte each way that says whether a state was lost
    assert history["bytes_up"].tolist() == [0, 5 * (1 + 2 + 4 + 8 + 1), 2 * 5 * (1 + 2 + 4 + 8 + 1)]
    assert history["bytes_down"][-1] == 2 * 5 * (40 * 8 + 1)


def test_median_of_messages_is_not_moved_by_one_outlier() -> None:
    messages = np.array([[1.0, 2.0], [3.0, 4.0], [1e9, -1e9], [5.0, 6.0], [0.0, 0.0]])
    sent = np.array([True, True, True, False, True])
    mean = transforms.median().mean(messages, jnp.asarray(sent))
    np.testing.assert_array_equal(mean, [2.0, 1.0])


def test_median_runs_in_place_of_the_mean() -> None:
    robust = transforms.wrap(FEDPD, mean=transforms.median())
    history = simulate(robust, PROBLEM, rounds=3).history
    assert np.isfinite(history["stationarity"]).all()


def test_methods_whose_numbers_belong_together_are_refused() -> None:
    memory = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=5)
    with pytest.raises(FedpdError, match="needs messages that arrive as they were sent"):
        transforms.wrap(memory, up=transforms.top_k(0.1))


def test_label_and_identity_carry_the_transforms() -> None:
    small = transforms.wrap(FEDPD, up=[transforms.top_k(0.1), transforms.quantize(8)])
    assert small.description.endswith("up=[top_k(share=0.1), quantize(bits=8)])")
    assert small.spec.plain()["up"][1] == {"name": "quantize", "bits": 8, "unbiased": False}


def test_another_method_in_a_wrapped_one_is_the_one_that_runs() -> None:
    def wrapped(eta: float) -> Any:
        return transforms.wrap(algorithms.fedpd(eta=eta, oracle=oracles.gd(0.1, 2)), up=transforms.top_k(0.5))

    problem = problems.random_quadratic(agents=4, dimension=3)
    replaced = replace(wrapped(0.3), method=wrapped(0.05).method)
    for cohort in (None, 2):
        ours, theirs = (simulate(one, problem, rounds=3, cohort=cohort).model for one in (replaced, wrapped(0.05)))
        assert np.array_equal(ours, theirs)
