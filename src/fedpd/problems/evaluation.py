"""The evaluation of a problem: its test samples, and the metrics that are measured on them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import TEXTS, as_array, as_labels, seal
from fedpd.base.checks import FedpdError, choice, refuse
from fedpd.base.precision import as_numpy, scope
from fedpd.base.typed import first_line
from fedpd.core import Array, Losses, Metric, Problem, Tree
from fedpd.core.problem import NamedMetrics, Over
from fedpd.core.rows import merged_axes
from fedpd.data.federated import whole_numbers
from fedpd.data.ragged import Ragged, check_finite
from fedpd.problems.build import Held, held_by_agent, pads

Values = Callable[[Array, Array], Array]  # (outputs, targets) -> (B, ...)
BATCHES = (3, 6)  # numbers of samples with which functions are tried; what fits both follows the batch
Metrics = Mapping[str, Values | Metric] | None


def hold_tests(tests: Any, sizes: np.ndarray, double: bool) -> Held:
    """Return the test samples as a problem holds them: padded if that wastes little memory, otherwise flat.

    Args:
        tests: A list with the samples of each agent, a dict of arrays each; or ragged or lazy samples.
    """
    if not isinstance(tests, list):
        return held_by_agent(tests, double, tests=True)
    tests = [jax.tree.map(lambda leaf: as_numpy(leaf, double, "test data"), own) for own in tests]
    if not pads(tests[int(sizes.argmax())], sizes):
        rows = jax.tree.map(lambda *leaves: seal(np.concatenate(leaves)), *tests)
        return held_by_agent(Ragged(rows, sizes), double, tests=True)
    first = tests[int(np.argmax(sizes > 0))]

    def fill(padding: np.ndarray, *leaves: np.ndarray) -> np.ndarray:
        """Return (N, m, ...); the first test sample of all is the padding."""
        filled = np.broadcast_to(padding[0], (len(leaves), sizes.max(), *padding.shape[1:])).copy()
        for row, leaf in zip(filled, leaves, strict=True):
            row[: len(leaf)] = leaf
        return seal(filled)

    held = jax.tree.map(fill, first, *tests)
    check_finite(jax.tree.map(merged_axes, held), np.full_like(sizes, sizes.max()))
    return Held(held, sizes)


def central_samples(
    samples: Any, classes: np.ndarray | None = None, names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the samples of a central test set; refuse other names than x and y, and labels that are no class.

    Args:
        samples: {"x": (m, ...), "y": (m, ...)}; x may be a dict of arrays.
        classes: The labels in their order; None or empty: the targets are not classes.
    """
    if not isinstance(samples, Mapping) or set(samples) != {"x", "y"}:
        found = sorted(map(str, samples)) if isinstance(samples, Mapping) else type(samples).__name__
        refuse("test", found, 'must be a dict with "x" and "y"', 'Give e.g. test={"x": x_test, "y": y_test}')
    x, y = samples["x"], as_labels(samples["y"], "test['y']")
    if isinstance(x, Mapping):
        x = {name: whole_numbers(as_array(leaf, f"test['x'][{name!r}]")) for name, leaf in x.items()}
    else:
        x = as_array(x, "test['x']")
    if classes is None or not len(classes):
        return {"x": x, "y": y}
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    texts = y.dtype.kind in TEXTS
    known = np.array(names if texts and names is not None else classes.tolist())
    unknown = np.ones(y.shape, bool) if texts and names is None else ~np.isin(y.astype(str) if texts else y, known)
    if unknown.any():
        rule = f"is no class of the problem: {', '.join(map(str, known[:20]))}{', ...' if len(known) > 20 else ''}"
        remedy = "Drop these samples, or give classes= or label_names= where you load the data"
        refuse("label in test['y']", y[unknown].reshape(-1)[0].item(), rule, remedy)
    if texts:
        place = dict(zip(known, classes, strict=True))
        y = np.array([place[str(label)] for label in y], np.int32)
    return {"x": x, "y": y}


