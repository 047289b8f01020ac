"""The columns of a history. One object per column says what it means, how it is measured and how it is shown.

The simulator, Flower's evaluation, tables, figures and the report read these objects. You can define a column of your
own: each agent returns a value to sum over agents and a value to keep, and `merge` makes one number of both.

    largest = Column(
        "largest",
        "largest loss of an agent",
        measure=Measure(agent=lambda view, x: (None, view.f.value(x))),
        merge=lambda total, each, agents: each.max(),
    )
    simulate(algorithm, problem, rounds=100, record=[largest])

A central test set has samples that belong to no agent, on which the server measures its model.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpd.base import checkpoint
from fedpd.base.arrays import as_array, check_finite, owned
from fedpd.base.checks import choice, refuse
from fedpd.base.identity import fingerprint
from fedpd.base.precision import as_numpy
from fedpd.core import Array, LocalObjective, Method, Metric, Problem, State, Tree, Vector, in_blocks
from fedpd.core.agents import AXIS, BLOCK, Functions, Layout, Shard, each_agent, local_objective, zero_for_padding
from fedpd.core.message import is_none
from fedpd.core.problem import AgentLoss, Judge, NamedMetrics
from fedpd.core.statistics import own_statistics, with_own_statistics
from fedpd.data.partition import read_npz
from fedpd.theory.curvature import local_smoothness
from fedpd.theory.dissimilarity import gradient_dissimilarity

CENTRAL_LOSS, CENTRAL_ACCURACY = "central_loss", "central_accuracy"
TENTH = 0.1  # test_accuracy_worst and test_accuracy_best are mean accuracies of this fraction of the agents


class AgentView(NamedTuple):
    """The objective f_i, the training samples and the test samples of one agent."""

    functions: Functions
    shard: Shard  # without the axis of agents

    @property
    def f(self) -> LocalObjective:
        return local_objective(self.functions, self.shard)


# (view, x) -> the measurement of one agent at the model x: a pytree to sum over agents, and small numbers to keep
AgentMeasure = Callable[[AgentView, Vector], tuple[Tree, Tree]]
# (functions, layout, shard, x) -> a number that takes several passes over all agents; only a simulator can measure it
JointMeasure = Callable[[Functions, Layout, Shard, Vector], Array]
# (algorithm, functions, layout, shard, state) -> a number from the states of all agents, which are in memory
StateMeasure = Callable[[Method, Functions, Layout, Shard, State], Array]
# (functions, rows, x) -> a measurement on the central test set, which belongs to no agent. x is (model, statistics) if
# the model has batch statistics: those of the server, the mean of the agents' own.
CentralMeasure = Callable[[Functions, Tree, Vector], Tree]
# (total, each, agents) -> a column's value from the sum over agents, the kept values of all agents (N, ...), and N
Merge = Callable[[Any, Any, int], Any]


class Measure(NamedTuple):
    """How to measure columns at the model x = mean_i x_{0,i}. Columns with the same measure share one pass.

    Attributes:
        agent: The measurement of one agent, in a simulation and on Flower.
        joint: A measurement over all agents, which only a simulator can do; it replaces `agent`.
        state: A measurement of the agents' states, not of the model x; it replaces `agent`.
        tests: Whether the measurement needs test samples.
        reveals: Whether an agent's part of the sum reveals more than a few numbers, such as its gradient.
        central: A measurement on the central test set of `simulate`; it replaces `agent`.
    """

    agent: AgentMeasure | None = None
    joint: JointMeasure | None = None
    state: StateMeasure | None = None
    tests: bool = False
    reveals: bool = False
    central: CentralMeasure | None = None


class Column(NamedTuple):
    """One column of a history.

    Attributes:
        name: Its name in `run.history` and in files.
        words: The label of an axis.
        symbol: The short form in sentences and tables; "": the name.
        kind: "cost": a run spends it; "value": a run measures it; "event": it counts failures; "place": it identifies
            the row.
        dtype: The type of its numbers.
        unit: "bytes", "s", "share" (of 1), or "".
        better: Whether "less" or "more" is better; None: neither.
        log: Whether figures draw it on a logarithmic axis.
        measure: How to measure it; None: it is counted.
        merge: Returns its value from the measurements of the agents.
        plain: What it means, in a sentence for readers who do not know the symbols; "": its words are plain.
    """

    name: str
    words: str
    symbol: str = ""
    kind: Literal["place", "cost", "value", "event"] = "value"
    dtype: Any = np.float64
    unit: Literal["", "bytes", "s", "share"] = ""
    better: Literal["less", "more"] | None = None
    log: bool = False
    measure: Measure | None = None
    merge: Merge | None = None
    plain: str = ""

    def reaches(self, values: Any, target: Any) -> Any:
        """Return where values are at least as good as a target; less is better unless the column says otherwise."""
        return values >= target if self.better == "more" else values <= target


def _objective(view: AgentView, x: Vector) -> tuple[tuple[Array, Vector], Any]:
    value, gradient = view.f.value_and_gradient(x)
    if view.shard.personal is None:
        return (value, gradient), None
    # The loss depends on each agent's own parameters, so their gradients add up as squares, and not as vectors.
    shared = jax.tree.map(
        lambda own, leaf: None if own is not None else leaf, view.shard.personal.tree, gradient.tree, is_leaf=is_none
    )
    return (value, Vector(shared)), _square(gradient) - _square(Vector(shared))


def _square(x: Vector) -> Array:
    return sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(x)), jnp.zeros(()))


def _stationarity(total: tuple[Array, Vector], each: Any, agents: int) -> Any:
    if each is None:
        return (total[1] / agents) @ (total[1] / agents)
    return _square(total[1] / agents) + jnp.sum(each) / agents**2


def _value(view: AgentView, x: Vector) -> tuple[Array, None]:
    return view.f.value(x), None


class CorrectCounts(NamedTuple):
    """The numbers of samples that a model classifies correctly, for one agent or summed over agents."""

    trained: Array  # correct training samples
    samples: Array  # training samples
    right: Array  # correct test samples
    loss: Array  # sum of the losses of test samples
    tests: Array  # test samples


def _count_correct(view: AgentView, x: Vector) -> tuple[CorrectCounts, CorrectCounts]:
    """Return the counts of one agent twice: to sum over agents, and to keep."""
    functions, one = view
    correct, losses = functions.correct, functions.test_losses or functions.losses
    assert correct is not None  # `simulate` refuses accuracy without test samples
    model = with_own_statistics(functions, one, x)

    def sums_of(model: Vector, rows: Tree, inside: Array, q: Any) -> tuple[Array, Array]:
        return jnp.sum(correct(model.tree, rows) * inside), jnp.sum(losses(model.tree, rows) * inside)

    tests = jnp.asarray(one.test_sizes)
    trained, _ = in_blocks(sums_of, model, one.data, one.sizes, BLOCK, one.offset)
    right, loss = in_blocks(sums_of, model, one.test, tests, BLOCK, one.test_offset)
    found = CorrectCounts(trained, jnp.asarray(one.sizes, float), right, loss, tests.astype(float))
    return found, found


def _own_accuracies(each: CorrectCounts) -> tuple[Array, Array]:
    """Return the test accuracy of each agent in ascending order (infinite without tests), and how many have tests."""
    own = jnp.where(each.tests > 0, each.right / jnp.maximum(each.tests, 1), jnp.inf)
    return jnp.sort(own), jnp.sum(each.tests > 0)


def _mean_accuracy(share: float, *, best: bool = False) -> Merge:
    """Return a merge that averages the test accuracy over the worst or the best agents; `share` is their fraction."""

    def merge(total: CorrectCounts, each: CorrectCounts, agents: int) -> Array:
        ordered, tested = _own_accuracies(each)
        place = jnp.arange(len(ordered))
        place = tested - 1 - place if best else place
        counted = (place >= 0) & (place < jnp.maximum(1, jnp.ceil(share * tested))) & jnp.isfinite(ordered)
        return jnp.sum(jnp.where(counted, ordered, 0)) / jnp.maximum(jnp.sum(counted), 1)

    return merge


def _spread_of_accuracy(total: CorrectCounts, each: CorrectCounts, agents: int) -> Array:
    """Return the standard deviation of the agents' test accuracies."""
    ordered, tested = _own_accuracies(each)
    counted, number = jnp.isfinite(ordered), jnp.maximum(tested, 1)
    mean = jnp.sum(jnp.where(counted, ordered, 0)) / number
    return jnp.sqrt(jnp.sum(jnp.where(counted, (ordered - mean) ** 2, 0)) / number)


