"""How outputs become classes, and metrics of classification and survival that are no means over samples.

The rule for classes is the same for simulations and for clients, in JAX, NumPy and PyTorch. The metrics are for the
argument `metrics` of a problem:

    problems.classification(apply, data, start, metrics={"auc": problems.auc(), "f1": problems.f1(over="agents")})

Each is the metric of the test samples of all agents together, or the mean of the agents' own metrics.
"""

from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp

from fedpd.base.checks import FedpdError, choice, count, refuse
from fedpd.base.typed import explained
from fedpd.core import Array, Metric
from fedpd.core.problem import Over

Shape = tuple[int, ...]


def is_right(outputs: Any, targets: Any) -> Any:
    """Return whether outputs predict the targets, in the shape of the targets.

    One output per sample is the logit of the second of two classes: a positive one predicts it. Its targets are 0 and
    1, or -1 and 1. Of several outputs, the largest one predicts its class.

    Raises:
        ValueError: If the shapes do not fit.

    Examples:
        >>> from fedpd.problems.scores import is_right
        >>> import numpy as np
        >>> is_right(np.array([[-2.0], [3.0]]), np.array([1, 1])).tolist()
        [False, True]
        >>> is_right(np.array([[0.1, 0.9], [0.8, 0.3]]), np.array([1, 1])).tolist()
        [True, False]
    """
    if has_one_output(outputs.shape, targets.shape):
        return (outputs.reshape(targets.shape) > 0) == (targets > 0)
    axis = class_axis(outputs.shape, targets.shape)
    if axis is None:
        raise ValueError(f"outputs {tuple(outputs.shape)} are not scores of the classes of {tuple(targets.shape)}")
    return outputs.argmax(axis) == targets


def has_one_output(outputs: Shape, targets: Shape) -> bool:
    """Return whether there is one output per sample, and one target."""
    single = [tuple(outputs[1:]) in ((), (1,)), tuple(targets[1:]) in ((), (1,))]
    return all(single) and outputs[:1] == targets[:1]


def class_axis(outputs: Shape, targets: Shape) -> int | None:
    """Return the axis of the outputs that has one score per class; None: there is none."""
    if tuple(targets) == (*outputs[:1], *outputs[2:]):
        return 1
    return -1 if tuple(targets) == tuple(outputs[:-1]) else None


@explained
def auc(*, over: Over = "samples") -> Metric:
    """Return the area under the ROC curve: the share of pairs of two classes in the right order; ties count half.

    With two classes, it is the probability that a sample of the second class has a larger score than one of the first.
    With more, it is the mean over the classes of one class against the others, by the softmax of the scores; a class
    that no sample or every sample has is left out. It is NaN if all samples have one class.

    Args:
        over: "samples": of the test samples of all agents together. "agents": the mean of the agents' own, in which
            agents with one class only are left out.
    """
    choice("over", over, get_args(Over))
    return Metric(_scores_and_class, better="more", words="area under the ROC curve", of_all=_macro_auc, over=over)


@explained
def c_index(*, over: Over = "samples") -> Metric:
    """Return Harrell's concordance index: the share of comparable pairs that the outputs put in the right order.

    A pair is comparable if the sample with the shorter time had an event. It is concordant if this sample has the
    larger output, the larger risk; equal outputs count half. The time to compute it grows with the square of the number
    of samples. It is NaN if no pair is comparable.

    Args:
        over: As for `auc`. The outputs are risks, (B,) or (B, 1). The targets are times, (B,), or times and events,
            (B, 2), with 1 for an event and 0 for a censored time.
    """
    choice("over", over, get_args(Over))
    return Metric(_risk_and_time, better="more", words="concordance index", of_all=_concordance, over=over)


@explained
def f1(*, positive: int | None = None, over: Over = "samples") -> Metric:
    """Return the F1 score: 2 true positives / (predictions of a class + samples of the class).

    Args:
        positive: The number of the class, counted from 0; None: the mean over the classes that occur in the predictions
            or in the samples (macro F1).
        over: As for `auc`.
    """
    choice("over", over, get_args(Over))
    if positive is not None:
        count("positive", positive, "Give the number of a class, counted from 0, e.g. 1", least=0)
    score = partial(_f1, positive)
    return Metric(_counts_by_class, better="more", words="F1 score", of_sum=score, over=over)


@explained
def balanced_accuracy(*, over: Over = "samples") -> Metric:
    """Return the balanced accuracy: the mean over the classes that occur of the share of right predictions.

    Args:
        over: As for `auc`.
    """
    choice("over", over, get_args(Over))
    return Metric(_counts_by_class, better="more", words="balanced accuracy", of_sum=_mean_recall, over=over)


