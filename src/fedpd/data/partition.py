"""Divide data without clients among agents, by a rule of fedpd or with a partitioner of flwr-datasets."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.arrays import as_array, as_labels
from fedpd.base.checks import FedpdError, count, refuse
from fedpd.base.errors import extra
from fedpd.base.typed import explained
from fedpd.data.dirichlet import divide_alike
from fedpd.data.division import Division
from fedpd.data.federated import Federated, Options, assemble
from fedpd.data.labels import Classes

ROW = "row"  # the column with the row numbers: partitioners divide these, and the samples are not copied


@explained
def partition(
    x: np.ndarray,
    y: Any,
    partitioner: Division | Any,
    *,
    agents: int | None = None,
    seed: int | None = None,
    test: tuple[Any, Any] | None = None,
    columns: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str = "partition",
) -> Federated:
    """Return samples divided among agents by a rule of fedpd or by a partitioner of flwr-datasets.

    The names of the agents are "0", "1", and so on, or the natural ids of a partitioner of flwr-datasets. `classes`,
    `label_names` and `dtype` are as for `from_arrays`.

    Args:
        x: Features, (n, ...).
        y: Labels, (n,): numbers or texts.
        partitioner: A rule: `data.iid()`, `data.by_dirichlet(alpha)`, `data.by_classes(number)`,
            `data.by_shards(number)`, `data.by_quantity(alpha)`, `data.by_noise(level)` or `data.by_rotation()`. Or a
            partitioner of flwr-datasets, e.g. `DirichletPartitioner(num_partitions=10, partition_by="label", alpha=0.3,
            seed=0)`, which is not changed and sees the labels as its column "label".
        agents: N, for a rule of fedpd.
        seed: The seed of a rule of fedpd, and of the division of the test samples; None: 0.
        test: (x, y) of test samples, which go to the agents in proportion to their training samples of the class. None:
            the agents have no test samples; `data.split` can set some aside, and `simulate(test=...)` takes samples of
            nobody.
        columns: More columns for a partitioner of flwr-datasets, by name, (n,) each: for example the ids that a
            NaturalIdPartitioner divides by.
        name: The name of the data in tables and figures.

    Raises:
        FedpdError: There are fewer samples than agents, the rule cannot divide them, or x and y do not fit.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> x, y = np.eye(60, 4), np.arange(60) % 3
        >>> federated = data.partition(x, y, data.by_dirichlet(0.3), agents=4, seed=0)
        >>> federated.agents, int(federated.sizes.sum()), data.label_histogram(federated).shape
        (4, 60, (4, 3))
    """
    x, y = _pair(x, y, "x and y", classes)
    seed = count("seed", 0 if seed is None else seed, "Give the seed of the division, an integer", least=0)
    rng = np.random.default_rng(seed)
    numbers = {"train": np.zeros(len(y), int)} if classes is False else {"train": np.unique(y, return_inverse=True)[1]}
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        refuse("test", type(test).__name__, "must be a pair (x, y)", "Give test=(x_test, y_test)")
    tests = None if test is None else _pair(test[0], test[1], "test", classes)
    if tests is not None and classes is not False:
        both = np.unique(np.concatenate([y, tests[1]]), return_inverse=True)[1]
        numbers = {"train": both[: len(y)], "test": both[len(y) :]}
    elif tests is not None:
        numbers["test"] = np.zeros(len(tests[1]), int)
    rule = partitioner if isinstance(partitioner, Division) else Division()
    if isinstance(partitioner, Division):
        if columns is not None:
            refuse("columns", sorted(columns), "are for partitioners of flwr-datasets", "Leave them out")
        rows = _divided(partitioner, numbers["train"], agents, classes, rng)
    else:
        if agents is not None:
            remedy = "Give num_partitions to the partitioner, or a rule such as data.by_dirichlet(0.3)"
            refuse("agents", agents, "is for the rules of fedpd", remedy)
        rows = _rows(partitioner, _table(y, columns or {}))
    parts = {"train": _samples(rule, x, y, rows, rng)}
    if tests is not None:
        number = max(int(one.max(initial=0)) for one in numbers.values()) + 1
        own = divide_alike(numbers["test"], numbers["train"], list(rows.values()), number, rng)
        parts["test"] = _samples(rule, *tests, dict(zip(rows, own, strict=True)), rng)

    def place(agent: str, part: str) -> str:
        return f"{type(partitioner).__name__.lstrip('_')}: agent {agent!r}"

    return assemble(parts["train"], parts.get("test", {}), place, Options(classes, label_names, dtype, name))


def _pair(x: Any, y: Any, what: str, classes: Classes) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of the same number of samples."""
    x, y = as_array(x, f"x of {what}" if what == "test" else "x"), as_labels(y, "y")
    if x.ndim == 0 or y.ndim == 0 or (y.ndim > 1 and classes is not False) or len(x) != len(y) or not len(y):
        refuse(f"shapes of {what}", (x.shape, y.shape), "must be (n, ...) and (n,), n > 0", "Pair x with y")
    return x, y


