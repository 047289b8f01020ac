"""Batch normalisation follows one rule in every library: batches by their own statistics, agents judged by theirs."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems
from fedpd.core import Problem
from fedpd.engine.plan import problem_identity
from tests.problems.adapters.same_network import CLASSES, HIDDEN, INPUTS, Arrays, agents, given, parameters

EPSILON = 1e-5


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        p = parameters()
        x = linen.Dense(HIDDEN, kernel_init=given(p["w1"]), bias_init=given(p["b1"]))(x)
        x = jnp.tanh(linen.BatchNorm(use_running_average=not train, epsilon=EPSILON, use_fast_variance=False)(x))
        return linen.Dense(CLASSES, kernel_init=given(p["w2"]), bias_init=given(p["b2"]))(x)


def of_linen() -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        one, norm, two = model["Dense_0"], model["BatchNorm_0"], model["Dense_1"]
        own = {"w1": one["kernel"], "b1": one["bias"], "w2": two["kernel"], "b2": two["bias"]}
        return own | {"scale": norm["scale"], "shift": norm["bias"]}

    return problems.network(Linen(), agents()), common


def torch_module(momentum: float | None = 0.1, tracked: bool = True) -> nn.Sequential:
    norm = nn.BatchNorm1d(HIDDEN, momentum=momentum, track_running_stats=tracked)
    module, p = nn.Sequential(nn.Linear(INPUTS, HIDDEN), norm, nn.Tanh(), nn.Linear(HIDDEN, CLASSES)), parameters()
    own = {"0.weight": p["w1"].T, "0.bias": p["b1"], "3.weight": p["w2"].T, "3.bias": p["b2"]}
    module.load_state_dict({name: torch.from_numpy(one.copy()) for name, one in own.items()}, strict=False)
    return module


def of_torch(backend: Any = "jax", **options: Any) -> tuple[Problem, Any]:
    names = {"w1": "0.weight", "b1": "0.bias", "w2": "3.weight", "b2": "3.bias", "scale": "1.weight", "shift": "1.bias"}

    def common(model: Any) -> Arrays:
        return {short: np.asarray(model[name]).T for short, name in names.items()}

    return problems.network(torch_module(**options), agents(), backend=backend), common


class Nnx(nnx.Module):
    def __init__(self) -> None:
        p, rngs = parameters(), nnx.Rngs(0)
        self.one = nnx.Linear(INPUTS, HIDDEN, kernel_init=given(p["w1"]), bias_init=given(p["b1"]), rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.two = nnx.Linear(HIDDEN, CLASSES, kernel_init=given(p["w2"]), bias_init=given(p["b2"]), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.two(jnp.tanh(self.norm(self.one(x))))


def of_nnx() -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        own = {"w1": model["one"]["kernel"], "b1": model["one"]["bias"], "w2": model["two"]["kernel"]}
        return own | {"b2": model["two"]["bias"], "scale": model["norm"]["scale"], "shift": model["norm"]["bias"]}

    return problems.network(Nnx(), agents()), common


class Equinox(eqx.Module):
    one: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    two: eqx.nn.Linear

    def __init__(self, mode: Any = "batch", momentum: float = 0.9) -> None:
        p, key = parameters(), jax.random.key(0)
        self.one, self.two = (
            eqx.tree_at(lambda layer: (layer.weight, layer.bias), eqx.nn.Linear(*shape, key=key), (w.T, b))
            for shape, w, b in (((INPUTS, HIDDEN), p["w1"], p["b1"]), ((HIDDEN, CLASSES), p["w2"], p["b2"]))
        )
        self.norm = eqx.nn.BatchNorm(HIDDEN, "batch", mode=mode, momentum=momentum)

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(self.one(x), state)
        return self.two(jnp.tanh(x)), state


def of_equinox(mode: str, with_state: bool) -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        own = {"w1": model.one.weight.T, "b1": model.one.bias, "w2": model.two.weight.T, "b2": model.two.bias}
        return own | {"scale": model.norm.weight, "shift": model.norm.bias}

    module = eqx.nn.make_with_state(Equinox)(mode)[0] if with_state else Equinox(mode)
    return problems.network(module, agents()), common


def of_haiku() -> tuple[Problem, Any]:
    def forward(x: Any, train: bool) -> Any:
        p = parameters()
        x = hk.Linear(HIDDEN, w_init=given(p["w1"]), b_init=given(p["b1"]))(x)
        x = jnp.tanh(hk.BatchNorm(True, True, 0.9, eps=EPSILON)(x, is_training=train))
        return hk.Linear(CLASSES, w_init=given(p["w2"]), b_init=given(p["b2"]))(x)

    def common(model: Any) -> Arrays:
        one, norm, two = model["linear"], model["batch_norm"], model["linear_1"]
        own = {"w1": one["w"], "b1": one["b"], "w2": two["w"], "b2": two["b"]}
        return own | {"scale": norm["scale"][0], "shift": norm["offset"][0]}

    return problems.network(hk.transform_with_state(forward), agents()), common


KINDS: dict[str, Callable[[], tuple[Problem, Any]]] = {
    "linen": of_linen,
    "PyTorch": of_torch,
    "PyTorch, called back": partial(of_torch, "callback"),
    "PyTorch without running averages": partial(of_torch, momentum=None, tracked=False),
    "nnx": of_nnx,
    "equinox": partial(of_equinox, "batch", True),
    "equinox with averages": partial(of_equinox, "ema", False),
    "haiku": of_haiku,
}


@cache
def three_rounds(kind: str) -> tuple[Any, Arrays, list[np.ndarray]]:
    problem, common = KINDS[kind]()
    method = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=3, batch=4))
    run: Any = fedpd.simulate(method, problem, rounds=3, progress=False)
    return run.history, common(run.model), jax.tree.leaves(problems.local_statistics(problem, run.model))


QUICK = ("PyTorch",)  # the others: make test-slow


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS if kind != "linen"]
)
def test_three_rounds_of_fedpd_are_those_of_linen(kind: str) -> None:
    (history, model, statistics), (expected, own, others) = three_rounds(kind), three_rounds("linen")
    near = partial(np.testing.assert_allclose, atol=1e-4 if kind == "haiku" else 1e-5)  # haiku: mean of x^2 - mean^2
    for column in ("loss", "stationarity", "test_loss", "test_accuracy", "train_accuracy"):
        near(history[column], expected[column], err_msg=column)
    for name, array in own.items():
        near(model[name], array, err_msg=name)
    for one, other in zip(statistics, others, strict=True):
        near(np.squeeze(one), other, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_is_identified_in_another_process(kind: str) -> None:
    one, other = (problem_identity(KINDS[kind]()[0]) for _ in range(2))
    assert one == other


def batch() -> Arrays:
    own = agents().train[1]
    return {"x": own["x"], "y": own["y"].astype(np.int32)}


def test_statistics_are_those_that_pytorch_normalises_by_and_load_into_the_module() -> None:
    """PyTorch's own output in training is its output in evaluation with these statistics."""
    module, x = torch_module(), torch.from_numpy(batch()["x"])
    problem = problems.network(module, agents())
    assert set(problem.start) == {name for name, _ in module.named_parameters()}  # no buffers, trained or frozen
    assert problem.statistics is not None
    statistics = problem.statistics(problem.start, batch())
    expected = module.train()(x).detach()
    problems.load_model(module, problem.start | {name: np.asarray(one) for name, one in statistics.items()})
    np.testing.assert_allclose(module.eval()(x).detach(), expected, atol=1e-5)
    inner = module[0](x).detach()
    np.testing.assert_allclose(statistics["1.running_var"], inner.var(0, unbiased=False), rtol=1e-5)