def _per_test(part: Callable[[CorrectCounts], Array]) -> Merge:
    return lambda total, each, agents: part(total) / jnp.maximum(total.tests, 1)


class MetricSum(NamedTuple):
    """The sum of a metric's values and their number, for one agent or for all.

    For a metric of all samples (`Metric.of_all`), the values themselves, (n, ...), and 1 for each sample, (n,).
    """

    total: Array
    number: Array


def _sum_metrics(view: AgentView, x: Vector) -> tuple[dict[str, Any], dict[str, MetricSum]]:
    """Return the metrics of one agent on its test samples: to sum over agents, and to keep."""
    functions, one = view
    model, named = with_own_statistics(functions, one, x), dict(functions.metrics)
    sizes = jnp.asarray(one.test_sizes)
    found = _sums_of_metrics(functions.metrics, model, one.test, sizes, BLOCK, functions.longest, one.test_offset)
    own = {name: _own_value(named[name], sums) for name, sums in found.items()}
    return {name: None if _is_pooled(named[name]) else sums for name, sums in own.items()}, own


def _is_pooled(metric: Metric) -> bool:
    """Return whether a metric needs the values of all samples of all agents at once."""
    return metric.of_all is not None and metric.over == "samples"


def _own_value(metric: Metric, found: MetricSum) -> MetricSum:
    """Return an agent's term in the sum of a metric: its sums, or its own value and 1 in a mean over agents."""
    if metric.over == "samples":
        return found
    value = metric_value(metric, found)
    return MetricSum(jnp.where(jnp.isnan(value), 0, value), (~jnp.isnan(value)).astype(value.dtype))


