"""Look at data in files: load them by their suffix, and describe in numbers what each agent has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fedpd import data
from fedpd.base.checks import FedpdError
from fedpd.base.typed import explained
from fedpd.data.federated import Federated
from fedpd.data.parquet import table_format as parquet_format
from fedpd.data.regroup import take
from fedpd.data.summary import describe
from fedpd.data.tables import Features, Format, column_names
from fedpd.data.tables import table_format as csv_format
from fedpd.problems.classification import classification
from fedpd.theory import heterogeneity

TABLES: tuple[tuple[Callable[..., Federated], Callable[..., Format]], ...] = (
    (data.csv, csv_format),
    (data.parquet, parquet_format),
)
USUAL = ("image", "x", "features", "pixels", "text")  # usual names of a column of features


@explained
def load(
    path: Path,
    *,
    client: str | None = None,
    features: str | None = None,
    label: str = "label",
    split: str | None = None,
) -> Federated:
    """Return federated data from Parquet or CSV (a file, or a folder of such files) or from LEAF's json.

    Args:
        path: The file or folder.
        client: The column with the client's name; needed for Parquet and CSV.
        features: The columns of features, separated by commas; None: the first of the usual names that the file has, or
            all columns that are nothing else.
        label: The column of labels.
        split: The column that says "train" or "test"; None: the column `split`, if there is one.
    """
    if not path.exists():
        raise FedpdError(f"{path} does not exist. Give a LEAF json file or folder, a Parquet file or a CSV file.")
    suffixes = {path.suffix} if path.is_file() else {file.suffix for file in path.iterdir()}
    forms = [(read, form(client, split)) for read, form in TABLES]
    found = [(read, form) for read, form in forms if form.suffix in suffixes]
    if not found:
        return data.leaf(path)
    read, form = found[0]
    columns = column_names(path, form)
    if client is None:
        raise FedpdError(f"{path}: --client is missing. Give the column with the client's name, one of: {columns}.")
    if split is None and "split" in columns:
        split = "split"
    return read(path, client=client, features=_features(features, columns), label=label, split=split)


def _features(named: str | None, columns: list[str]) -> Features:
    """Return the named columns (separated by commas), else the column with a usual name, else None: all others."""
    if named is None:
        return next((name for name in USUAL if name in columns), None)
    chosen = [name.strip() for name in named.split(",")]
    return chosen if len(chosen) > 1 else chosen[0]


def summary_table(held: Federated) -> Table:
    """Return a table that describes the data in numbers."""
    delta = f"{_delta(held):.3g}, max ||grad f_i - grad f|| of multinomial logistic regression"
    table = Table(title=held.name, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in (describe(held).rows() | {"delta at x^0 = 0": delta}).items():
        table.add_row(name, text)
    return table


def _delta(held: Federated) -> float:
    """Return delta of a linear classifier at zero, so that it does not depend on the start of a network."""
    trained = take(held, np.flatnonzero(held.sizes))
    size, classes = int(np.prod(held.shape)), len(held.classes)

    def scores(model: Any, x: Any) -> Any:
        return x.reshape(len(x), -1).astype(model.dtype) @ model

    start = np.zeros((size, classes), np.float64 if held.train[0]["x"].dtype == np.float64 else np.float32)
    return heterogeneity(classification(scores, trained, start))
