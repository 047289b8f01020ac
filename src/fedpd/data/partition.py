"""Divide data without clients among agents, with a partitioner of flwr-datasets."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.arrays import as_array, as_labels
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.extras import extra
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, assemble
from fedpd.data.labels import Classes

ROW = "row"  # the column with the row numbers: partitioners divide these, and the samples are not copied


@explained
def partition(
    x: np.ndarray,
    y: np.ndarray,
    partitioner: Any,
    *,
    columns: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str = "partition",
) -> Federated:
    """Return samples divided among agents by a partitioner; `split` then sets some aside for tests.

    If the partitioner has natural ids, they are the names of the agents. Otherwise the names are "0", "1", and so on.

    Args:
        x: Features, (n, ...).
        y: Labels, (n,).
        partitioner: For example `flwr_datasets.partitioner.DirichletPartitioner(num_partitions=10,
            partition_by="label", alpha=0.3, seed=0)`. It is not changed. It sees the labels as its column "label".
        columns: More columns for the partitioner, by name, (n,) each: for example the ids that a NaturalIdPartitioner
            divides by.
        classes: K for the labels 0..K-1, or the labels; None: as `fedpd.data.labels` says; False: the labels are
            numbers to predict (`fedpd.data.labels`).
        label_names: The names of the classes, in their order.
        dtype: The dtype of the features; None: as given.
        name: The name of the data in tables and figures.
    """
    x, y = as_array(x, "x"), as_labels(y, "y")
    if x.ndim == 0 or y.ndim == 0 or (y.ndim > 1 and classes is not False) or len(x) != len(y) or not len(y):
        refuse("shapes of x and y", (x.shape, y.shape), "must be (n, ...) and (n,), n > 0", "Pair x with y")
    rows = _rows(partitioner, _table(y, columns or {}))
    parts = {agent: {"x": x[chosen], "y": y[chosen]} for agent, chosen in rows.items()}

    def place(agent: str, part: str) -> str:
        return f"{type(partitioner).__name__}: agent {agent!r}"

    return assemble(parts, {}, place, classes=classes, label_names=label_names, dtype=dtype, name=name)


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
        rule = "must be one of flwr_datasets.partitioner"
        refuse("partitioner", type(partitioner).__name__, rule, "Give e.g. IidPartitioner(num_partitions=10)")
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
