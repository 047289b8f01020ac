"""Classification of federated data by any model: scores in, softmax cross entropy and accuracy out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.checks import FedpdError, at_least
from fedpd.core import Array, Evaluation, Problem, Tree
from fedpd.data.federated import Federated, Samples
from fedpd.problems.build import from_losses

Apply = Callable[[Tree, Array], Array]  # (model, x (B, ...)) -> scores (B, K)


def classification(apply: Apply, data: Federated, start: Tree, *, l2: float = 0.0) -> Problem:
    """F(x; (a, y)) = cross entropy of softmax(apply(model, a)) against y, plus (l2/2) ||model||^2.

    apply: (model, features (B, ...)) -> scores (B, K), one a class of `data.classes`. uint8 features reach it as
           floating-point numbers in [0, 1], integers (texts) as they are.
    data:  train samples make up the f_i; test samples are what the accuracy is measured on.
    start: the model x^0, any pytree.
    """
    at_least("l2", l2, 0, "l2 weighs ||model||^2/2; 0 leaves it out")
    for name, samples in zip(data.names, data.train, strict=True):
        if not len(samples["y"]):
            raise FedpdError(f"agent {name!r} has no training samples. Leave it out: data.take(d, d.sizes > 0).")
    dtype = jax.tree.leaves(start)[0].dtype

    def scores(model: Tree, batch: Tree) -> Array:
        x = batch["x"]
        return apply(model, x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x)

    def losses(model: Tree, batch: Tree) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(scores(model, batch), batch["y"])

    def correct(model: Tree, batch: Tree) -> Array:
        return (jnp.argmax(scores(model, batch), axis=-1) == batch["y"]).astype(dtype)

    def penalty(model: Tree) -> Array:
        return l2 / 2 * optax.tree.norm(model, squared=True)

    train = [_numbered(samples, data.classes) for samples in data.train]
    problem = from_losses(losses, train, start, penalty=penalty if l2 else None, name=data.name)
    if not data.test_sizes.sum():
        return problem
    return replace(problem, evaluation=Evaluation(correct, *_tests(data)))


def _numbered(samples: Samples, classes: np.ndarray) -> dict[str, np.ndarray]:
    """Labels as places in `classes`."""
    return {"x": samples["x"], "y": np.searchsorted(classes, samples["y"]).astype(np.int32)}


def _tests(data: Federated) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(N, m, ...) test samples and (N,) their numbers; agents with fewer are padded with the first test sample."""
    sizes = data.test_sizes.astype(np.int32)
    tests = [_numbered(samples, data.classes) for samples in data.test]
    first = tests[int(np.argmax(sizes > 0))]

    def fill(name: str) -> np.ndarray:
        filled = np.broadcast_to(first[name][0], (len(tests), sizes.max(), *first[name].shape[1:])).copy()
        for row, samples in zip(filled, tests, strict=True):
            row[: len(samples["y"])] = samples[name]
        return filled

    return {name: fill(name) for name in ("x", "y")}, sizes


def network(module: Any, data: Federated, *, seed: int = 0, l2: float = 0.0) -> Problem:
    """`classification` by a flax module, with its own initialisation.

    Modules that keep statistics of batches (batch normalisation) are refused: use group or layer normalisation.
    """
    x = data.train[0]["x"][:1]
    example = jnp.asarray(x / np.float32(255) if x.dtype == np.uint8 else x)
    variables = module.init(jax.random.key(seed), example)
    kept = [name for name in variables if name != "params"]
    if kept:
        raise FedpdError(
            f"the module keeps {', '.join(kept)} besides parameters, which agents cannot share yet. Use group or layer "
            "normalisation instead of batch normalisation."
        )

    def apply(model: Tree, x: Array) -> Array:
        return module.apply({"params": model}, x)

    return classification(apply, data, jax.tree.map(np.asarray, variables["params"]), l2=l2)