@pytest.mark.slow
def test_a_convolution_with_dropout_is_normalised_without_dropout_where_fedpd_measures() -> None:
    rng = np.random.default_rng(0)
    own: Any = {"x": rng.normal(size=(6, 2, 6, 6)).astype(np.float32), "y": np.arange(6) % 3}
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)
    )
    problem = problems.network(module, fedpd.data.from_arrays({"a": own}, {"a": own}, classes=3))
    assert problem.random is not None
    module.train()[4].eval()
    scores = module(torch.from_numpy(own["x"]))
    losses = nn.functional.cross_entropy(scores, torch.from_numpy(own["y"]), reduction="none").detach()
    given = {"x": own["x"], "y": own["y"].astype(np.int32)}
    np.testing.assert_allclose(problem.losses(problem.start, given), losses, atol=1e-5)
    drawn = [problem.random(problem.start, given, jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.allclose(drawn[0], drawn[2])


def haiku_function(*, dropout: bool = False, counts: bool = False, takes_train: bool = True) -> Any:
    def forward(x: Any, train: bool) -> Any:
        if counts:
            hk.set_state("calls", jnp.zeros(()))
        x = hk.BatchNorm(True, True, 0.9)(x, is_training=train)
        return hk.Linear(CLASSES)(hk.dropout(hk.next_rng_key(), 0.5, x) if dropout and train else x)

    return hk.transform_with_state(forward if takes_train else lambda x: forward(x, True))


class Spectral(eqx.Module):
    layer: eqx.nn.SpectralNorm

    def __call__(self, x: Any, state: Any) -> Any:
        return self.layer(x, state)


def spectral() -> Spectral:
    one, two = jax.random.split(jax.random.key(0))
    return Spectral(eqx.nn.SpectralNorm(eqx.nn.Linear(INPUTS, CLASSES, key=one), "weight", key=two))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (
            lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)),
            "layer 0 = 'InstanceNorm1d'.*GroupNorm",
        ),
        (spectral, "layer = 'SpectralNorm'.*only that of eqx.nn.BatchNorm.*Use eqx.nn.GroupNorm"),
        (partial(Equinox, momentum=1.0), "momentum of eqx.nn.BatchNorm = 1.0: must be below 1"),
        (partial(haiku_function, counts=True), "state = '~': fedpd supports only the state of hk.BatchNorm.*GroupNorm"),
        (partial(haiku_function, takes_train=False), r"must be a function of \(x, train\)"),
        (partial(haiku_function, dropout=True), "dropout beside batch normalisation.*Use hk.GroupNorm"),
    ],
)
def test_what_is_refused(module: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        problems.network(module(), agents())


def test_an_equinox_model_loads_into_the_module() -> None:
    for module in (Equinox(), eqx.nn.make_with_state(Equinox)()[0]):
        problem = problems.network(module, agents())
        loaded = problems.load_model(module, jax.tree.map(lambda leaf: leaf + 1, problem.start))
        np.testing.assert_array_equal(loaded.norm.weight, np.full(HIDDEN, 2.0, np.float32))
        assert eqx.tree_equal(jax.tree.structure(loaded), jax.tree.structure(eqx.nn.make_with_state(Equinox)()[0]))
