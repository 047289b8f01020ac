"""Evaluations by all clients: f, ||grad f||^2 and accuracies at the server's model.

An evaluation is a separate message, which is not part of the method: the server sends a model, and clients return f_i
and grad f_i. Its bytes count as serialised bytes, not as the method's nominal bytes. The server learns grad f_i, which
the method itself may not send. With secure aggregation, clients do not compute grad f_i, and their numbers are added
under masks: the server learns the mean loss and accuracies over all samples, and ||grad f||^2 stays unknown.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tree_math import Vector

from fedpd.core import Array, Tree
from fedpd.core.agents import Functions, Shard
from fedpd.core.message import IsPersonal, merged, part_of
from fedpd.engine.measure.columns import (
    ACCURACY,
    MEASURED,
    METRICS,
    OBJECTIVE,
    RECORDABLE,
    VALUE,
    AgentView,
    CorrectCounts,
    Measure,
    MetricSum,
    value_of_mean,
)
from fedpd.flower.carry.protocol import PREFIX, Form, check_nonce, new_nonce
from fedpd.flower.carry.records import RefusedError, arrays_of, one_line, pack, unpack
from fedpd.flower.method.agent import ClientSetup, SavedAgent, own_model

COUNTS = tuple(f"judged-{name}" for name in CorrectCounts._fields)
METRIC = "metric-"  # then "exp", "sqrt" or "", "-" and the name: the server need not know the client's metrics
NONCE = PREFIX + "nonce"
FROM_TOTALS = ("train_accuracy", "test_accuracy", "test_loss")
COLUMNS = (*MEASURED, *RECORDABLE["accuracy"])  # a federation computes these as a simulation does


class ClientEvaluation(NamedTuple):
    """A client's reply to an evaluation request.

    Attributes:
        value: f_i.
        gradient: grad f_i.
        judged: The numbers of correct predictions; None from clients that have no `correct`.
        metrics: The sum and the number of each metric's values, by the key in the message.
    """

    value: float
    gradient: Tree
    judged: CorrectCounts | None
    metrics: dict[str, MetricSum]


def evaluation_request(model: ArrayRecord, form: Form, run: str, used: int) -> RecordDict:
    """Return the content of a message that asks a client to evaluate a model.

    Args:
        model: The model.
        form: The form of the method.
        run: The identity of the run, by which a client finds its personal parameters.
        used: The number of the client's last reply that the server used; -1 if there is none.
    """
    config: Any = {PREFIX + "form": form, PREFIX + "run": run, PREFIX + "used": used, NONCE: new_nonce()}
    return RecordDict({"arrays": model, "config": ConfigRecord(config)})


def _nonce(content: RecordDict) -> str:
    config: Any = content.config_records.get("config", {})
    return str(config.get(NONCE))


def evaluate(
    setup: ClientSetup, content: RecordDict, saved: SavedAgent | None = None, *, secure: bool = False
) -> RecordDict:
    """Return a client's reply: f_i, the numbers of correct predictions and, unless `secure`, grad f_i.

    Args:
        setup: The constants of the client.
        content: The request.
        saved: The client's saved state, if some of its parameters are personal.
        secure: Whether the gradient stays at the client.
    """
    x = Vector(unpack(arrays_of(content, "arrays", "evaluation"), setup.shapes.model, "model"))
    if setup.algorithm.is_personal is not None:
        used: Any = content.config_records["config"].get(PREFIX + "used", -1)
        x = merged(part_of(own_model(setup, x, saved, used), setup.algorithm.is_personal, personal=True), x)
    value, gradient, judged, own = jax.device_get(_measure(setup.functions, secure, setup.frozen, setup.shard, x))
    metrics: dict[str, Any] = {"loss": float(value)}
    metrics |= {} if judged is None else {name: float(one) for name, one in zip(COUNTS, judged, strict=True)}
    for name, metric in setup.functions.metrics:
        of_mean = "" if metric.over == "agents" else metric.of_mean  # of a mean of the clients' own metrics
        metrics[f"{METRIC}{of_mean}-{name}"] = [float(own[name].total), float(own[name].number)]
    answer = RecordDict({"metrics": MetricRecord(metrics), "config": ConfigRecord({NONCE: _nonce(content)})})
    if gradient is not None:
        answer["arrays"] = pack(_shared(setup.algorithm.is_personal, gradient).tree)
    return answer


def _shared(keeps: IsPersonal | None, gradient: Vector) -> Vector:
    """Return a gradient that reveals nothing of personal parameters: it is 0 there."""
    if keeps is None:
        return gradient
    return merged(part_of(gradient, keeps, personal=False), jax.tree.map(np.zeros_like, gradient))


def refusal(request: RecordDict, note: str) -> RecordDict:
    """Return the reply of a client that refuses to evaluate a model, with the reason."""
    return RecordDict({"config": ConfigRecord({PREFIX + "note": note, NONCE: _nonce(request)})})


def check_evaluation(request: RecordDict, content: RecordDict) -> None:
    """Refuse the reply to another request, and the refusal of a client."""
    config: Any = content.config_records.get("config", {})
    check_nonce(_nonce(request), config.get(NONCE))
    if note := config.get(PREFIX + "note"):
        raise RefusedError(f"the client refuses: {one_line(str(note))}")


@partial(jax.jit, static_argnums=(0, 1))
def _measure(
    functions: Functions, secure: bool, frozen: Tree | None, shard: Shard, x: Vector
) -> tuple[Array, Vector | None, CorrectCounts | None, dict[str, MetricSum]]:
    view = AgentView(functions.with_frozen(frozen), shard)
    value, gradient = (_total(VALUE, view, x), None) if secure else _total(OBJECTIVE, view, x)
    judged = None if functions.correct is None else _total(ACCURACY, view, x)
    return value, gradient, judged, _total(METRICS, view, x) if functions.metrics else {}


def _total(measure: Measure, view: AgentView, x: Vector) -> Any:
    """Return one agent's term in the sum of a measure."""
    assert measure.agent is not None
    return measure.agent(view, x)[0]


