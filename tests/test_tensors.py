"""Tensors of PyTorch that require a gradient are taken without it, wherever an array is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedpd
from fedpd import algorithms, data, oracles, problems

A, Y = np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 10, np.ones((2, 3), np.float32)
METHOD = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1))
Leaf = Callable[[Any], Any]


def losses(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["y"]) ** 2


def by_agent(leaf: Leaf) -> list[dict[str, Any]]:
    return [{"a": leaf(a), "y": leaf(y)} for a, y in zip(A, Y, strict=True)]


def from_list(leaf: Leaf) -> Any:
    return problems.from_losses(losses, by_agent(leaf), leaf(np.ones(2, np.float32)), weights=leaf(np.ones(2)))


def from_stacked(leaf: Leaf) -> Any:
    return problems.from_losses(losses, {"a": leaf(A), "y": leaf(Y)}, np.ones(2, np.float32))


def from_ragged(leaf: Leaf) -> Any:
    rows = data.ragged({"a": leaf(A.reshape(6, 2)), "y": leaf(Y.reshape(6))}, [3, 3])
    return problems.from_losses(losses, rows, np.ones(2, np.float32))


def from_lazy(leaf: Leaf) -> Any:
    rows = data.lazy(lambda i: by_agent(leaf)[i], [3, 3])
    return problems.from_losses(losses, rows, np.ones(2, np.float32)).in_memory()


def from_federated(leaf: Leaf) -> Any:
    own = {str(i): {"x": one["a"], "y": one["y"]} for i, one in enumerate(by_agent(leaf))}
    federated = data.from_arrays(own, classes=False)
    return problems.regression(lambda x, a: a @ x, federated, leaf(np.ones(2, np.float32)))


def logistic(leaf: Leaf) -> Any:
    return problems.penalized_logistic(leaf(A), leaf(Y), alpha=1.0, beta=0.1, start=leaf(np.ones(2, np.float32)))


def with_gradient(array: Any) -> Any:
    return torch.from_numpy(np.array(array)).requires_grad_()


@pytest.mark.parametrize("build", [from_list, from_stacked, from_ragged, from_lazy, from_federated, logistic])
def test_a_problem_of_tensors_is_that_of_arrays(build: Callable[[Leaf], Any]) -> None:
    one, other = (build(leaf) for leaf in (np.asarray, with_gradient))
    runs = [fedpd.simulate(METHOD, problem, rounds=1, progress=False) for problem in (one, other)]
    np.testing.assert_array_equal(runs[0].history["loss"], runs[1].history["loss"])


def test_a_run_starts_from_tensors() -> None:
    problem, model, shares = from_list(np.asarray), np.array([2, 3], np.float32), np.ones(2, np.float32)
    one, other = (
        fedpd.simulate(METHOD, problem, rounds=1, progress=False, start=leaf(model), participation=leaf(shares))
        for leaf in (np.asarray, with_gradient)
    )
    np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