def _sums_of_metrics(
    metrics: NamedMetrics, model: Vector, rows: Tree, size: Array, block: int, longest: int, offset: Any = None
) -> dict[str, MetricSum]:
    """Return the sums of metrics over the first `size` rows, of which there are at most `longest`."""
    room = -(-longest // block) * block  # for values that are kept, in whole blocks

    def sums_of(model: Vector, rows: Tree, inside: Array, q: Any) -> dict[str, MetricSum]:
        return {name: block_sums(name, metric, metric.values(model.tree, rows), inside, q) for name, metric in metrics}

    def block_sums(name: str, metric: Metric, values: Array, inside: Array, q: Any) -> MetricSum:
        if metric.of_sum is None and metric.of_all is None:
            return _sum_values(values, inside, every=name == CENTRAL_LOSS)
        counted = jnp.where(inside.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
        if metric.of_sum is not None:
            return MetricSum(jnp.sum(counted, axis=0), jnp.sum(inside).astype(values.dtype))
        place, empty = q * block + jnp.arange(block), jnp.zeros((room, *values.shape[1:]), values.dtype)
        return MetricSum(empty.at[place].set(counted), jnp.zeros(room, values.dtype).at[place].set(inside))

    return in_blocks(sums_of, model, rows, size, block, offset)


def _sum_values(values: Array, inside: Array, *, every: bool = False) -> MetricSum:
    """Return the sum and the number of the values of the samples that are `inside` and, unless `every`, are not NaN."""
    inside = jnp.reshape(inside, inside.shape + (1,) * (values.ndim - 1))
    counted = (inside & jnp.ones(values.shape, bool)) if every else inside & ~jnp.isnan(values)
    return MetricSum(jnp.sum(jnp.where(counted, values, 0)), jnp.sum(counted).astype(values.dtype))


def metric_value(metric: Metric, found: MetricSum) -> Array:
    """Return a metric from its sums over samples; NaN if there are no samples."""
    if metric.of_all is not None:
        return metric.of_all(found.total, found.number > 0)
    if metric.of_sum is not None:
        return jnp.where(found.number > 0, metric.of_sum(found.total), jnp.nan)
    return value_of_mean(metric.of_mean, found)


def metric_per_agent(metric: Metric, each: MetricSum) -> Array:
    """Return a metric of each agent, (N,), from what a measurement kept of all agents."""
    if metric.over == "agents":
        return value_of_mean("", each)
    return jax.vmap(partial(metric_value, metric))(each)


def value_of_mean(of_mean: str, found: MetricSum) -> Array:
    """Return a metric from the sum and the number of its values; NaN if there are none."""
    mean = jnp.where(found.number > 0, found.total / jnp.maximum(found.number, 1), jnp.nan)
    return jnp.exp(mean) if of_mean == "exp" else jnp.sqrt(mean) if of_mean == "sqrt" else mean


def _merge_metric(
    name: str, metric: Metric, total: dict[str, MetricSum], each: dict[str, MetricSum] | None, agents: int
) -> Array:
    if each is None:  # of a central test set, which is one
        return metric_value(metric, total[name])
    if _is_pooled(metric):
        return metric_value(metric, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), each[name]))
    return value_of_mean("", total[name]) if metric.over == "agents" else metric_value(metric, total[name])