def read_evaluation(request: RecordDict, content: RecordDict, model: Tree) -> ClientEvaluation:
    """Return a client's reply to a request.

    Args:
        request: The request.
        content: The content of the reply.
        model: A model with the shapes of the gradient.

    Raises:
        RefusedError: If the reply lacks numbers, or they are not finite.
    """
    check_evaluation(request, content)
    metrics: Any = content.metric_records.get("metrics", {})
    values = [metrics.get(name) for name in ("loss", *COUNTS) if name == "loss" or name in metrics]
    if "arrays" not in content.array_records or len(values) not in (1, 1 + len(COUNTS)):
        raise RefusedError("evaluation: must have a loss, a gradient and their counts.")
    numbers = [float(value) for value in values if isinstance(value, int | float) and np.isfinite(value)]
    if len(numbers) != len(values):
        raise RefusedError(f"evaluation: {values} must all be finite numbers.")
    gradient = unpack(content.array_records["arrays"], model, "gradient")
    judged = CorrectCounts(*np.array(numbers[1:])) if len(numbers) > 1 else None
    if judged is not None and min(judged.samples, judged.tests) < 0:
        raise RefusedError(f"evaluation: {judged.samples:g} and {judged.tests:g} are not numbers of samples.")
    own = {key: _metric_sum(key, sums) for key, sums in metrics.items() if key.startswith(METRIC)}
    return ClientEvaluation(numbers[0], gradient, judged, own)


def _metric_sum(key: str, sums: Any) -> MetricSum:
    """Return the sum and the number of a metric's values from a reply."""
    if not isinstance(sums, list) or len(sums) != 2 or not np.isfinite(sums).all() or sums[1] < 0:
        raise RefusedError(f"evaluation: {key} = {sums} must be the sum and the number of a metric's values.")
    return MetricSum(*np.array(sums, float))


def combine(answers: Sequence[ClientEvaluation]) -> dict[str, float]:
    """Return the history's columns from the replies of all clients, in the order of the agents."""
    number = len(answers)
    gradient = _sum([Vector(answer.gradient) for answer in answers])
    totals: dict[Measure, tuple[Tree, Tree]] = {OBJECTIVE: ((sum(answer.value for answer in answers), gradient), None)}
    columns = {}
    judged = [answer.judged for answer in answers if answer.judged is not None]
    if len(judged) == number:
        totals[ACCURACY] = _sum(judged), jax.tree.map(lambda *leaves: np.array(leaves), *judged)
    for column in COLUMNS:
        if column.measure in totals and column.merge is not None:
            columns[column.name] = float(column.merge(*totals[column.measure], number))
    for key in answers[0].metrics:
        if all(key in answer.metrics for answer in answers):
            of_mean, _, name = key.removeprefix(METRIC).partition("-")
            columns[name] = float(value_of_mean(of_mean, _sum([answer.metrics[key] for answer in answers])))
    return columns


def combine_sums(sums: Mapping[str, float], number: int) -> dict[str, float]:
    """Return the history's columns from the sums of the numbers of all clients, as `masked_client.flat` names them.

    It leaves out the columns that need each client's own numbers, such as the mean accuracy of the clients.
    """
    columns = {"loss": sums["loss"] / number}
    if all(name in sums for name in COUNTS):
        total = CorrectCounts(*np.array([sums[name] for name in COUNTS]))
        judged = [column for column in COLUMNS if column.name in FROM_TOTALS and column.merge is not None]
        columns |= {column.name: float(column.merge(total, None, number)) for column in judged if column.merge}
    for key in sums:
        if key.startswith(METRIC) and key.endswith("/0"):
            of_mean, _, name = key.removeprefix(METRIC).removesuffix("/0").partition("-")
            pair = MetricSum(*np.array([sums[key], sums[f"{key[:-1]}1"]]))
            columns[name] = float(value_of_mean(of_mean, pair))
    return columns


def by_client(answers: Sequence[ClientEvaluation | None]) -> dict[str, np.ndarray]:
    """Return each client's own values by column, in the order of the agents; NaN where a client has none."""
    own = [{} if answer is None else _own_values(answer) for answer in answers]
    names = {name: None for values in own for name in values}
    return {name: np.array([values.get(name, np.nan) for values in own]) for name in names}


def _own_values(answer: ClientEvaluation) -> dict[str, float]:
    """Return f_i and the accuracies of one client."""
    values = {"loss": float(answer.value)}
    if answer.judged is not None:
        trained, samples, right, _, tests = map(float, answer.judged)
        values |= {"train_accuracy": trained / samples} if samples else {}
        values |= {"test_accuracy": right / tests} if tests else {}
    return values


def _sum(trees: Sequence[Tree]) -> Tree:
    total = jax.tree.map(np.array, trees[0])
    for tree in trees[1:]:
        total = jax.tree.map(lambda leaf, part: np.add(leaf, part, out=leaf), total, tree)
    return total
