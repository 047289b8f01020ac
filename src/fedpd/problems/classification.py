"""Classification of federated data with any function that returns scores: softmax cross entropy and accuracy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.arrays import as_array, seal
from fedpd.base.checks import FedpdError, at_least, refuse
from fedpd.base.precision import is_double, scope
from fedpd.base.typed import explained
from fedpd.core import Array, Evaluation, Key, Losses, Problem, Tree
from fedpd.core.agents import BLOCK, block_for
from fedpd.core.problem import Judge, WithFrozen
from fedpd.data.federated import Federated, Samples, map_samples
from fedpd.problems.augment import Augment, augmented, check_augment
from fedpd.problems.build import Weights, from_losses
from fedpd.problems.evaluation import Metrics, central_samples, check_metrics, hold_tests, named_metrics
from fedpd.problems.scores import has_one_output, is_right
from fedpd.problems.second_opinion import Plain, check_tests, check_training

Apply = Callable[[Tree, Array], Array]  # (model, x (B, ...)) -> scores (B, K)
RandomApply = Callable[[Tree, Array, Key], Array]  # the same with random layers, drawn from a key
Loss = Callable[[Array, Array], Array]  # (scores (B, K), numbers of the classes (B,)) -> losses (B,)


def _cross_entropy(scores: Array, y: Array) -> Array:
    """Return softmax cross entropy; of one output per sample, binary cross entropy with the logit of class 1."""
    if has_one_output(scores.shape, y.shape):
        return optax.sigmoid_binary_cross_entropy(scores.reshape(y.shape), y.astype(scores.dtype))
    return optax.softmax_cross_entropy_with_integer_labels(scores, y)


CROSS_ENTROPY: Loss = _cross_entropy


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
    augment: Augment | None = None,
    check: bool = True,
) -> Problem:
    """Return the problem of classifying federated data with softmax cross entropy.

    F(x; (a, y)) is the cross entropy of softmax(apply(model, a)) against y, plus (l2/2) ||model||^2. For two classes
    there may be one score, the logit of the second class, with binary cross entropy.

    Args:
        apply: (model, features (B, ...)) -> scores (B, K), one per class of `data.classes`, or (B, 1) for two. The
            features may be a dict of arrays. fedpd converts uint8 features to floating-point numbers in [0, 1]; other
            integers (texts) stay unchanged.
        data: The training samples define the f_i; fedpd measures accuracies on the test samples.
        start: The model x^0, any pytree.
        l2: The weight of ||model||^2/2.
        normalisation: Give it if `apply` normalises a batch by its own statistics. f_i then consists of batches of 64
            samples, and an agent's samples are evaluated with the agent's own statistics.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
        metrics: More to measure on test samples, {name: (scores, class numbers) -> (B, ...)}; see
            `fedpd.problems.Metric`.
        augment: Changes the features of training batches, as for `network`.
        check: Whether to check the model once, as for `from_losses`.

    Raises:
        FedpdError: If an agent has no training samples, or `apply` couples the samples of a batch without a
            `normalisation`.
    """
    rest: dict[str, Any] = {"l2": l2, "normalisation": normalisation, "weights": weights, "metrics": metrics}
    problem = classify(apply, data, start, **rest, check=check)
    if augment is None:
        return problem
    check_augment(augment, data)
    return classify(apply, data, start, **rest, random=augmented(apply, None, augment), check=False)


def classify(
    apply: Apply,
    data: Federated,
    start: Tree,
    *,
    l2: float,
    normalisation: Normalisation | None,
    weights: Weights,
    loss: Loss = CROSS_ENTROPY,
    random: RandomApply | None = None,
    frozen: Tree | None = None,
    metrics: Metrics = None,
    check: bool = True,
    plain: Plain | None = None,
) -> Problem:
    """Return the problem of `classification`, also for other losses, random layers and frozen arrays.

    Args:
        apply: As for `classification`; with `frozen`, the functions receive (frozen, model) in place of the model.
        plain: The losses without fedpd, for this check; None: those that are made of `apply`.
    """
    at_least("l2", l2, 0, "l2 is the weight of ||model||^2/2; 0 turns it off")
    if not len(data.classes):
        rule = "has no classes, because its labels are numbers to predict"
        refuse("data", data.name, rule, "Use problems.regression, or load the data without classes=False")
    check_all_train(data)
    start = jax.tree.map(lambda leaf: as_array(leaf, "start", "Give the model as arrays of numbers"), start)
    if not jax.tree.leaves(start):
        refuse("start", start, "must hold at least one array", "Give the model to start from")
    dtype = jax.tree.leaves(start)[0].dtype

    def features(batch: Tree) -> Array:
        return pixels_scaled(batch["x"], dtype)

    def trained(model: Tree, batch: Tree) -> Array:
        return apply(model, features(batch))

    def evaluated(model: Tree, batch: Tree) -> Array:
        if normalisation is None:
            return trained(model, batch)
        weights, statistics = model
        return normalisation.apply(weights, statistics, features(batch))

    def correct(model: Tree, batch: Tree) -> Array:
        return is_right(evaluated(model, batch), batch["y"]).astype(dtype)

    def penalty(model: Tree) -> Array:
        return l2 / 2 * optax.tree.norm(model, squared=True)

    def drawn(model: Tree, batch: Tree, key: Key) -> Array:
        assert random is not None
        return loss(random(model, features(batch), key), batch["y"])

    def measured(model: Tree, batch: Tree) -> Tree:
        assert normalisation is not None
        return normalisation.statistics(model, features(batch))

    hold = partial(hold_frozen, frozen)
    number = partial(_numbered, data.classes)
    train = map_samples(data.train, number)
    least = 1 if len(data.classes) == 2 else len(data.classes)
    _check_scores(hold(trained), start, train[0] if isinstance(train, list) else train.sample, least)
    block, regulariser = None if normalisation is None else BLOCK, penalty if l2 else None
    if block is None and random is not None:
        block = block_for(data.sizes)  # the same in all layouts, so that full gradients draw the same numbers
    rest: dict[str, Any] = {"penalty": regulariser, "weights": weights, "block": block, "name": data.name}
    problem = from_losses(hold(_losses_of(trained, loss)), train, start, **rest, check=False)
    problem = replace(problem, names=data.names)
    if normalisation is not None:
        problem = replace(problem, statistics=hold(measured))
    if random is not None:
        problem = replace(problem, random=hold(drawn))
    problem = check_training(problem, plain) if check else problem
    judge = partial(hold_frozen, frozen, with_statistics=normalisation is not None)
    named = named_metrics(metrics, evaluated, lambda batch: batch["y"])
    more = tuple((name, metric._replace(values=judge(metric.values))) for name, metric in named)
    hold_central = partial(_central, data.classes, data.label_names)
    own = Judge(hold_central, judge(correct), judge(_losses_of(evaluated, loss)), more, asked=bool(more))
    problem = replace(problem, judge=own)
    if not data.test_sizes.sum():
        return check_metrics(problem) if more else problem
    tests = hold_tests(map_samples(data.test, number), data.test_sizes.astype(np.int32), problem.double)
    evaluation = Evaluation(own.correct, tests.data, tests.sizes, own.losses, *tests[2:], more)
    problem = replace(problem, evaluation=evaluation)
    problem = check_metrics(problem) if more else problem
    return check_tests(problem) if check else problem


def check_all_train(data: Federated) -> None:
    """Refuse an agent without training samples."""
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        name = str(data.names[empty[0]])
        raise FedpdError(f"agent {name!r} has no training samples. Leave it out: data.take(d, d.sizes > 0).")


def pixels_scaled(x: Tree, dtype: Any) -> Tree:
    """Return features with uint8 as numbers in [0, 1] of this type; the entries of a dict are never uint8."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) / 255 if leaf.dtype == jnp.uint8 else leaf, x)


