"""One tiny network, 4 inputs, 5 hidden units, 3 scores, in NumPy and in every library, from the same parameters."""

from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

from fedpd import data, problems
from fedpd.base.process import use_cores
from fedpd.core import Problem
from fedpd.flower.external import from_gradient

use_cores()  # before a test makes a module of nnx or equinox, which computes with JAX
INPUTS, HIDDEN, CLASSES = 4, 5, 3
Arrays = dict[str, np.ndarray]


def agents() -> data.Federated:
    rng = np.random.default_rng(0)
    sizes = {"a": 6, "b": 9, "c": 7}
    own = {
        name: {"x": rng.normal(size=(n, INPUTS)).astype(np.float32), "y": rng.integers(0, CLASSES, n)}
        for name, n in sizes.items()
    }
    return data.split(data.from_arrays(own, classes=CLASSES), 0.25)


def parameters() -> Arrays:
    rng = np.random.default_rng(1)
    shapes = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def numpy_losses(model: Arrays, batch: Arrays) -> np.ndarray:
    scores = np.tanh(batch["x"] @ model["w1"] + model["b1"]) @ model["w2"] + model["b2"]
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(scores)), batch["y"]]


def numpy_gradient(model: Arrays, batch: Arrays) -> Arrays:
    x, y = batch["x"], batch["y"]
    hidden = np.tanh(x @ model["w1"] + model["b1"])
    scores = np.exp(hidden @ model["w2"] + model["b2"])
    slope = (scores / scores.sum(1, keepdims=True) - np.eye(CLASSES, dtype=np.float32)[y]) / len(y)
    back = slope @ model["w2"].T * (1 - hidden**2)
    return {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}


def of_numpy(p: Arrays) -> tuple[Problem, Any]:
    rows = [{"x": one["x"], "y": one["y"].astype(np.int32)} for one in agents().train]
    return problems.from_losses(from_gradient(numpy_losses, numpy_gradient), rows, p), lambda model: model


def of_function(p: Arrays) -> tuple[Problem, Any]:
    def apply(model: Any, x: Any) -> Any:
        return jnp.tanh(x @ model["w1"] + model["b1"]) @ model["w2"] + model["b2"]

    return problems.classification(apply, agents(), p), lambda model: model


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def torch_module(p: Arrays) -> Torch:
    module = Torch()
    with torch.no_grad():
        for layer, w, b in ((module.first, "w1", "b1"), (module.second, "w2", "b2")):
            layer.weight.copy_(torch.from_numpy(p[w].T.copy()))
            layer.bias.copy_(torch.from_numpy(p[b]))
    return module


def from_torch(model: Any) -> Arrays:
    pairs = {"w": "weight", "b": "bias"}
    layers = {"1": "first", "2": "second"}
    return {a + k: np.asarray(model[f"{layers[k]}.{pairs[a]}"]).T for k in layers for a in pairs}


def of_torch(p: Arrays) -> tuple[Problem, Any]:
    return problems.network(torch_module(p), agents()), from_torch


def of_torch_called_back(p: Arrays) -> tuple[Problem, Any]:
    return problems.network(torch_module(p), agents(), backend="callback"), from_torch


def given(value: np.ndarray) -> Any:
    return lambda *_: jnp.asarray(value)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        p = parameters()
        x = linen.Dense(HIDDEN, kernel_init=given(p["w1"]), bias_init=given(p["b1"]))(x)
        return linen.Dense(CLASSES, kernel_init=given(p["w2"]), bias_init=given(p["b2"]))(jnp.tanh(x))


def of_linen(p: Arrays) -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        one, two = model["Dense_0"], model["Dense_1"]
        return {"w1": one["kernel"], "b1": one["bias"], "w2": two["kernel"], "b2": two["bias"]}

    return problems.network(Linen(), agents()), common


class Nnx(nnx.Module):
    def __init__(self, p: Arrays) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List(
            [
                nnx.Linear(INPUTS, HIDDEN, kernel_init=given(p["w1"]), bias_init=given(p["b1"]), rngs=rngs),
                nnx.Linear(HIDDEN, CLASSES, kernel_init=given(p["w2"]), bias_init=given(p["b2"]), rngs=rngs),
            ]
        )

    def __call__(self, x: Any) -> Any:
        return self.layers[1](jnp.tanh(self.layers[0](x)))


def of_nnx(p: Arrays) -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        one, two = model["layers"][0], model["layers"][1]
        return {"w1": one["kernel"], "b1": one["bias"], "w2": two["kernel"], "b2": two["bias"]}

    return problems.network(Nnx(p), agents()), common


def equinox_module(p: Arrays) -> eqx.nn.MLP:
    module = eqx.nn.MLP(INPUTS, CLASSES, HIDDEN, 1, activation=jnp.tanh, key=jax.random.key(0))
    arrays = [jnp.asarray(one) for one in (p["w1"].T, p["b1"], p["w2"].T, p["b2"])]
    places = lambda m: (m.layers[0].weight, m.layers[0].bias, m.layers[1].weight, m.layers[1].bias)  # noqa: E731
    return eqx.tree_at(places, module, tuple(arrays))


def of_equinox(p: Arrays) -> tuple[Problem, Any]:
    def common(model: Any) -> Arrays:
        one, two = model.layers
        return {"w1": one.weight.T, "b1": one.bias, "w2": two.weight.T, "b2": two.bias}

    return problems.network(equinox_module(p), agents()), common


def of_haiku(p: Arrays) -> tuple[Problem, Any]:
    def forward(x: Any) -> Any:
        one = hk.Linear(HIDDEN, w_init=given(p["w1"]), b_init=given(p["b1"]))
        return hk.Linear(CLASSES, w_init=given(p["w2"]), b_init=given(p["b2"]))(jnp.tanh(one(x)))

    def common(model: Any) -> Arrays:
        one, two = model["linear"], model["linear_1"]
        return {"w1": one["w"], "b1": one["b"], "w2": two["w"], "b2": two["b"]}

    return problems.network(hk.transform(forward), agents()), common


KINDS = {
    "NumPy": of_numpy,
    "function": of_function,
    "PyTorch": of_torch,
    "PyTorch, called back": of_torch_called_back,
    "linen": of_linen,
    "nnx": of_nnx,
    "equinox": of_equinox,
    "haiku": of_haiku,
}
