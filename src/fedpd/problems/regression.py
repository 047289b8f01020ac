"""Regression on federated data: predict numbers or vectors with a function or a module."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpd.base.checks import choice, refuse
from fedpd.base.typed import explained
from fedpd.core import Array, Metric, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.problems.augment import Augment
from fedpd.problems.build import Weights
from fedpd.problems.evaluation import BATCHES, Metrics, Values, check_parts
from fedpd.problems.modules import in_jax
from fedpd.problems.supervised import Apply, Backend, Shape, Task, has_missing, mean_over_known, supervise

LossName = Literal["squared", "absolute", "huber"]


@explained
def regression(
    model: Apply | Any,
    data: Federated,
    start: Tree | None = None,
    *,
    loss: LossName | Values = "squared",
    metrics: Metrics = None,
    augment: Augment | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    backend: Backend = "jax",
    check: bool = True,
) -> Problem:
    """Return the problem of predicting numbers or vectors.

    F(x; (a, y)) is the mean of the loss over the components of y, plus (l2/2) ||x||^2. Missing components (NaN) do not
    count; a sample without any known component has loss 0. On test samples fedpd measures `test_loss`, `mae` (mean
    absolute error), `rmse` (root of the mean squared error) and your own metrics, over all components of all agents.
    `augment`, `seed`, `l2`, `weights`, `backend` and `check` are as for `supervised`.

    Args:
        model: A function (x, features (B, ...)) -> outputs of the targets' shape, whose parameters x begin at `start`;
            or a module, as for `supervised`. One output (B, 1) may stand for single numbers (B,).
        data: Data that were loaded with `classes=False`; class numbers are taken as numbers.
        start: The model x^0, any pytree; None for a module.
        loss: "squared" ((o - y)^2 / 2), "absolute" (|o - y|), "huber" (squared up to an error of 1, then absolute), or
            a function (outputs, targets) -> (B, ...), one loss per component or per sample, or a loss module of
            PyTorch.
        metrics: More to measure on test samples, {name: (outputs, targets) -> (B, ...)}; see `fedpd.problems.Metric`.

    Raises:
        FedpdError: If the outputs have another shape than the targets, or the loss averages over samples.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems
        >>> from fedpd.data import from_arrays
        >>> a = np.arange(6.0).reshape(3, 2)
        >>> agents = {
        ...     "left": {"x": a, "y": a @ [1.0, 2.0]},
        ...     "right": {"x": a, "y": [1.5, np.nan, 0.0]},
        ... }
        >>> problem = problems.regression(
        ...     lambda x, a: a @ x, from_arrays(agents, classes=False), np.zeros(2)
        ... )
        >>> problem.agents, problem.samples
        (2, 6)
    """
    loss = in_jax(loss)
    values = loss if callable(loss) else LOSSES[choice("loss", loss, get_args(LossName))]
    if data.label_names is not None:
        rule = "has classes with names, which are no numbers"
        refuse("data", data.name, rule, "Use problems.classification, or load a column of numbers")
    wanted = data.target_shape
    if callable(loss):
        _check_parts(loss, wanted)
    if callable(loss) and has_missing(data):
        example = jax.ShapeDtypeStruct((3, *wanted), np.float32)
        parts = jax.eval_shape(loss, example, example).shape
        if parts != (3, *wanted):  # it mixes the components of a sample, so none can be left out
            rule = f"must be {(3, *wanted)}, one loss per component, because some targets are missing"
            remedy = "Do not sum over components, or fill the missing targets"
            refuse("shape of the loss of 3 samples", parts, rule, remedy)

    def task(found: Shape | None) -> Task:
        squeeze = found == (*wanted, 1)
        if found is not None and not squeeze and found != wanted:
            rule = f"must be {wanted}, the shape of a target"
            refuse("shape of an output", found, rule, "Change the model's outputs, or the columns of the targets")
        more = USUAL | dict(metrics or {})
        return Task(partial(mean_over_known, values), metrics=more, squeeze=squeeze)

    numbers = replace(data, classes=np.zeros(0, np.int32))
    return supervise(
        model, numbers, start, task, augment=augment, seed=seed, l2=l2, weights=weights, backend=backend, check=check
    )


def _check_parts(loss: Values, shape: tuple[int, ...]) -> None:
    """Refuse a loss that compares every sample with every other, because its mean over the parts would hide it."""

    def losses(batch: int) -> Array:
        example = jax.ShapeDtypeStruct((batch, *shape), np.float32)
        return jax.eval_shape(loss, example, example)

    try:
        shapes = [np.shape(losses(batch)) for batch in BATCHES]
    except Exception:  # from_losses says what is wrong with the function
        return
    check_parts("loss", shapes)


def _squared(outputs: Array, targets: Array) -> Array:
    return (outputs - targets) ** 2 / 2


def _absolute(outputs: Array, targets: Array) -> Array:
    return jnp.abs(outputs - targets)


def _square(outputs: Array, targets: Array) -> Array:
    return (outputs - targets) ** 2


LOSSES: dict[str, Values] = {"squared": _squared, "absolute": _absolute, "huber": optax.huber_loss}
USUAL: dict[str, Any] = {
    "mae": Metric(_absolute, words="mean absolute error"),
    "rmse": Metric(_square, of_mean="sqrt", words="root of the mean squared error"),
}
