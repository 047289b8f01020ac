"""Classification of federated data with any function that returns scores: softmax cross entropy and accuracy."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.checks import FedpdError, at_least, refuse
from fedpd.base.precision import is_double, scope
from fedpd.base.typed import explained
from fedpd.core import Array, Evaluation, Losses, Problem, Tree
from fedpd.core.agents import BLOCK
from fedpd.data.federated import ByAgent, Federated, Samples
from fedpd.problems.build import Weights, from_losses
from fedpd.problems.evaluation import Metrics, check_metrics, hold_tests, named_metrics

Apply = Callable[[Tree, Array], Array]  # (model, x (B, ...)) -> scores (B, K)


class Normalisation(NamedTuple):
    """The functions that evaluate a model with batch normalisation (see `fedpd.core.statistics`).

    Attributes:
        statistics: (model, x) -> the statistics that `apply` normalises x by.
        apply: (model, statistics, x) -> scores (B, K), with each sample normalised by the given statistics.
    """

    statistics: Callable[[Tree, Array], Tree]
    apply: Callable[[Tree, Tree, Array], Array]


@explained
def classification(
    apply: Apply,
    data: Federated,
    start: Tree,
    *,
    l2: float = 0.0,
    normalisation: Normalisation | None = None,
    weights: Weights = None,
    metrics: Metrics = None,
) -> Problem:
    """Return the problem of classifying federated data with softmax cross entropy.

    F(x; (a, y)) is the cross entropy of softmax(apply(model, a)) against y, plus (l2/2) ||model||^2.

    Args:
        apply: (model, features (B, ...)) -> scores (B, K), one per class of `data.classes`. fedpd converts uint8
            features to floating-point numbers in [0, 1]; other integers (texts) stay unchanged.
        data: The training samples define the f_i; fedpd measures accuracies on the test samples.
        start: The model x^0, any pytree.
        l2: The weight of ||model||^2/2.
        normalisation: Give it if `apply` normalises a batch by its own statistics. f_i then consists of batches of 64
            samples, and an agent's samples are evaluated with the agent's own statistics.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
        metrics: More to measure on test samples, {name: (scores, class numbers) -> (B, ...)}; see
            `fedpd.problems.Metric`.

    Raises:
        FedpdError: If an agent has no training samples.
    """
    at_least("l2", l2, 0, "l2 is the weight of ||model||^2/2; 0 turns it off")
    if not len(data.classes):
        rule = "has no classes, because its labels are numbers to predict"
        refuse("data", data.name, rule, "Use problems.regression, or load the data without classes=False")
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        name = str(data.names[empty[0]])
        raise FedpdError(f"agent {name!r} has no training samples. Leave it out: data.take(d, d.sizes > 0).")
    dtype = jax.tree.leaves(start)[0].dtype

    def features(batch: Tree) -> Array:
        x = batch["x"]
        return x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x

    def trained(model: Tree, batch: Tree) -> Array:
        return apply(model, features(batch))

    def evaluated(model: Tree, batch: Tree) -> Array:
        if normalisation is None:
            return trained(model, batch)
        weights, statistics = model
        return normalisation.apply(weights, statistics, features(batch))

    def correct(model: Tree, batch: Tree) -> Array:
        return (jnp.argmax(evaluated(model, batch), axis=-1) == batch["y"]).astype(dtype)

    def penalty(model: Tree) -> Array:
        return l2 / 2 * optax.tree.norm(model, squared=True)

    train = _numbered_part(data.train, data.classes)
    _check_scores(trained, start, train[0] if isinstance(train, list) else train.sample, len(data.classes))
    block, regulariser = None if normalisation is None else BLOCK, penalty if l2 else None
    problem = from_losses(
        _cross_entropy(trained), train, start, penalty=regulariser, weights=weights, block=block, name=data.name
    )
    if normalisation is not None:
        measure = normalisation.statistics
        problem = replace(problem, statistics=lambda model, batch: measure(model, features(batch)))
    if not data.test_sizes.sum():
        return problem
    numbered, sizes = _numbered_part(data.test, data.classes), data.test_sizes.astype(np.int32)
    tests = hold_tests(numbered, sizes, problem.double)
    own = named_metrics(metrics, evaluated, lambda batch: batch["y"])
    evaluation = Evaluation(correct, tests.data, tests.sizes, _cross_entropy(evaluated), *tests[2:], own)
    problem = replace(problem, evaluation=evaluation)
    return check_metrics(problem) if own else problem


def _check_scores(scores: Losses, start: Tree, samples: Tree, classes: int) -> None:
    """Refuse a function that returns fewer scores than classes: a label without a score has no loss."""
    try:
        with scope(is_double(start, samples)):
            found = jax.eval_shape(scores, start, samples)
    except Exception:  # from_losses, which comes next, says what is wrong with the function
        return
    if getattr(found, "ndim", 0) == 2 and found.shape[1] < classes:
        rule = f"must be at least {classes}, the number of classes"
        refuse("number of scores", found.shape[1], rule, "Give the model one output per class")


def _cross_entropy(scores: Losses) -> Losses:
    """Return the cross entropy losses for a function that returns scores."""

    def losses(model: Tree, batch: Tree) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(scores(model, batch), batch["y"])

    return losses


def _numbered_part(part: ByAgent, classes: np.ndarray) -> Any:
    """Return the samples of all agents with each label replaced by its position in `classes`, in the form they have."""
    if isinstance(part, list):
        return [_numbered(classes, samples) for samples in part]
    return part.map(partial(_numbered, classes))


def _numbered(classes: np.ndarray, samples: Samples) -> dict[str, np.ndarray]:
    """Return the samples with each label replaced by its position in `classes`."""
    return {"x": samples["x"], "y": np.searchsorted(classes, samples["y"]).astype(np.int32)}
