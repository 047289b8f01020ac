"""The same network in every library has the same losses, gradients and rounds."""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from torch import nn

import fedpd
from fedpd import algorithms, oracles, problems
from fedpd.engine.plan import problem_identity
from tests.problems.adapters.same_network import (
    CLASSES,
    INPUTS,
    KINDS,
    Arrays,
    Linen,
    Nnx,
    agents,
    equinox_module,
    numpy_gradient,
    numpy_losses,
    parameters,
    torch_module,
)


def batch() -> Arrays:
    own = agents().train[1]
    return {"x": own["x"], "y": own["y"].astype(np.int32)}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_the_same(kind: str) -> None:
    problem, common = KINDS[kind](parameters())
    losses = jax.jit(problem.losses)(problem.start, batch())
    np.testing.assert_allclose(losses, numpy_losses(parameters(), batch()), atol=1e-6)
    gradient = common(jax.jit(jax.grad(lambda model: problem.losses(model, batch()).mean()))(problem.start))
    for name, expected in numpy_gradient(parameters(), batch()).items():
        np.testing.assert_allclose(gradient[name], expected, atol=1e-6)


@cache
def three_rounds(kind: str) -> tuple[np.ndarray, Arrays]:
    problem, common = KINDS[kind](parameters())
    method = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=3, batch=4))
    run: Any = fedpd.simulate(method, problem, rounds=3, progress=False)
    return run.history["loss"], common(run.model)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=pytest.mark.slow if kind in ("function", "haiku", "equinox", "PyTorch, called back") else ()
        )
        for kind in KINDS
        if kind != "NumPy"
    ],
)
def test_three_rounds_of_fedpd_are_the_same(kind: str) -> None:
    (loss, model), (expected, own) = three_rounds(kind), three_rounds("NumPy")
    np.testing.assert_allclose(loss, expected, atol=1e-6)
    for name, array in own.items():
        np.testing.assert_allclose(model[name], array, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_is_identified_in_another_process(kind: str) -> None:
    """Checkpoints need it; two modules made in the same way stand for two processes."""
    one, other = (problem_identity(KINDS[kind](parameters())[0]) for _ in range(2))
    assert one == other


def test_another_module_is_another_problem() -> None:
    modules = (nn.Linear(INPUTS, CLASSES), nn.Sequential(nn.Linear(INPUTS, CLASSES)))
    one, other = (problem_identity(problems.network(module, agents())) for module in modules)
    assert one["losses"] != other["losses"]


@pytest.mark.parametrize("module", [torch_module, lambda p: Linen(), Nnx, equinox_module])
def test_bfloat16_computes_in_bfloat16_and_keeps_float32(module: Any) -> None:
    problem = problems.network(module(parameters()), agents(), precision="bfloat16")
    losses, gradient = jax.value_and_grad(lambda model: problem.losses(model, batch()).mean())(problem.start)
    expected = numpy_losses(parameters(), batch()).mean()
    assert 1e-7 < abs(losses - expected) < 3e-2  # 8 bits
    assert {leaf.dtype for leaf in jax.tree.leaves((problem.start, gradient, losses))} == {np.dtype("float32")}


def test_an_equinox_sequence_of_layers_without_state_is_accepted() -> None:
    """Its class is that of layers with state."""
    keys = jax.random.split(jax.random.key(0), 2)
    layers: list[Any] = [
        eqx.nn.Linear(INPUTS, 5, key=keys[0]),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.Linear(5, CLASSES, key=keys[1]),
    ]
    assert problems.network(eqx.nn.Sequential(layers), agents()).dimension == 6 * CLASSES + 5 * (INPUTS + 1)
