"""Load a data file by its suffix: LEAF's json, Parquet or CSV."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedpd import data
from fedpd.base.checks import FedpdError
from fedpd.base.typed import explained
from fedpd.data.federated import Federated
from fedpd.data.tables import Features, Format, column_names

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
    found = [(read, form) for read, form in _tables(client, split) if form.suffix in suffixes]
    if not found:
        return data.leaf(path)
    read, form = found[0]
    columns = column_names(path, form)
    if client is None:
        raise FedpdError(f"{path}: --client is missing. Give the column with the client's name, one of: {columns}.")
    if split is None and "split" in columns:
        split = "split"
    return read(path, client=client, features=_features(features, columns), label=label, split=split)


def _tables(client: str | None, split: str | None) -> list[tuple[Callable[..., Federated], Format]]:
    """Return the loaders of tables, and the formats that they read."""
    modules = {name: import_module(f"fedpd.data.{name}") for name in data.LOADERS}
    tables = {name: module for name, module in modules.items() if hasattr(module, "table_format")}
    return [(getattr(data, name), module.table_format(client, split)) for name, module in tables.items()]


def _features(named: str | None, columns: list[str]) -> Features:
    """Return the named columns (separated by commas), else the column with a usual name, else None: all others."""
    if named is None:
        return next((name for name in USUAL if name in columns), None)
    chosen = [name.strip() for name in named.split(",")]
    return chosen if len(chosen) > 1 else chosen[0]