@cache  # a compiled program is found by its columns, so that equal columns must have the same merge
def _cached_merge(name: str, metric: Metric) -> Merge:
    return partial(_merge_metric, name, metric)


def _no_values(model: Tree, batch: Tree) -> Array:
    """Stands for the values of a metric where only their sums are used."""
    raise AssertionError


def _merge_of_metric(name: str, metric: Metric) -> Merge:
    return _cached_merge(name, metric._replace(values=_no_values))


def _sum_central(functions: Functions, rows: Tree, x: Vector) -> dict[str, MetricSum]:
    """Return the sums of all that is measured on a central test set, by the names of the columns."""
    number = len(jax.tree.leaves(rows)[0])
    if isinstance(functions.losses, AgentLoss):  # the loss of all samples together, which no blocks add up to
        mask = jnp.ones(number, jnp.result_type(*jax.tree.leaves(x.tree)))
        return {CENTRAL_LOSS: MetricSum(functions.losses(x.tree, (rows, mask)), jnp.ones((), mask.dtype))}
    return _sums_of_metrics(functions.central, x, rows, jnp.int32(number), functions.block or BLOCK, number)


def _local_accuracy(algorithm: Method, functions: Functions, layout: Layout, shard: Shard, state: State) -> Array:
    """Return max_i ||grad L_i||^2 where the last local solves ended; NaN at the start, before any."""

    def of_agent(one: tuple[Shard, Any]) -> tuple[None, Array]:
        own, agent = one
        assert algorithm.local_gradient is not None  # `simulate` refuses the column otherwise
        gradient = algorithm.local_gradient(local_objective(functions, own), agent)
        return None, zero_for_padding(own, gradient @ gradient)

    # Agents of different sizes one after another: all at once, every agent would take as long as the largest.
    _, each = each_agent(
        of_agent, (shard, state.agents), layout if shard.offset is None else layout._replace(parallel=False)
    )
    largest = jnp.max(each)
    largest = largest if layout.mesh is None else lax.pmax(largest, AXIS)
    return jnp.where(state.round == 0, jnp.nan, largest)


OBJECTIVE = Measure(agent=_objective, reveals=True)
VALUE = Measure(agent=_value)  # for secure aggregation, which must not reveal a gradient
ACCURACY = Measure(agent=_count_correct, tests=True)
METRICS = Measure(agent=_sum_metrics, tests=True)
# No column has it; the mean of the agents' statistics normalises the central test set.
STATISTICS = Measure(agent=lambda view, x: (own_statistics(view.functions, view.shard, x), None))
CENTRAL = Measure(central=_sum_central)

