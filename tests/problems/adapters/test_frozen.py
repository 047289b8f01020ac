"""Frozen parameters are shared, never sent and never trained."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems
from fedpd.core.problem import WithFrozen
from tests.problems.adapters.same_network import (
    CLASSES,
    HIDDEN,
    Linen,
    Nnx,
    agents,
    equinox_module,
    parameters,
    torch_module,
)

METHOD = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=2, batch=4), start="server")
SECOND = {"Dense_1", "layers/1", "second"}


def second(path: str) -> bool:
    return any(one in path for one in SECOND)


def modules() -> dict[str, Any]:
    frozen = torch_module(parameters())
    frozen.first.requires_grad_(False)
    p = parameters()
    return {"PyTorch": frozen, "linen": Linen(), "nnx": Nnx(p), "equinox": equinox_module(p)}


@pytest.mark.parametrize(
    "name", ["PyTorch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("linen", "nnx", "equinox"))]
)
def test_only_the_rest_is_trained_and_sent(name: str) -> None:
    module = modules()[name]
    problem = problems.network(module, agents(), trainable=None if name == "PyTorch" else second)
    assert isinstance(problem.losses, WithFrozen)
    assert problem.dimension == HIDDEN * CLASSES + CLASSES
    run = fedpd.simulate(METHOD, problem, rounds=2, progress=False)
    assert run.history["bytes_up"][-1] == 2 * problem.agents * 4 * problem.dimension
    assert run.history["loss"][-1] < run.history["loss"][0]
    if name == "PyTorch":
        before = module.first.weight.detach().numpy().copy()
        problems.load_model(module, run.model)
        np.testing.assert_array_equal(module.second.weight.detach().numpy(), run.model["second.weight"])
        np.testing.assert_array_equal(module.first.weight.detach().numpy(), before)


@pytest.mark.slow
def test_frozen_and_whole_agree_on_gradients_and_in_all_layouts(tmp_path: Path) -> None:
    module = torch_module(parameters())
    whole = problems.network(module, agents())
    part = problems.network(module, agents(), trainable=second)
    batch = jax.tree.map(np.asarray, {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)})
    expected = jax.grad(lambda model: whole.losses(model, batch).sum())(whole.start)
    found = jax.grad(lambda model: part.losses(model, batch).sum())(part.start)
    assert sorted(found) == ["second.bias", "second.weight"]
    for leaf, array in found.items():
        np.testing.assert_allclose(array, expected[leaf], atol=1e-6)
    run = fedpd.simulate(METHOD, part, rounds=2, devices=1, progress=False)
    for options in ({"devices": 2}, {"execution": "debug"}, {"cohort": 3}, {"store": str(tmp_path)}):
        other: Any = fedpd.simulate(METHOD, part, rounds=2, progress=False, **options)
        np.testing.assert_allclose(other.model["second.weight"], run.model["second.weight"], atol=1e-6)


def test_frozen_arrays_are_arguments_of_the_compiled_program() -> None:
    """A constant would be a copy in every program."""
    from fedpd.core.agents import Functions

    problem = problems.network(torch_module(parameters()), agents(), trainable=second)
    functions, frozen = Functions.of(problem).without_frozen()
    assert frozen is not None
    assert [leaf.size for leaf in frozen] == [HIDDEN, HIDDEN * 4]
    rows = {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)}
    jaxpr = jax.make_jaxpr(lambda frozen, model: functions.with_frozen(frozen).losses(model, rows))(
        frozen, problem.start
    )
    assert max(np.size(constant) for constant in jaxpr.consts) <= rows["x"].size


def test_nothing_trainable_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"nothing is trained, because it is false for all paths. The paths are first"):
        problems.network(torch_module(parameters()), agents(), trainable=lambda path: False)
    module = torch_module(parameters()).requires_grad_(False)
    with pytest.raises(FedpdError, match=r"no parameter of the module requires a gradient\. Set requires_grad"):
        problems.network(module, agents())
    with pytest.raises(FedpdError, match=r"fails \(division by zero\) for the path 'first.*must return True or False"):
        problems.network(torch_module(parameters()), agents(), trainable=lambda path: bool(1 / 0))
    with pytest.raises(FedpdError, match="returns 'no' for the path 'first"):
        problems.network(torch_module(parameters()), agents(), trainable=lambda path: "no")  # type: ignore[arg-type, return-value]
    with pytest.raises(FedpdError, match="trainable = 'second': must be a function"):
        problems.network(torch_module(parameters()), agents(), trainable="second")  # type: ignore[arg-type]
