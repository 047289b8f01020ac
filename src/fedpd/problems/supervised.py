"""Problems from a model, targets of any shape, and a loss per sample: segmentation, ranking, and your own tasks.

`classification`, `regression`, `multilabel` and `next_token` are the common tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.arrays import seal
from fedpd.base.checks import FedpdError, at_least, refuse
from fedpd.base.extras import extra
from fedpd.base.precision import is_double, scope
from fedpd.base.typed import explained
from fedpd.core import Array, Evaluation, Problem, Tree
from fedpd.core.problem import Judge
from fedpd.data.federated import ByAgent, Federated, Samples
from fedpd.data.lazy import Lazy
from fedpd.problems.build import Weights, from_losses
from fedpd.problems.evaluation import Metrics, Values, central_samples, check_metrics, hold_tests, named_metrics
from fedpd.problems.second_opinion import check_tests

Apply = Callable[[Tree, Array], Array]  # (model, x (B, ...)) -> outputs (B, ...)


@explained
def supervised(
    model: Apply | Any,
    data: Federated,
    start: Tree | None = None,
    *,
    loss: Values,
    correct: Values | None = None,
    metrics: Metrics = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    check: bool = True,
) -> Problem:
    """Return a problem from a model, federated data and a loss of outputs and targets.

    F(x; (a, y)) = loss(model(a), y) + (l2/2) ||x||^2.

    Args:
        model: A function (x, features (B, ...)) -> outputs (B, ...), whose parameters x begin at `start`; or a
            flax.linen module, which initialises itself. uint8 features become floating-point numbers in [0, 1].
        data: The training samples define the f_i; fedpd measures `correct` and the metrics on the test samples. Load
            targets that are not classes with `classes=False`.
        start: The model x^0, any pytree; None for a module.
        loss: (outputs, targets) -> (B,), one loss per sample. Missing targets are NaN.
        correct: (outputs, targets) -> (B,), 1 for a right prediction and 0 for a wrong one, or the share of a sample
            that is right, such as its pixels. It defines the accuracies; None: there are none.
        metrics: More to measure on test samples, {name: (outputs, targets) -> (B, ...)}; see `fedpd.problems.Metric`.
        seed: The seed of a module's initialisation.
        l2: The weight of ||x||^2/2.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
        check: Whether to check the loss and the metrics once, as for `from_losses`.

    Raises:
        FedpdError: If the loss averages over samples or couples them, shapes do not fit, or an agent has no training
            samples.

    Examples:
        >>> from fedpd.data import from_arrays
        >>> one = {"x": np.ones((3, 2)), "y": np.ones((3, 2))}
        >>> both = from_arrays({"a": one, "b": one}, {"a": one}, classes=False)
        >>> far = lambda outputs, targets: abs(outputs - targets).max(axis=1)
        >>> problem = supervised(lambda x, a: a * x, both, np.zeros(2), loss=far, metrics={"farthest": far})
        >>> problem.agents, [name for name, _ in problem.evaluation.metrics]
        (2, ['farthest'])
    """
    at_least("l2", l2, 0, "l2 is the weight of ||model||^2/2; 0 turns it off")
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        name = str(data.names[empty[0]])
        raise FedpdError(f"agent {name!r} has no training samples. Leave it out: data.take(d, d.sizes > 0).")
    apply, start = as_function(model, data, start, seed)
    holes = has_missing(data)
    train, tests = (_prepared_part(part, data.classes, holes) for part in (data.train, data.test))

    def outputs(model: Tree, batch: Tree) -> Array:
        return apply(model, _features(batch["x"]))

    def losses(model: Tree, batch: Tree) -> Array:
        return loss(outputs(model, batch), targets_of(batch))

    def right(model: Tree, batch: Tree) -> Array:
        assert correct is not None  # it is used only then
        return jnp.asarray(correct(outputs(model, batch), targets_of(batch))).astype(float)

    def penalty(model: Tree) -> Array:
        return l2 / 2 * optax.tree.norm(model, squared=True)

    regulariser = penalty if l2 else None
    problem = from_losses(losses, train, start, penalty=regulariser, weights=weights, name=data.name, check=check)
    problem = replace(problem, names=data.names)
    measured = named_metrics(metrics, outputs, targets_of)
    judge = None if correct is None else right
    problem = replace(
        problem, judge=Judge(partial(_central, data.classes, data.label_names, holes), judge, None, measured)
    )
    if not data.test_sizes.sum():
        return check_metrics(problem)
    held = hold_tests(tests, data.test_sizes.astype(np.int32), problem.double)
    evaluation = Evaluation(judge, held.data, held.sizes, None, held.offsets, held.load, measured)
    problem = check_metrics(replace(problem, evaluation=evaluation))
    return check_tests(problem) if check else problem


def as_function(model: Any, data: Federated, start: Tree | None, seed: int) -> tuple[Apply, Tree]:
    """Return a model as a function (x, features) -> outputs, and the model x^0 that it starts from."""
    if start is not None:
        if not callable(model):
            refuse("model", type(model).__name__, "must be a function of (x, features)", "Give e.g. lambda x, a: a @ x")
        return model, start
    with extra("networks", "A flax module"):
        import flax.linen as nn
    if not isinstance(model, nn.Module):
        rule = "must be a flax.linen module if no start is given"
        refuse("model", type(model).__name__, rule, "Give start=, the parameters of your function")
    variables: Any = model.init(jax.random.key(seed), _features(jnp.asarray(example_of(data)["x"])))
    if set(variables) != {"params"}:
        rule = "has more than parameters"
        refuse("model", type(model).__name__, rule, "Remove batch normalisation, or use problems.network")
    return partial(_apply_module, model), jax.tree.map(np.asarray, variables["params"])


def _apply_module(module: Any, model: Tree, x: Array) -> Array:
    return module.apply({"params": model}, x)


def example_of(data: Federated) -> Samples:
    """Return the first training samples of an agent, or for ragged and lazy data zeros of their shape."""
    if isinstance(data.train, list):
        return next(own for own in data.train if len(own["y"]))
    zeros = {key: np.zeros((1, *leaf.shape[1:]), leaf.dtype) for key, leaf in data.train.sample.items()}
    return {"x": zeros["x"], "y": zeros["y"]}


def _features(x: Array) -> Array:
    return x.astype(float) / 255 if x.dtype == jnp.uint8 else x


def outputs_shape(apply: Apply, start: Tree, data: Federated) -> tuple[int, ...] | None:
    """Return the shape of one sample's outputs; None if the function fails, which `from_losses` explains."""
    x = example_of(data)["x"][:1]
    try:
        with scope(is_double(start, x)):
            found = jax.eval_shape(lambda model, x: apply(model, _features(x)), start, x)
    except Exception:  # from_losses says what is wrong with the function
        return None
    shape = getattr(found, "shape", ())
    return tuple(shape[1:]) if shape[:1] == (1,) else None


def has_missing(data: Federated) -> bool:
    """Return whether a target in memory is NaN."""
    return any(np.isnan(y).any() for y in targets_in_memory(data) if y.dtype.kind == "f")


def targets_in_memory(data: Federated) -> list[np.ndarray]:
    """Return the targets of all samples, train and test; those of lazy data are left out."""
    found: list[np.ndarray] = []
    for part in (data.train, data.test):
        if not isinstance(part, Lazy):
            found += [own["y"] for own in part] if isinstance(part, list) else [part.rows["y"]]
    return found


def _prepared_part(part: ByAgent, classes: np.ndarray, holes: bool) -> Any:
    """Return the samples of all agents as the problem holds them, in the form they have."""
    prepare = partial(_prepared, classes, holes)
    return [prepare(samples) for samples in part] if isinstance(part, list) else part.map(prepare)


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
    y = seal(y.astype(np.float64 if x.dtype == np.float64 else np.float32))
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