COUNTED = (
    Column("round", "rounds", "rounds", "place", np.int64),
    Column("communicated", "whether the round ended in a communication", kind="place", dtype=np.bool_),
    Column("communications", "communications with the server", "communications", "cost", np.int64),
    Column(
        "local_updates",
        "local steps in sequence: the sum over rounds of the largest number of an agent",
        "local steps",
        "cost",
        np.int64,
    ),
    Column("samples", "sample gradients computed, all agents together", "samples", "cost", np.int64, log=True),
    Column("bytes_up", "bytes sent by all agents together", "bytes up", "cost", np.int64, "bytes", log=True),
    Column("bytes_down", "bytes received by all agents together", "bytes down", "cost", np.int64, "bytes", log=True),
)
MEASURED = (
    Column(
        "loss",
        "loss f(x₀), mean over the agents",
        "f",
        better="less",
        measure=OBJECTIVE,
        merge=lambda total, each, agents: total[0] / agents,
        plain="The loss is the mean error of the model on the agents' training samples.",
    ),
    Column(
        "stationarity",
        "stationarity ‖∇f(x₀)‖², squared norm of the gradient",
        "‖∇f‖²",
        better="less",
        log=True,
        measure=OBJECTIVE,
        merge=_stationarity,
        plain="The stationarity shows how far the model is from the end of training: it is the squared slope of the "
        "mean loss of all agents, and 0 where no small change of the model lowers that loss.",
    ),
    Column(
        "consensus",
        "consensus gap, largest distance between two agents' models",
        "consensus gap",
        better="less",
        log=True,
        plain="The consensus gap is the largest distance between two agents' copies of the model; 0 means that all are "
        "equal.",
    ),
)
_accuracy = partial(Column, unit="share", better="more", measure=ACCURACY)
# The columns that `record` can add, by the word that asks for them.
RECORDABLE: dict[str, tuple[Column, ...]] = {
    "heterogeneity": (
        Column(
            "heterogeneity",
            "heterogeneity δ = max‖∇fᵢ − ∇f‖ at x₀",
            "δ",
            better="less",
            log=True,
            measure=Measure(joint=gradient_dissimilarity),
            plain="The heterogeneity shows how much the agents' own slopes differ from their mean; 0 means that all "
            "agents pull the model the same way.",
        ),
    ),
    "smoothness": (
        Column(
            "smoothness",
            "smoothness L at x₀, the largest |eigenvalue| of the Hessians (ten power iterations)",
            "L",
            log=True,
            measure=Measure(joint=local_smoothness),
            plain="The smoothness L shows how fast the slope of the loss changes. Step sizes near 1/L are usual.",
        ),
    ),
    "local_accuracy": (
        Column(
            "local_accuracy",
            "local accuracy ε₁ = max‖∇Lᵢ‖² after the local solves of FedPD",
            "ε₁",
            better="less",
            log=True,
            measure=Measure(state=_local_accuracy),
            plain="The local accuracy shows how exactly the agents solved their own problems in a round; 0 is exact.",
        ),
    ),
    "accuracy": (
        _accuracy(
            "train_accuracy",
            "accuracy on all training samples",
            "training accuracy",
            merge=lambda total, each, agents: total.trained / total.samples,
        ),
        _accuracy(
            "test_accuracy", "accuracy on all test samples", "test accuracy", merge=_per_test(lambda total: total.right)
        ),
        _accuracy(
            "test_accuracy_agents",
            "mean test accuracy of the agents",
            "mean test accuracy of the agents",
            merge=_mean_accuracy(1.0),
        ),
        _accuracy(
            "test_accuracy_worst",
            "mean test accuracy of the worst tenth of the agents",
            "test accuracy of the worst tenth",
            merge=_mean_accuracy(TENTH),
        ),
        Column(
            "test_loss",
            "test loss, mean over all test samples",
            "test loss",
            better="less",
            measure=ACCURACY,
            merge=_per_test(lambda total: total.loss),
        ),
    ),
    "fairness": (
        _accuracy(
            "test_accuracy_std",
            "standard deviation of the agents' test accuracies",
            "standard deviation of test accuracy",
            merge=_spread_of_accuracy,
            better="less",
        ),
        _accuracy(
            "test_accuracy_best",
            "mean test accuracy of the best tenth of the agents",
            "test accuracy of the best tenth",
            merge=_mean_accuracy(TENTH, best=True),
        ),
    ),
    "metrics": (),  # those of the problem: `metric_columns`
}
# The columns of a central test set, which `simulate(test=...)` adds; `central_columns` adds the problem's metrics.
CENTRAL_COLUMNS = (
    Column(
        CENTRAL_ACCURACY,
        "accuracy on the central test set",
        "central accuracy",
        unit="share",
        better="more",
        measure=CENTRAL,
        merge=_merge_of_metric(CENTRAL_ACCURACY, Metric(_no_values)),
    ),
    Column(
        CENTRAL_LOSS,
        "loss on the central test set, mean over its samples",
        "central loss",
        better="less",
        measure=CENTRAL,
        merge=_merge_of_metric(CENTRAL_LOSS, Metric(_no_values)),
    ),
)
# The columns that only a federation has. They count from the start of the run.
FEDERATED = (
    Column("wire_bytes_up", "bytes received by the server, as serialised", "wire bytes up", "cost", np.int64, "bytes"),
    Column("wire_bytes_down", "bytes sent by the server, as serialised", "wire bytes down", "cost", np.int64, "bytes"),
    Column("missing", "answers that did not come in time", kind="event", dtype=np.int64, better="less"),
    Column("refused", "answers that could not be used", kind="event", dtype=np.int64, better="less"),
    Column("rebuilt", "clients that had lost their state", kind="event", dtype=np.int64, better="less"),
    Column("clipped", "messages that were clipped", kind="event", dtype=np.int64, better="less"),
)
# The simulated time of a run that has a clock. It follows from the counted columns.
NETWORK = Column("network_seconds", "seconds on your network, simulated", "network time", "cost", unit="s")
# How many agents the metrics are measured over, if not over all.
SAMPLE = Column(
    "metrics_agents",
    "agents over which the metrics are measured",
    dtype=np.int64,
    measure=Measure(joint=lambda functions, layout, shard, x: jnp.asarray(layout.agents)),
)
# What a run with private messages has spent.
EPSILON = Column("epsilon", "ε of client-level differential privacy, spent so far", "ε", "cost")
EPSILON_EXAMPLES = Column(
    "epsilon_examples", "ε of example-level differential privacy, spent so far", "ε of examples", "cost"
)
_RECORDED = tuple(column for group in RECORDABLE.values() for column in group)
_OTHERS = (NETWORK, SAMPLE, EPSILON, EPSILON_EXAMPLES)
KNOWN = {column.name: column for column in (*COUNTED, *MEASURED, *_RECORDED, *CENTRAL_COLUMNS, *FEDERATED, *_OTHERS)}
COLUMNS = {column.name: column for column in (*COUNTED, *MEASURED)}  # the columns that every history has


