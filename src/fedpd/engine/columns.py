"""The columns of a history: one object each, which says what it is, how it is measured and how it is shown.

The simulator, Flower's evaluation, tables, figures and the report read these objects. A column of your own is one more.
Each agent returns what to sum over agents and what to keep of itself; `merge` makes a number of both:

    largest = Column(
        "largest",
        "largest loss of an agent",
        measure=Measure(agent=lambda view, x: (None, view.f.value(x))),
        merge=lambda total, each, agents: each.max(),
    )
    simulate(algorithm, problem, rounds=100, record=[largest])
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import choice, refuse
from fedpd.core import Array, LocalObjective, Tree, in_blocks
from fedpd.core.agents import BLOCK, Functions, Layout, Shard, local_objective
from fedpd.core.statistics import with_own_statistics
from fedpd.theory.curvature import local_smoothness
from fedpd.theory.dissimilarity import gradient_dissimilarity

WORST = 0.1  # the part of the agents whose mean accuracy is test_accuracy_worst


class AgentView(NamedTuple):
    """What one agent has: its objective f_i, its samples, and its test samples."""

    functions: Functions
    shard: Shard  # without the leading axis

    @property
    def f(self) -> LocalObjective:
        return local_objective(self.functions, self.shard)


class AgentMeasure(Protocol):
    """Returns what one agent measures at the model x: a pytree to sum over agents, and small numbers to keep."""

    def __call__(self, view: AgentView, x: Vector, /) -> tuple[Tree, Tree]: ...


class JointMeasure(Protocol):
    """Returns what takes several passes over all agents, as only a simulator can do them: a number."""

    def __call__(self, functions: Functions, layout: Layout, shard: Shard, x: Vector, /) -> Array: ...


class Merge(Protocol):
    """Returns a column's value from the sum over agents, what each of them keeps (N, ...), and their number N."""

    def __call__(self, total: Tree, each: Tree, agents: int, /) -> Any: ...


class Measure(NamedTuple):
    """How columns are measured at the model x = mean_i x_{0,i}; those that share a measure share its one pass.

    Attributes:
        agent: What each agent measures by itself, in a simulation and on Flower.
        joint: Instead of it, what only a simulator measures.
        tests: Whether it needs test samples.
        reveals: Whether the sums say more of one agent than numbers, such as its gradient.
    """

    agent: AgentMeasure | None = None
    joint: JointMeasure | None = None
    tests: bool = False
    reveals: bool = False


class Column(NamedTuple):
    """One column of a history.

    Attributes:
        name: Its name in `run.history` and in files.
        words: What an axis says.
        symbol: What a sentence says; "": the name.
        kind: "cost" is spent, "value" is measured, "event" counts what went wrong, "place" says which row it is.
        dtype: The type of its numbers.
        unit: "bytes", "s", "share" (of 1), or "".
        better: Whether "less" or "more" is better; None: neither.
        log: Whether it is drawn on a logarithmic axis.
        measure: How it is measured; None: it is counted.
        merge: Makes its value from what the agents measured.
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


def _objective(view: AgentView, x: Vector) -> tuple[tuple[Array, Vector], None]:
    return view.f.value_and_gradient(x), None


def _value(view: AgentView, x: Vector) -> tuple[Array, None]:
    return view.f.value(x), None


class Judged(NamedTuple):
    """What one agent gets right, and how much it has."""

    trained: Array
    samples: Array
    right: Array
    loss: Array
    tests: Array


def _judge(view: AgentView, x: Vector) -> tuple[Judged, Judged]:
    """Count the training and test samples that the model gets right, agent by agent."""
    functions, one = view
    correct, losses = functions.correct, functions.test_losses or functions.losses
    assert correct is not None  # accuracy is asked for only where there are tests
    model = with_own_statistics(functions, one, x)

    def sums_of(model: Vector, rows: Tree, inside: Array) -> tuple[Array, Array]:
        return jnp.sum(correct(model.tree, rows) * inside), jnp.sum(losses(model.tree, rows) * inside)

    tests = jnp.asarray(one.test_sizes)
    trained, _ = in_blocks(sums_of, model, one.data, one.sizes, BLOCK)
    right, loss = in_blocks(sums_of, model, one.test, tests, BLOCK)
    found = Judged(trained, jnp.asarray(one.sizes, float), right, loss, tests.astype(float))
    return found, found


def _own_accuracies(each: Judged) -> tuple[Array, Array]:
    """Return the agents' own test accuracies, smallest first, infinite for those without tests; and how many have."""
    own = jnp.where(each.tests > 0, each.right / jnp.maximum(each.tests, 1), jnp.inf)
    return jnp.sort(own), jnp.sum(each.tests > 0)


def _mean_accuracy(share: float) -> Merge:
    """Return the mean over this share of the agents that have tests, the worst of them."""

    def merge(total: Judged, each: Judged, agents: int) -> Array:
        ordered, tested = _own_accuracies(each)
        counted = jnp.arange(len(ordered)) < jnp.maximum(1, jnp.ceil(share * tested))
        counted = counted & jnp.isfinite(ordered)
        return jnp.sum(jnp.where(counted, ordered, 0)) / jnp.maximum(jnp.sum(counted), 1)

    return merge