def _divided(
    rule: Division, labels: np.ndarray, agents: int | None, classes: Classes, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return {agent: the row numbers of its samples} by a rule of fedpd."""
    number = count("agents", agents, "Give N, e.g. agents=100")
    if number > len(labels):
        refuse("agents", number, f"must be at most {len(labels)}, the number of samples", "Give fewer agents")
    if rule.by_label and classes is False:
        remedy = "Divide with data.iid(), data.by_quantity(alpha) or data.by_noise(level)"
        refuse("classes", classes, "leaves no classes, by which this rule divides", remedy)
    rows = {str(i): np.sort(own) for i, own in enumerate(rule.rows(labels, number, rng))}
    empty = [agent for agent, own in rows.items() if not len(own)]
    if empty:
        refuse("agents", number, f"leaves agent {empty[0]} without a sample", "Give fewer agents")
    return rows


def _samples(
    rule: Division, x: np.ndarray, y: np.ndarray, rows: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, dict[str, np.ndarray]]:
    """Return the samples of each agent, with the features as the agent sees them."""
    return {
        agent: {"x": rule.features(x[own], i, len(rows), rng), "y": y[own]}
        for i, (agent, own) in enumerate(rows.items())
    }


def _table(y: np.ndarray, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> Any:
    """Return the table that the partitioner divides: row numbers, labels and the further columns."""
    with extra("data", "data.partition"):
        import datasets

    taken = {ROW, "label"} & set(columns)
    if taken:
        refuse("columns", sorted(taken), "are names of columns that exist already", "Choose other names")
    for column, values in columns.items():
        if len(values) != len(y):
            refuse(f"column {column!r}", len(values), f"must have {len(y)} entries, one per sample", "Give all")
    held = {column: as_labels(values, f"column {column!r}") for column, values in columns.items()}
    return datasets.Dataset.from_dict({ROW: np.arange(len(y))} | ({"label": y} if y.ndim == 1 else {}) | held)


def _rows(partitioner: Any, table: Any) -> dict[str, np.ndarray]:
    """Return {agent: the row numbers of its samples}."""
    with extra("data", "data.partition"):
        from flwr_datasets.partitioner import Partitioner

    if not isinstance(partitioner, Partitioner):
        rule = "must be a rule of fedpd.data, or one of flwr_datasets.partitioner"
        refuse("partitioner", type(partitioner).__name__, rule, "Give e.g. data.by_dirichlet(0.3)")
    if partitioner.is_dataset_assigned():
        refuse("partitioner", type(partitioner).__name__, "has a data set already", "Make a new one")
    fresh = copy.deepcopy(partitioner)
    fresh.dataset = table
    try:
        parts = [fresh.load_partition(i) for i in range(fresh.num_partitions)]
    except Exception as error:  # partitioners raise errors of many types, such as KeyError for a missing column
        reason = f"{type(partitioner).__name__} cannot divide columns {table.column_names}: {error!r}"
        remedy = "Labels are in 'label', other columns in columns=. Ask for fewer agents if samples are too few"
        raise FedpdError(f"{reason}. {remedy}.") from error
    if any(ROW not in part.column_names for part in parts):
        rule = "divides columns, not samples"
        refuse("partitioner", type(partitioner).__name__, rule, "Give one that divides samples")
    ids = getattr(fresh, "partition_id_to_natural_id", {})
    return {str(ids.get(i, i)): np.asarray(part[ROW][:], np.int64) for i, part in enumerate(parts)}