def measures_of(columns: Iterable[Column]) -> list[Measure]:
    """Return the measures of columns, each once; a column that is counted has none."""
    return list(dict.fromkeys(column.measure for column in columns if column.measure is not None))


def column_of(name: str) -> Column:
    """Return the column of this name. A column that fedpd does not know, such as a user's own, shows its name."""
    return KNOWN.get(name, Column(name, name.replace("_", " ")))


def metric_columns(problem: Problem) -> tuple[Column, ...]:
    """Return the columns of a problem's metrics."""
    tests = problem.evaluation
    return () if tests is None else tuple(_metric_column(*pair) for pair in tests.measured(problem.losses))


def _metric_column(name: str, metric: Metric) -> Column:
    if name in COLUMNS:
        refuse("metrics", name, "is the name of a column that every history has", "Choose another name")
    merge = _merge_of_metric(name, metric)
    usual = column_of(name)
    return usual._replace(
        words=metric.words or usual.words, better=metric.better, measure=METRICS, merge=merge, kind="value"
    )


def central_columns(metrics: NamedMetrics) -> tuple[Column, ...]:
    """Return the columns of what is measured on a central test set, given by their names."""
    usual = {column.name: column for column in CENTRAL_COLUMNS}
    return tuple(usual[name] if name in usual else _central_column(name, metric) for name, metric in metrics)


def _central_column(name: str, metric: Metric) -> Column:
    words = f"{metric.words or name.removeprefix('central_').replace('_', ' ')} on the central test set"
    merge = _merge_of_metric(name, metric)
    return Column(name, words, better=metric.better, measure=CENTRAL, merge=merge)