def hold_frozen(frozen: Tree | None, function: Any, *, with_statistics: bool = False) -> Any:
    """Return a function of the model from a function of (frozen, model); without frozen arrays, the function itself."""
    if frozen is None:
        return function
    return WithFrozen(partial(_whole_and_statistics if with_statistics else _whole, function), frozen)


def _whole(function: Any, frozen: Tree, model: Tree, *arguments: Any) -> Any:
    return function((frozen, model), *arguments)


def _whole_and_statistics(function: Any, frozen: Tree, model: Tree, batch: Tree) -> Array:
    weights, statistics = model
    return function(((frozen, weights), statistics), batch)


def _check_scores(scores: Losses, start: Tree, samples: Tree, least: int) -> None:
    """Refuse a function that returns fewer scores than classes: a label without a score has no loss.

    There may be one score (B,) or (B, 1) for two classes, the logit of the second.
    """
    try:
        with scope(is_double(start, samples)):
            found = jax.eval_shape(scores, start, samples)
    except Exception:  # from_losses, which comes next, says what is wrong with the function
        return
    shape = getattr(found, "shape", ())
    number = {1: 1, 2: shape[-1]}.get(len(shape)) if shape else None
    if number is not None and number < least:
        rule = f"must be at least {least}, the number of classes"
        refuse("number of scores", number, rule, "Give the model one output per class")


def _losses_of(scores: Losses, loss: Loss) -> Losses:
    """Return the losses for a function that returns scores."""

    def losses(model: Tree, batch: Tree) -> Array:
        return loss(scores(model, batch), batch["y"])

    return losses


def _central(classes: np.ndarray, names: Sequence[str] | None, samples: Any) -> dict[str, np.ndarray]:
    """Return the samples of a central test set with each label replaced by its position in `classes`."""
    return _numbered(classes, cast(Samples, central_samples(samples, classes, names)))


def _numbered(classes: np.ndarray, samples: Samples) -> dict[str, np.ndarray]:
    """Return the samples with each label replaced by its position in `classes`."""
    return {"x": samples["x"], "y": seal(np.searchsorted(classes, samples["y"]).astype(np.int32))}
