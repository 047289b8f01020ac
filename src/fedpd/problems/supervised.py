"""Problems from a model, targets of any shape, and a loss per sample: segmentation, ranking, and your own tasks.

`classification`, `regression`, `multilabel` and `next_token` are the common tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.arrays import seal
from fedpd.base.checks import at_least, choice, refuse
from fedpd.base.precision import is_double, scope
from fedpd.base.process import use_cores
from fedpd.base.typed import explained
from fedpd.core import Array, Evaluation, Key, Problem, Tree
from fedpd.core.agents import block_for
from fedpd.core.problem import Judge
from fedpd.data.federated import Federated, Samples, map_samples
from fedpd.data.lazy import Lazy
from fedpd.problems.augment import Augment, augmented, check_augment
from fedpd.problems.build import Weights, from_losses
from fedpd.problems.classification import Apply, check_all_train, hold_frozen, pixels_scaled
from fedpd.problems.evaluation import Metrics, Values, central_samples, check_metrics, hold_tests, named_metrics
from fedpd.problems.modules import (
    Function,
    adapted,
    confirmed,
    example_samples,
    explained_indices,
    function_of,
    in_jax,
    is_torch,
    library_of,
    name_of_library,
    plain_losses,
)
from fedpd.problems.second_opinion import check_tests, check_training

Backend = Literal["jax", "callback"]
Shape = tuple[int, ...]


@explained
def supervised(
    model: Apply | Any,
    data: Federated,
    start: Tree | None = None,
    *,
    loss: Values,
    correct: Values | None = None,
    metrics: Metrics = None,
    augment: Augment | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    backend: Backend = "jax",
    check: bool = True,
) -> Problem:
    """Return a problem from a model, federated data and a loss of outputs and targets.

    F(x; (a, y)) = loss(model(a), y) + (l2/2) ||x||^2.

    Args:
        model: A function (x, features (B, ...)) -> outputs (B, ...), whose parameters x begin at `start`; or a
            module of PyTorch, flax (linen or nnx), equinox or haiku, as for `network`: it starts at its own parameters,
            and frozen ones stay. uint8 features become floating-point numbers in [0, 1]. A PyTorch module takes
            features that are a dict by name.
        data: The training samples define the f_i; fedpd measures `correct` and the metrics on the test samples. Load
            targets that are not classes with `classes=False`.
        start: The model x^0, any pytree; None for a module.
        loss: (outputs, targets) -> (B,), one loss per sample, or a loss module of PyTorch, of which fedpd takes the
            mean over each sample. Missing targets are NaN.
        correct: (outputs, targets) -> (B,), 1 for a right prediction and 0 for a wrong one, or the share of a sample
            that is right, such as its pixels. It defines the accuracies; None: there are none.
        metrics: More to measure on test samples, {name: (outputs, targets) -> (B, ...)}; see `fedpd.problems.Metric`.
        augment: Changes the features of training batches, as for `network`; targets stay.
        seed: The seed of a module's initialisation, if it does not come initialised.
        l2: The weight of ||x||^2/2.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
        backend: For modules of PyTorch: "jax" or "callback", as for `network`.
        check: Whether to check the loss and the metrics once, as for `from_losses` and, for a module, `network`.

    Raises:
        FedpdError: If the loss averages over samples or couples them, shapes do not fit, an agent has no training
            samples, or the module has batch normalisation.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems
        >>> from fedpd.data import from_arrays
        >>> one = {"x": np.ones((3, 2)), "y": np.ones((3, 2))}
        >>> both = from_arrays({"a": one, "b": one}, {"a": one}, classes=False)
        >>> far = lambda outputs, targets: abs(outputs - targets).max(axis=1)
        >>> problem = problems.supervised(
        ...     lambda x, a: a * x, both, np.zeros(2), loss=far, metrics={"farthest": far}
        ... )
        >>> problem.agents, [name for name, _ in problem.evaluation.metrics]
        (2, ['farthest'])
    """
    values = in_jax(loss)
    ignored = None if values is loss else getattr(loss, "ignore_index", None)
    if ignored is not None and any((y == ignored).any() for y in targets_in_memory(data)):
        # PyTorch's mean is over the others, and fedpd's over all.
        rule = f"leaves out targets of {ignored}, and fedpd would count them as losses of 0"
        remedy = "Use problems.next_token, or a loss of your own in JAX that divides by the number of the others"
        refuse("loss", type(loss).__name__, rule, remedy)
    task = Task(values if values is loss else partial(mean_over_known, values), correct, metrics)
    return supervise(
        model,
        data,
        start,
        lambda _: task,
        augment=augment,
        seed=seed,
        l2=l2,
        weights=weights,
        backend=backend,
        check=check,
    )


class Task(NamedTuple):
    """The loss of a task and its measures, as functions of (outputs, targets); see `supervised`."""

    loss: Values  # one loss per sample
    correct: Values | None = None  # which predictions are right
    metrics: Metrics = None  # more to measure
    squeeze: bool = False  # whether the last axis of the outputs, of length 1, is dropped first


def supervise(
    model: Any,
    data: Federated,
    start: Tree | None,
    task: Callable[[Shape | None], Task],
    *,
    augment: Augment | None,
    seed: int,
    l2: float,
    weights: Weights,
    backend: str,
    check: bool,
) -> Problem:
    """Return the problem of `supervised` for a task that may depend on the outputs.

    Args:
        task: (shape of one sample's outputs, or None if the model fails) -> the task.
    """
    at_least("l2", l2, 0, "l2 is the weight of ||model||^2/2; 0 turns it off")
    choice("backend", backend, ("jax", "callback"))
    check_all_train(data)
    if start is None:
        problem, own, function = _of_module(model, data, task, seed, l2, weights, backend, check)
    else:
        function = _given(model, start, backend)
        own = task(_outputs_shape(function, data))
        problem = _build(function, data, own, l2, weights, check)
    if augment is None:
        return problem
    check_augment(augment, data)  # the library, with which the problem was compared, does not know of it
    changed = function._replace(random=augmented(function.apply, function.random, augment))
    return _build(changed, data, own, l2, weights, check=False)


def _of_module(
    model: Any,
    data: Federated,
    task: Callable[[Shape | None], Task],
    seed: int,
    l2: float,
    weights: Weights,
    backend: str,
    check: bool,
) -> tuple[Problem, Task, Function]:
    """Return the problem of a module, its task, and the module as a function."""
    if name_of_library(model) is None:
        rule = "must be a module of PyTorch, flax (linen or nnx), equinox or haiku, not its class, if no start is given"
        called = getattr(model, "__name__", type(model).__name__)
        refuse("model", called, rule, "Give start=, the parameters of your function")
    use_cores()  # before JAX computes anything
    library, few = library_of(model), example_samples(data)

    def build(backend: str) -> tuple[Problem, Task, Function]:
        adapter = adapted(library, model, few["x"], backend=backend, seed=seed)
        if adapter.normalisation is not None:
            remedy = "Use layers such as GroupNorm or LayerNorm, or problems.network if it classifies"
            refuse("model", type(model).__name__, "has batch normalisation, which this task does not support", remedy)
        function = function_of(library, model, adapter, None)
        own = task(_outputs_shape(function, data))
        return _build(function, data, own, l2, weights, check), own, function

    with explained_indices(model):
        problem, own, function = build(backend)
    if not check or not is_torch(library):
        return problem, own, function
    batch = _prepared(data.classes, has_missing(data), few)

    def loss(scores: Array, y: Array) -> Array:
        return own.loss(_squeezed(own.squeeze, scores), targets_of(batch | {"y": y}))

    def again() -> Problem:
        nonlocal function
        called_back, _, function = build("callback")
        return called_back

    problem = confirmed(model, problem, batch, loss, backend=backend, again=again if backend == "jax" else None)
    return problem, own, function


def _given(model: Any, start: Tree, backend: str) -> Function:
    """Return a function that the user gives with its start."""
    if not callable(model):
        refuse("model", type(model).__name__, "must be a function of (x, features)", "Give e.g. lambda x, a: a @ x")
    if name_of_library(model) in ("torch", "linen", "nnx"):
        rule = "is a module, which brings its own parameters, so there must be no start"
        refuse("model", type(model).__name__, rule, "Leave start out")
    if backend != "jax":
        refuse("backend", backend, "is for modules of PyTorch only", "Leave it out")
    return Function(model, start)


def _build(function: Function, data: Federated, task: Task, l2: float, weights: Weights, check: bool) -> Problem:
    """Return the problem of a task."""
    holes = has_missing(data)
    prepare = partial(_prepared, data.classes, holes)
    train, tests = (map_samples(part, prepare) for part in (data.train, data.test))

    # What the functions below use identifies the problem in another process, so they use nothing else.
    apply, random, loss, correct, squeeze = function.apply, function.random, task.loss, task.correct, task.squeeze

    def outputs(model: Tree, batch: Tree) -> Array:
        return _squeezed(squeeze, apply(model, _features(batch["x"])))

    def losses(model: Tree, batch: Tree) -> Array:
        return loss(outputs(model, batch), targets_of(batch))

    def right(model: Tree, batch: Tree) -> Array:
        assert correct is not None  # it is used only then
        return jnp.asarray(correct(outputs(model, batch), targets_of(batch))).astype(float)

    def drawn(model: Tree, batch: Tree, key: Key) -> Array:
        assert random is not None  # it is used only then
        return loss(_squeezed(squeeze, random(model, _features(batch["x"]), key)), targets_of(batch))

    def penalty(model: Tree) -> Array:
        return l2 / 2 * optax.tree.norm(model, squared=True)

    hold = partial(hold_frozen, function.frozen)
    # The same blocks in all layouts, so that full gradients draw the same random numbers.
    block = None if function.random is None else block_for(data.sizes)
    rest: dict[str, Any] = {"penalty": penalty if l2 else None, "weights": weights, "block": block, "name": data.name}
    problem = replace(from_losses(hold(losses), train, function.start, **rest, check=False), names=data.names)
    if function.random is not None:
        problem = replace(problem, random=hold(drawn))
    if check:
        plain = plain_losses(function, lambda found, batch: loss(_squeezed(squeeze, found), targets_of(batch)))
        problem = check_training(problem, plain)
    named = named_metrics(task.metrics, outputs, targets_of)
    measured = tuple((name, metric._replace(values=hold(metric.values))) for name, metric in named)
    judge = None if task.correct is None else hold(right)
    problem = replace(
        problem, judge=Judge(partial(_central, data.classes, data.label_names, holes), judge, None, measured)
    )
    if not data.test_sizes.sum():
        return check_metrics(problem)
    held = hold_tests(tests, data.test_sizes.astype(np.int32), problem.double)
    evaluation = Evaluation(judge, held.data, held.sizes, None, held.offsets, held.load, measured)
    problem = check_metrics(replace(problem, evaluation=evaluation))
    return check_tests(problem) if check else problem


def _squeezed(squeeze: bool, outputs: Array) -> Array:
    return jnp.squeeze(outputs, axis=-1) if squeeze else outputs


def _example(data: Federated) -> Samples:
    """Return the first training samples of an agent, or for ragged and lazy data zeros of their shape."""
    if isinstance(data.train, list):
        return next(own for own in data.train if len(own["y"]))
    zeros = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), data.train.sample)
    return {"x": zeros["x"], "y": zeros["y"]}


def _features(x: Tree) -> Tree:
    return pixels_scaled(x, float)


def _outputs_shape(function: Function, data: Federated) -> Shape | None:
    """Return the shape of one sample's outputs; None if the function fails, which `from_losses` explains."""
    x = jax.tree.map(lambda leaf: leaf[:1], _example(data)["x"])
    model = function.start if function.frozen is None else (function.frozen, function.start)
    try:
        with scope(is_double(function.start, x)):
            found = jax.eval_shape(lambda model, x: function.apply(model, _features(x)), model, x)
    except Exception:  # from_losses says what is wrong with the function
        return None
    shape = getattr(found, "shape", ())
    return tuple(shape[1:]) if shape[:1] == (1,) else None


def has_missing(data: Federated) -> bool:
    """Return whether a target in memory is NaN."""
    return any(np.isnan(y).any() for y in targets_in_memory(data) if y.dtype.kind == "f")


def targets_in_memory(data: Federated) -> list[np.ndarray]:
    """Return the targets of all samples, train and test; those of lazy data are left out."""
    return [own["y"] for own in samples_in_memory(data)]


def samples_in_memory(data: Federated) -> list[Samples]:
    """Return the samples of all agents in memory, train and test, in some parts."""
    found: list[Samples] = []
    for part in (data.train, data.test):
        if not isinstance(part, Lazy):
            found += part if isinstance(part, list) else [cast(Samples, part.rows)]
    return found


def _central(classes: np.ndarray, names: Sequence[str] | None, holes: bool, samples: Any) -> dict[str, np.ndarray]:
    """Return the samples of a central test set as the problem holds samples."""
    return _prepared(classes, holes, cast(Samples, central_samples(samples, classes, names)))


def _prepared(classes: np.ndarray, holes: bool, samples: Samples) -> dict[str, np.ndarray]:
    """Return samples with class numbers or targets in the precision of x; missing targets are 0 and not `known`."""
    x, y = samples["x"], samples["y"]
    if len(classes):
        return {"x": x, "y": seal(np.searchsorted(classes, y).astype(np.int32))}
    if y.dtype.kind != "f":
        return {"x": x, "y": y}
    y = seal(y.astype(np.float64 if is_double(x) else np.float32))
    if not holes:
        return {"x": x, "y": y}
    return {"x": x, "y": seal(np.nan_to_num(y, nan=0.0)), "known": seal(~np.isnan(y))}


def targets_of(batch: Tree) -> Array:
    """Return the targets of a batch, NaN where they are missing."""
    return jnp.where(batch["known"], batch["y"], jnp.nan) if "known" in batch else batch["y"]


def mean_over_known(values: Values, outputs: Array, targets: Array) -> Array:
    """Return (B,) the mean of values(outputs, targets) over the parts of a sample whose target is known; else 0.

    Missing targets are replaced before `values` sees them, so that its gradient has no NaN.
    """
    if not jnp.issubdtype(targets.dtype, jnp.floating):
        return _mean_of_parts(values(outputs, targets))
    known = ~jnp.isnan(targets)
    found = values(outputs, jnp.where(known, targets, 0))
    if found.shape != targets.shape:
        return _mean_of_parts(found)
    total, number = (jnp.sum(leaf.reshape(len(leaf), -1), axis=1) for leaf in (jnp.where(known, found, 0), known))
    return total / jnp.maximum(number, 1).astype(total.dtype)


def _mean_of_parts(values: Array) -> Array:
    """Return (B,) the mean of each sample's values; a scalar stays, which `from_losses` refuses."""
    return values if values.ndim < 2 else jnp.mean(values.reshape(len(values), -1), axis=1)