def recorded_columns(record: Iterable[str | Column], problem: Problem) -> tuple[Column, ...]:
    """Return the columns of `record`: those of the words of `RECORDABLE`, the problem's metrics, and the user's own."""
    found: list[Column] = []
    for one in record:
        if isinstance(one, Column):
            if one.name in COLUMNS or one.measure is None or one.dtype is not np.float64:
                rule = "must have a name that no other column has, a measure, and the dtype float64"
                refuse(
                    "record", one.name, rule, 'Give e.g. Column("mae", "mean absolute error", measure=..., merge=...)'
                )
            found.append(one)
        else:
            found += RECORDABLE[choice("record", one, RECORDABLE)]
            found += metric_columns(problem) if one == "metrics" else ()
    return check_names(tuple(found))


def check_names(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns; refuse two of the same name."""
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            refuse("record", name, "is recorded twice", "Give every column once")
    return columns


LAYOUT = 'Give samples in the form of one agent\'s, e.g. {"x": x_test, "y": y_test}'


class CentralTest(NamedTuple):
    """A central test set as the problem holds samples, and what is measured on it."""

    rows: Tree  # the samples, leaves (m, ...)
    metrics: NamedMetrics  # what is measured, by the names of the columns

    def identity(self) -> dict[str, str]:
        """Return hashes of the samples and of the functions. A run resumes with the same ones only."""
        return {"samples": checkpoint.fingerprint(self.rows), "functions": fingerprint(self.metrics)}


def central_test(problem: Problem, test: Any) -> CentralTest:
    """Return the central test set of a run.

    Raises:
        FedpdError: The samples do not have the names, shapes, types or labels of the problem's own.
    """
    judge = problem.judge or Judge(hold=lambda samples: samples)
    rows = judge.hold(read_npz(test) if isinstance(test, str | Path) else test)
    return CentralTest(_fitted(problem, rows), _metrics(problem, judge))


def _metrics(problem: Problem, judge: Judge) -> NamedMetrics:
    """Return what is measured: the accuracy if the problem knows what is correct, the loss, and its metrics."""
    right = () if judge.correct is None else ((CENTRAL_ACCURACY, Metric(judge.correct, better="more")),)
    own = tuple((f"central_{name}", metric) for name, metric in judge.metrics)
    return (*right, (CENTRAL_LOSS, Metric(judge.losses or problem.losses)), *own)


def _fitted(problem: Problem, rows: Tree) -> Tree:
    """Return the samples in the precision of the problem; refuse those of another form than its own."""
    axes = 2 if problem.offsets is None and problem.load is None else 1
    like, structure = jax.tree_util.tree_flatten_with_path(problem.data)
    names = [jax.tree_util.keystr(path) or "samples" for path, _ in like]
    found = [jax.tree_util.keystr(path) or "samples" for path, _ in jax.tree_util.tree_flatten_with_path(rows)[0]]
    given: Any = jax.tree.structure(rows)
    if given != structure:
        refuse("test", ", ".join(found), f"must have the problem's own arrays: {', '.join(names)}", LAYOUT)
    leaves = []
    for name, (_, own), leaf in zip(names, like, jax.tree.leaves(rows), strict=True):
        array = as_array(leaf, f"test{name}")
        wanted, text = own.shape[axes:], f"{array.dtype}{list(array.shape)}"
        if array.ndim < 1 or array.shape[1:] != wanted:
            rule = f"must have the shape (m, {', '.join(map(str, wanted))}) of m samples".replace("(m, )", "(m,)")
            refuse(f"test{name}", text, rule, LAYOUT)
        if array.dtype.kind.replace("u", "i") != own.dtype.kind.replace("u", "i") or (
            np.uint8 in (array.dtype, own.dtype) and array.dtype != own.dtype  # pixels, which a model may scale
        ):
            rule = f"must be {own.dtype} as the agents' samples are"
            refuse(f"test{name}", text, rule, "Prepare both in the same way")
        array = owned(as_numpy(array, problem.double, f"test{name}").astype(own.dtype, copy=False))
        leaves.append(check_finite(array, f"test{name}", "Clean or drop those samples"))
    if len({len(leaf) for leaf in leaves}) > 1 or not len(leaves[0]):
        sizes = {name: len(leaf) for name, leaf in zip(names, leaves, strict=True)}
        refuse("numbers of samples in test", sizes, "must be equal, and at least 1", LAYOUT)
    return jax.tree.unflatten(structure, leaves)