def _per_test(part: Callable[[Judged], Array]) -> Merge:
    return lambda total, each, agents: part(total) / jnp.maximum(total.tests, 1)


OBJECTIVE = Measure(agent=_objective, reveals=True)
VALUE = Measure(agent=_value)  # without the gradient, where nothing may be revealed
JUDGEMENT = Measure(agent=_judge, tests=True)

COUNTED = (
    Column("round", "rounds", "rounds", "place", np.int64),
    Column("communicated", "whether the round ended in a communication", kind="place", dtype=np.bool_),
    Column("communications", "communications with the server", "communications", "cost", np.int64),
    Column(
        "local_updates",
        "local steps one after another: the sum over rounds of the largest number that an agent did",
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
    ),
    Column(
        "stationarity",
        "stationarity ‖∇f(x₀)‖², squared norm of the gradient",
        "‖∇f‖²",
        better="less",
        log=True,
        measure=OBJECTIVE,
        merge=lambda total, each, agents: (total[1] / agents) @ (total[1] / agents),
    ),
    Column(
        "consensus",
        "consensus gap, largest distance between two agents' models",
        "consensus gap",
        better="less",
        log=True,
    ),
)
# What can be recorded besides, by the word that asks for it.
RECORDABLE: dict[str, tuple[Column, ...]] = {
    "heterogeneity": (
        Column(
            "heterogeneity",
            "heterogeneity δ = max‖∇fᵢ − ∇f‖ at x₀",
            "δ",
            better="less",
            log=True,
            measure=Measure(joint=gradient_dissimilarity),
        ),
    ),
    "smoothness": (
        Column(
            "smoothness",
            "smoothness L at x₀, the largest |eigenvalue| of the Hessians (ten power iterations)",
            "L",
            log=True,
            measure=Measure(joint=local_smoothness),
        ),
    ),
    "accuracy": (
        Column(
            "train_accuracy",
            "accuracy on all training samples",
            "training accuracy",
            unit="share",
            better="more",
            measure=JUDGEMENT,
            merge=lambda total, each, agents: total.trained / total.samples,
        ),
        Column(
            "test_accuracy",
            "accuracy on all test samples",
            "test accuracy",
            unit="share",
            better="more",
            measure=JUDGEMENT,
            merge=_per_test(lambda total: total.right),
        ),
        Column(
            "test_accuracy_agents",
            "mean test accuracy of the agents",
            "mean test accuracy of the agents",
            unit="share",
            better="more",
            measure=JUDGEMENT,
            merge=_mean_accuracy(1.0),
        ),
        Column(
            "test_accuracy_worst",
            "mean test accuracy of the worst tenth of the agents",
            "test accuracy of the worst tenth",
            unit="share",
            better="more",
            measure=JUDGEMENT,
            merge=_mean_accuracy(WORST),
        ),
        Column(
            "test_loss",
            "test loss, mean over all test samples",
            "test loss",
            better="less",
            measure=JUDGEMENT,
            merge=_per_test(lambda total: total.loss),
        ),
    ),
}
# What only a federation counts, so far in the run.
FEDERATED = (
    Column("wire_bytes_up", "bytes received by the server, as serialised", "wire bytes up", "cost", np.int64, "bytes"),
    Column("wire_bytes_down", "bytes sent by the server, as serialised", "wire bytes down", "cost", np.int64, "bytes"),
    Column("missing", "answers that did not come in time", kind="event", dtype=np.int64, better="less"),
    Column("refused", "answers that could not be used", kind="event", dtype=np.int64, better="less"),
    Column("rebuilt", "clients that had lost their state", kind="event", dtype=np.int64, better="less"),
    Column("clipped", "messages that were clipped", kind="event", dtype=np.int64, better="less"),
)
_RECORDED = tuple(column for group in RECORDABLE.values() for column in group)
KNOWN = {column.name: column for column in (*COUNTED, *MEASURED, *_RECORDED, *FEDERATED)}
COLUMNS = {column.name: column for column in (*COUNTED, *MEASURED)}  # the columns that every history has


def column_of(name: str) -> Column:
    """Return the column of this name; one that fedpd does not know, such as a user's own, is described by its name."""
    return KNOWN.get(name, Column(name, name.replace("_", " ")))


def recorded_columns(record: Iterable[str | Column]) -> tuple[Column, ...]:
    """Return the columns that `record` asks for: words of `RECORDABLE`, and columns of the user's own."""
    found: list[Column] = []
    for one in record:
        if isinstance(one, Column):
            if one.name in COLUMNS or one.measure is None or one.dtype is not np.float64:
                rule = "must have a name of its own, a measure, and numbers of float64"
                refuse(
                    "record", one.name, rule, 'Give e.g. Column("mae", "mean absolute error", measure=..., merge=...)'
                )
            found.append(one)
        else:
            found += RECORDABLE[choice("record", one, RECORDABLE)]
    names = [column.name for column in found]
    for name in names:
        if names.count(name) > 1:
            refuse("record", name, "is recorded twice", "Ask for every column once")
    return tuple(found)