def named_metrics(metrics: Metrics, outputs: Losses, targets: Callable[[Tree], Array]) -> NamedMetrics:
    """Return metrics of (model, batch) from a user's metrics of (outputs, targets).

    Args:
        outputs: (model, batch) -> the outputs of the model.
        targets: (batch) -> the targets.
    """
    found = []
    for name, given in (metrics or {}).items():
        metric = given if isinstance(given, Metric) else Metric(given)
        if not isinstance(name, str) or not name or not callable(metric.values):
            rule = "must map names to functions (outputs, targets) -> one number per sample"
            refuse("metrics", name, rule, 'Give e.g. metrics={"mae": lambda outputs, targets: abs(outputs - targets)}')
        choice("over", metric.over, get_args(Over))
        if (metric.of_mean != "") + (metric.of_sum is not None) + (metric.of_all is not None) > 1:
            refuse("metrics", name, "has more than one of of_mean, of_sum and of_all", "Give one of them")
        found.append((name, metric._replace(values=partial(_values, metric.values, outputs, targets))))
    return tuple(found)


def _values(values: Values, outputs: Losses, targets: Callable[[Tree], Array], model: Tree, batch: Tree) -> Array:
    found = jnp.asarray(values(outputs(model, batch), targets(batch)))
    if jnp.iscomplexobj(found):
        raise FedpdError("it returns complex numbers, and a mean of them cannot be drawn")
    return found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(float)


def check_metrics(problem: Problem) -> Problem:
    """Return the problem after tracing its metrics and its `correct` once; refuse those that return a wrong shape."""
    held, judge = problem.evaluation or problem, problem.evaluation or problem.judge
    assert judge is not None  # callers have made it
    axes = 2 if held.offsets is None and held.load is None else 1

    def example(batch: int) -> Tree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[axes:]), leaf.dtype), held.data)

    correct = () if judge.correct is None else (("correct", Metric(judge.correct)),)
    for name, metric in (*correct, *judge.metrics):
        with scope(problem.double):
            try:
                values = partial(_evaluated, problem, metric)
                found = [jax.eval_shape(values, problem.start, example(batch)) for batch in BATCHES]
                shapes, whole = [np.shape(one) for one in found], _whole_metric(metric, found[0])
            except Exception as error:
                remedy = "Use its arguments (outputs, targets) in functions of jax.numpy, and jnp.where in place of if"
                raise FedpdError(f"metric {name!r} cannot be computed: {first_line(error)}. {remedy}.") from error
        if shapes[0][:1] != BATCHES[:1] or (name == "correct" and len(shapes[0]) > 1):
            rule, remedy = (
                f"must be one number per sample, ({BATCHES[0]},)",
                "Do not average over samples: fedpd does it",
            )
            refuse(f"shape of metric {name!r} for {BATCHES[0]} samples", shapes[0], rule, remedy)
        check_parts(f"metric {name!r}", shapes)
        if whole:
            refuse(
                f"shape of metric {name!r}", whole, "must be (): one number", "Return a scalar from of_sum or of_all"
            )
    return problem


def _whole_metric(metric: Metric, values: Any) -> tuple[int, ...]:
    """Return the shape of a metric that is no mean, from that of its values; () for a mean."""
    if metric.of_sum is not None:
        return np.shape(jax.eval_shape(metric.of_sum, jax.ShapeDtypeStruct(values.shape[1:], values.dtype)))
    if metric.of_all is not None:
        return np.shape(jax.eval_shape(metric.of_all, values, jax.ShapeDtypeStruct(values.shape[:1], bool)))
    return ()


def check_parts(what: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse values whose further axes change with the number of samples: they compare samples with each other.

    Outputs (B, 1) minus targets (B,) are (B, B), for example.

    Args:
        shapes: The shapes of the values, for each number of samples in BATCHES.
    """
    if len({shape[1:] for shape in shapes}) > 1:
        found = " and ".join(f"{shape} for {batch} samples" for shape, batch in zip(shapes, BATCHES, strict=True))
        rule = "the axes after the first must not depend on the number of samples"
        remedy = "Bring outputs and targets to one shape before you compare them, e.g. outputs.reshape(targets.shape)"
        refuse(f"shape of the {what}", found, rule, remedy)


def _evaluated(problem: Problem, metric: Metric, model: Tree, batch: Tree) -> Array:
    """Return the values of a metric, with the statistics of the batch itself."""
    measure = problem.statistics
    return metric.values(model if measure is None else (model, measure(model, batch)), batch)
