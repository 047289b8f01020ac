"""What a model is worth to everyone: f, ||grad f||^2 and accuracies at the server's model, asked of all clients.

This is a message of its own, beside the method: a model down, and f_i and grad f_i up. Its bytes are counted as
serialised, not among the method's nominal ones; and it tells the server grad f_i, which the method itself may not.
Clients whose messages only leave under masks do not send grad f_i, and ||grad f||^2 stays unknown.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tree_math import Vector

from fedpd.core import Array, Tree
from fedpd.core.agents import Functions, Shard, local_objective
from fedpd.engine.metrics import WORST, judge
from fedpd.flower.carry.protocol import PREFIX
from fedpd.flower.carry.records import RefusedError, pack, unpack
from fedpd.flower.method.agent import Site

SUMS = ("train_right", "train_samples", "test_right", "test_loss", "test_samples")


def question(model: ArrayRecord, form: str) -> RecordDict:
    return RecordDict({"arrays": model, "config": ConfigRecord({PREFIX + "form": form})})


def evaluate(site: Site, content: RecordDict, *, secure: bool = False) -> RecordDict:
    """A client's f_i and, unless `secure`, grad f_i at the model it is sent, and what it gets right there."""
    x = Vector(unpack(content["arrays"], site.shapes.model, "model"))  # type: ignore[arg-type]
    value, gradient, sums = jax.device_get(_judge(site.functions, secure, site.shard, x))
    metrics: dict[str, Any] = {"loss": float(value)}
    metrics |= {} if sums is None else {name: float(one) for name, one in zip(SUMS, sums, strict=True)}
    answer = RecordDict({"metrics": MetricRecord(metrics)})
    if gradient is not None:
        answer["arrays"] = pack(gradient.tree)
    return answer


@partial(jax.jit, static_argnums=(0, 1))
def _judge(
    functions: Functions, secure: bool, shard: Shard, x: Vector
) -> tuple[Array, Vector | None, tuple[Array, ...] | None]:
    f = local_objective(functions, shard)
    value, gradient = (f.value(x), None) if secure else f.value_and_gradient(x)
    return value, gradient, None if functions.correct is None else judge(functions, shard, x)


def read_evaluation(content: RecordDict, model: Tree | None) -> tuple[float, Tree | None, list[float] | None]:
    """A client's (f_i, grad f_i, sums), checked; without a `model` that it must be like, there is no gradient."""
    metrics: Any = content.metric_records.get("metrics", {})
    values = [metrics.get(name) for name in ("loss", *SUMS) if name == "loss" or name in metrics]
    if (model is not None and "arrays" not in content.array_records) or len(values) not in (1, 1 + len(SUMS)):
        raise RefusedError("evaluation: is not a loss, a gradient and their counts.")
    numbers = [float(value) for value in values if isinstance(value, int | float) and np.isfinite(value)]
    if len(numbers) != len(values):
        raise RefusedError(f"evaluation: {values} are not all finite numbers.")
    gradient = None if model is None else unpack(content.array_records["arrays"], model, "gradient")
    return numbers[0], gradient, numbers[1:] or None


def combine(answers: Sequence[tuple[float, Tree | None, list[float] | None]]) -> dict[str, float]:
    """The history's columns from all clients' answers, in the order of the agents."""
    number = len(answers)
    columns = {"loss": sum(value for value, _, _ in answers) / number}
    gradient = answers[0][1]
    if gradient is not None:
        for _, more, _ in answers[1:]:
            gradient = jax.tree.map(np.add, gradient, more)
        squares = [np.sum(np.square(leaf / number, dtype=np.float64)) for leaf in jax.tree.leaves(gradient)]
        columns["stationarity"] = float(sum(squares))
    sums = [counts for _, _, counts in answers if counts is not None]
    return columns | (_accuracies(np.array(sums)) if len(sums) == number else {})


def _accuracies(sums: np.ndarray) -> dict[str, float]:
    """As `metrics.accuracy`: over all samples, and over agents that have tests (the mean, and the worst tenth)."""
    trained, samples, right, loss, tests = sums.T
    own = np.sort((right / np.maximum(tests, 1))[tests > 0])
    worst = own[: max(1, int(np.ceil(WORST * len(own))))]
    everything = max(tests.sum(), 1)
    return {
        "train_accuracy": trained.sum() / samples.sum(),
        "test_accuracy": right.sum() / everything,
        "test_accuracy_agents": own.mean() if len(own) else 0.0,
        "test_accuracy_worst": worst.mean() if len(own) else 0.0,
        "test_loss": loss.sum() / everything,
    }
