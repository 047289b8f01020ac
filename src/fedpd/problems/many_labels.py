"""Several labels per sample: independent yes-or-no labels, and the next token of a text at every position."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.checks import refuse
from fedpd.base.typed import explained
from fedpd.core import Array, Metric, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.problems.augment import Augment
from fedpd.problems.build import Weights
from fedpd.problems.evaluation import Metrics
from fedpd.problems.supervised import (
    Apply,
    Backend,
    Shape,
    Task,
    mean_over_known,
    samples_in_memory,
    supervise,
    targets_in_memory,
)

LOAD = "Load the data with classes=False"


@explained
def multilabel(
    model: Apply | Any,
    data: Federated,
    start: Tree | None = None,
    *,
    metrics: Metrics = None,
    augment: Augment | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    backend: Backend = "jax",
    check: bool = True,
) -> Problem:
    """Return the problem of predicting K yes-or-no labels per sample.

    F(x; (a, y)) is the mean of the binary cross entropy over the labels of a sample, plus (l2/2) ||x||^2. Missing
    labels (NaN) do not count. The accuracies are shares of labels; `exact_match` is the share of test samples whose
    known labels are all right. `augment`, `seed`, `l2`, `weights`, `backend` and `check` are as for `supervised`.

    Args:
        model: A function (x, features (B, ...)) -> scores (B, K), whose parameters x begin at `start`; or a module, as
            for `supervised`. A positive score predicts 1.
        data: Targets (n, K) of 0 and 1, loaded with `classes=False`; NaN if a label is missing.
        start: The model x^0, any pytree; None for a module.
        metrics: More to measure on test samples, {name: (scores, targets) -> (B, ...)}; see `fedpd.problems.Metric`.

    Raises:
        FedpdError: If a target is not 0, 1 or NaN, or the number of scores is not K.
    """
    if len(data.classes) or len(data.target_shape) != 1:
        refuse("shape of a target", data.target_shape, "must be (K,), one number per label", LOAD)
    for y in targets_in_memory(data):
        wrong = (y != 0) & (y != 1) & (y == y)
        if wrong.any():
            refuse("target", y[wrong][0].item(), "must be 0, 1 or NaN", "Give one column of 0 and 1 per label")

    def task(found: Shape | None) -> Task:
        if found is not None and found != data.target_shape:
            rule = f"must be {data.target_shape}, one score per label"
            refuse("shape of the scores", found, rule, "Change the model")
        return Task(
            partial(mean_over_known, optax.sigmoid_binary_cross_entropy),
            partial(mean_over_known, _is_right),
            {"exact_match": EXACT} | dict(metrics or {}),
        )

    return supervise(
        model, data, start, task, augment=augment, seed=seed, l2=l2, weights=weights, backend=backend, check=check
    )


def _is_right(scores: Array, targets: Array) -> Array:
    return ((scores > 0) == (targets > 0)).astype(scores.dtype)


def _all_right(scores: Array, targets: Array) -> Array:
    return jnp.all(((scores > 0) == (targets > 0)) | jnp.isnan(targets), axis=-1).astype(scores.dtype)


EXACT = Metric(_all_right, better="more", words="share of test samples with all labels right")


@explained
def next_token(
    model: Apply | Any,
    data: Federated,
    start: Tree | None = None,
    *,
    padding: int | None = -100,
    metrics: Metrics = None,
    augment: Augment | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    backend: Backend = "jax",
    check: bool = True,
) -> Problem:
    """Return the problem of predicting the next token at every position of a text.

    F(x; (a, y)) is the mean of the cross entropy over the tokens of a sample, plus (l2/2) ||x||^2. The accuracies are
    shares of tokens, and `perplexity` is the exponential of the mean cross entropy over all test tokens of all agents.
    `augment`, `seed`, `l2`, `weights`, `backend` and `check` are as for `supervised`.

    Args:
        model: A function (x, tokens (B, T)) -> scores (B, T, K), whose parameters x begin at `start`; or a module, as
            for `supervised`. It must not use tokens after the position.
        data: Tokens x (n, T) and the tokens that follow them, y (n, T), whole numbers, loaded with `classes=False`. For
            a PyTorch module, x may be a dict such as {"input_ids": (n, T), "attention_mask": (n, T)}.
        start: The model x^0, any pytree; None for a module.
        padding: The number in y that marks positions without a token, -100 as in PyTorch; None: all positions count.
        metrics: More to measure on test samples, {name: (scores, y) -> (B, ...)}; see `fedpd.problems.Metric`.

    Raises:
        FedpdError: If x and y differ in shape, or a token has no score.
    """
    shapes = [shape for shape, _ in data.features.values()]
    if len(data.classes) or len(data.target_shape) != 1 or data.target_shape not in shapes:
        rule = f"must be the shape of x, {', '.join(map(str, shapes))}, one token per position"
        refuse("shape of a target", data.target_shape, rule, "Give y = text[:, 1:] for x = text[:, :-1]. " + LOAD)
    _check_shifted(data, padding)

    def task(found: Shape | None) -> Task:
        _check_tokens(data, found, padding)
        return Task(
            partial(_token_mean, _entropies, padding),
            partial(_token_mean, _hits, padding),
            {"perplexity": PERPLEXITY._replace(values=partial(_counted, _entropies, padding))} | dict(metrics or {}),
        )

    return supervise(
        model, data, start, task, augment=augment, seed=seed, l2=l2, weights=weights, backend=backend, check=check
    )


def _check_tokens(data: Federated, found: Shape | None, padding: int | None) -> None:
    """Refuse scores of a wrong shape, and tokens without a score.

    Args:
        found: The shape of one sample's scores; None: not known.
    """
    (length,) = data.target_shape
    if found is not None and (len(found) != 2 or found[0] != length):
        rule = f"must be ({length}, K), one score per position and token"
        refuse("shape of the scores", found, rule, "Return the scores of all positions")
    for y in targets_in_memory(data):
        if y.dtype.kind != "i":
            refuse("type of y", str(y.dtype), "must be whole numbers, the tokens", "Number the tokens from 0")
        wrong = ((y < 0) | (y >= (y.max(initial=0) + 1 if found is None else found[1]))) & (y != padding)
        if wrong.any():
            rule = "must be at least 0 and below the number of scores" + ("" if found is None else f", {found[1]}")
            refuse("token", y[wrong][0].item(), rule, "Give the model more scores, or padding= for such positions")


def _check_shifted(data: Federated, padding: int | None) -> None:
    """Refuse targets that are the tokens themselves, which models of Hugging Face shift, and fedpd does not."""
    held = samples_in_memory(data)
    targets = [own["y"] for own in held]
    entries = zip(*(jax.tree.leaves(own["x"]) for own in held), strict=True)
    same = any(
        all(x.shape == y.shape and ((x == y) | (y == padding)).all() for x, y in zip(parts, targets, strict=True))
        for parts in entries
    )
    if same and len(np.unique(np.concatenate([y[y != padding] for y in targets]))) > 1:
        rule = "are the tokens of x themselves, but must be the tokens that follow them"
        refuse("targets", data.name, rule, "Give x = tokens[:, :-1] and y = tokens[:, 1:], also of the mask")


def _counted(values: Any, padding: int | None, scores: Array, y: Array) -> Array:
    """Return values(scores, y), NaN at positions without a token."""
    found = values(scores, jnp.maximum(y, 0))
    return found if padding is None else jnp.where(y == padding, jnp.nan, found)


def _token_mean(values: Any, padding: int | None, scores: Array, y: Array) -> Array:
    """Return (B,) the mean of values(scores, y) over the tokens of each sample; 0 without any token."""
    found = values(scores, jnp.maximum(y, 0))
    if padding is None:
        return jnp.mean(found, axis=1)
    real = y != padding
    return jnp.sum(jnp.where(real, found, 0), axis=1) / jnp.maximum(jnp.sum(real, axis=1), 1)


def _entropies(scores: Array, y: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores, y)


def _hits(scores: Array, y: Array) -> Array:
    return (jnp.argmax(scores, axis=-1) == y).astype(scores.dtype)  # classes are the last axis, also if K = T


PERPLEXITY = Metric(_entropies, of_mean="exp", words="perplexity of the test tokens")
