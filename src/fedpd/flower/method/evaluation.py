"""Evaluations by all clients: f, ||grad f||^2 and accuracies at the server's model.

An evaluation is a message of its own, beside the method: a model down, and f_i and grad f_i up. Its bytes are counted
as serialised, not among the method's nominal ones; and it tells the server grad f_i, which the method itself may not.
Clients whose messages only leave under masks do not send grad f_i, and ||grad f||^2 stays unknown.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tree_math import Vector

from fedpd.core import Array, Tree
from fedpd.core.agents import Functions, Shard, local_objective
from fedpd.engine.metrics import WORST, judge
from fedpd.flower.carry.protocol import PREFIX, Form
from fedpd.flower.carry.records import RefusedError, arrays_of, pack, unpack
from fedpd.flower.method.agent import ClientSetup

SUMS = ("train_right", "train_samples", "test_right", "test_loss", "test_samples")


class ClientEvaluation(NamedTuple):
    """A client's answer to an evaluation request.

    Attributes:
        value: f_i.
        gradient: grad f_i; None from clients whose messages only leave under masks.
        sums: The numbers of `SUMS`; None from clients that cannot tell when the model is right.
    """

    value: float
    gradient: Tree | None
    sums: list[float] | None


def evaluation_request(model: ArrayRecord, form: Form) -> RecordDict:
    """Return the content of a message that asks a client to evaluate a model."""
    return RecordDict({"arrays": model, "config": ConfigRecord({PREFIX + "form": form})})


def evaluate(setup: ClientSetup, content: RecordDict, *, secure: bool = False) -> RecordDict:
    """Return a client's answer to a request: f_i and, unless `secure`, grad f_i, and how often the model is right."""
    x = Vector(unpack(arrays_of(content, "arrays", "evaluation"), setup.shapes.model, "model"))
    value, gradient, sums = jax.device_get(_measure(setup.functions, secure, setup.shard, x))
    metrics: dict[str, Any] = {"loss": float(value)}
    metrics |= {} if sums is None else {name: float(one) for name, one in zip(SUMS, sums, strict=True)}
    answer = RecordDict({"metrics": MetricRecord(metrics)})
    if gradient is not None:
        answer["arrays"] = pack(gradient.tree)
    return answer


@partial(jax.jit, static_argnums=(0, 1))
def _measure(
    functions: Functions, secure: bool, shard: Shard, x: Vector
) -> tuple[Array, Vector | None, tuple[Array, ...] | None]:
    f = local_objective(functions, shard)
    value, gradient = (f.value(x), None) if secure else f.value_and_gradient(x)
    return value, gradient, None if functions.correct is None else judge(functions, shard, x)


def read_evaluation(content: RecordDict, model: Tree | None) -> ClientEvaluation:
    """Return a client's answer to a request.

    Args:
        content: The answer.
        model: What the gradient must be like; None: there is no gradient.

    Raises:
        RefusedError: The answer lacks numbers, or they are not finite.
    """
    metrics: Any = content.metric_records.get("metrics", {})
    values = [metrics.get(name) for name in ("loss", *SUMS) if name == "loss" or name in metrics]
    if (model is not None and "arrays" not in content.array_records) or len(values) not in (1, 1 + len(SUMS)):
        raise RefusedError("evaluation: is not a loss, a gradient and their counts.")
    numbers = [float(value) for value in values if isinstance(value, int | float) and np.isfinite(value)]
    if len(numbers) != len(values):
        raise RefusedError(f"evaluation: {values} are not all finite numbers.")
    gradient = None if model is None else unpack(content.array_records["arrays"], model, "gradient")
    return ClientEvaluation(numbers[0], gradient, numbers[1:] or None)


def combine(answers: Sequence[ClientEvaluation]) -> dict[str, float]:
    """Return the history's columns from all clients' answers, in the order of the agents."""
    number = len(answers)
    columns = {"loss": sum(answer.value for answer in answers) / number}
    gradient = answers[0].gradient
    if gradient is not None:
        for answer in answers[1:]:
            gradient = jax.tree.map(np.add, gradient, answer.gradient)
        squares = [np.sum(np.square(leaf / number, dtype=np.float64)) for leaf in jax.tree.leaves(gradient)]
        columns["stationarity"] = float(sum(squares))
    sums = [answer.sums for answer in answers if answer.sums is not None]
    return columns | (_accuracies(np.array(sums)) if len(sums) == number else {})


def _accuracies(sums: np.ndarray) -> dict[str, float]:
    """Return accuracies over all samples, and over the agents with tests (the mean, and that of the worst tenth)."""
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