def _scores_and_class(outputs: Array, targets: Array) -> Array:
    """Return the score of each class, or one for the second of two classes, and the class, (B, K + 1) or (B, 2)."""
    if has_one_output(outputs.shape, targets.shape):
        scores, classes = outputs.reshape(-1, 1), targets.reshape(-1) > 0
    elif _check_one_class(outputs, targets) == 2:
        scores, classes = outputs[:, 1:] - outputs[:, :1], targets
    else:
        scores, classes = jax.nn.softmax(outputs), targets
    return jnp.concatenate([scores, classes[:, None].astype(scores.dtype)], axis=1)


def _check_one_class(outputs: Array, targets: Array) -> int:
    """Return the number of classes; refuse outputs and targets that are not (B, K) and (B,)."""
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        found = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        raise FedpdError(f"{found} must be (B, K) and (B,): one class per sample")
    return outputs.shape[1]


def _macro_auc(values: Array, inside: Array) -> Array:
    scores, classes = values[:, :-1], values[:, -1]
    if scores.shape[1] == 1:
        return _binary_auc(inside, scores[:, 0], classes == 1)
    positive = classes[:, None] == jnp.arange(scores.shape[1])
    return jnp.nanmean(jax.lax.map(lambda one: _binary_auc(inside, *one), (scores.T, positive.T)))


def _binary_auc(inside: Array, scores: Array, positive: Array) -> Array:
    """Return the mean over the positives of the share of negatives below, ties half; NaN if there are none of one."""
    positive, negative = inside & positive, inside & ~positive
    below = jnp.sort(jnp.where(negative, scores, jnp.inf))  # negatives first: the others are infinite
    less, most = (jnp.searchsorted(below, scores, side=side) for side in ("left", "right"))
    negatives = jnp.sum(negative)
    share = (less + jnp.minimum(most, negatives)) / (2 * jnp.maximum(negatives, 1))
    known = (negatives > 0) & jnp.any(positive) & ~jnp.any(inside & jnp.isnan(scores))
    return jnp.where(known, jnp.sum(jnp.where(positive, share, 0)) / jnp.maximum(jnp.sum(positive), 1), jnp.nan)


def _risk_and_time(outputs: Array, targets: Array) -> Array:
    """Return the risk, the time and whether there was an event, (B, 3)."""
    risk = outputs.reshape(len(outputs))
    times = targets if targets.ndim == 2 and targets.shape[1] == 2 else targets.reshape(len(targets), 1)
    event = times[:, 1:] if times.shape[1] == 2 else jnp.ones_like(times)
    parts = (risk[:, None], times[:, :1], event)
    return jnp.concatenate([part.astype(risk.dtype) for part in parts], axis=1)


def _concordance(values: Array, inside: Array) -> Array:
    risk, time, event = values.T

    def of_one(one: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        """Return the shares of a sample in all pairs: concordant, and comparable."""
        own, at, happened, here = one
        later = here & (happened > 0) & inside & (time > at)
        return jnp.mean(later * ((own > risk) + 0.5 * (own == risk))), jnp.mean(later.astype(risk.dtype))

    concordant, comparable = (jnp.sum(part) for part in jax.lax.map(of_one, (risk, time, event, inside)))
    known = (comparable > 0) & ~jnp.any(inside & jnp.isnan(risk))
    return jnp.where(known, concordant / jnp.where(comparable > 0, comparable, 1), jnp.nan)


def _counts_by_class(outputs: Array, targets: Array) -> Array:
    """Return 1 where the prediction is right, where a class is predicted, and where it is the target, (B, 3, K)."""
    if has_one_output(outputs.shape, targets.shape):
        predicted, actual, classes = outputs.reshape(-1) > 0, targets.reshape(-1) > 0, 2
    else:
        _check_one_class(outputs, targets)
        predicted, actual, classes = outputs.argmax(-1), targets, outputs.shape[-1]
    said, true = (jax.nn.one_hot(one.astype(int), classes, dtype=float) for one in (predicted, actual))
    return jnp.stack([said * true, said, true], axis=1)


def _f1(positive: int | None, counts: Array) -> Array:
    right, said, true = counts
    if positive is not None and positive >= len(right):  # an index out of range would be another class
        refuse("positive", positive, f"must be below {len(right)}, the number of classes", "Give the class's number")
    scores = jnp.where(said + true > 0, 2 * right / jnp.maximum(said + true, 1), jnp.nan)
    return jnp.nanmean(scores) if positive is None else scores[positive]


def _mean_recall(counts: Array) -> Array:
    right, _, true = counts
    return jnp.nanmean(jnp.where(true > 0, right / jnp.maximum(true, 1), jnp.nan))
