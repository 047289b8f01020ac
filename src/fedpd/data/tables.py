"""Load tables with a column of clients' names, for Parquet and CSV."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import extra
from fedpd.data.arrow import (
    Shape,
    as_tuple,
    by_client,
    check_columns,
    check_named_once,
    client_names,
    read_features,
    read_labels,
    reshape,
)
from fedpd.data.federated import Federated, Options, assemble, place_in
from fedpd.data.indexed import IndexedPart, SourceFile, check_train, has_many_clients, index_by_client, source_file
from fedpd.data.labels import Classes, Label

Features = str | Sequence[str] | None


class Format(NamedTuple):
    """A kind of file that holds a table."""

    title: str  # the name of the format, for messages
    suffix: str  # the suffix of its files
    names: Callable[[Path], list[str]]  # returns the names of a file's columns
    # reads the named columns of a file as an Arrow table. Clients and splits are texts or become texts
    read: Callable[[Path, list[str]], Any]

    # reads the named columns of some rows of a file, in ascending order; None: it reads whole files only
    take: Callable[[Path, list[str], np.ndarray], Any] | None = None


class Columns(NamedTuple):
    """The columns of a table by their meaning; `split` is None if all rows are for training."""

    client: str
    features: Features
    label: Label
    split: str | None


def load_table(
    path: Path, form: Format, columns: Columns, options: Options, *, shape: Shape | None = None, lazy: bool = False
) -> Federated:
    """Return federated data from a file, or from a folder of files in the order of their names.

    With `lazy`, the features stay in the files; see `fedpd.data.indexed`.
    """
    files = _files(path, form)
    columns = columns._replace(features=_features(path, form, columns))
    classes = options.classes
    if lazy:
        index = _index(path, files, form, columns, shape, classes)
        return index_by_client(index, str(path), options)
    wanted = [columns.client, *as_tuple(columns.features or ()), *as_tuple(columns.label)]
    wanted += [] if columns.split is None else [columns.split]
    table = _concatenated(path, [_read(file, form, wanted) for file in files])
    parts = {"train": table} if columns.split is None else _split(table, columns.split, path)

    x = {
        part: reshape(read_features(rows, columns.features or (), str(path)), shape, str(path))
        for part, rows in parts.items()
        if len(rows)
    }
    clients = {part: client_names(parts[part], columns.client, str(path)) for part in x}
    if "train" in x and has_many_clients(list(clients.values())):
        labels = {part: read_labels(parts[part], columns.label, str(path), classes) for part in x}
        index = {part: IndexedPart(clients[part], labels[part], partial(np.take, x[part], axis=0)) for part in x}
        return index_by_client(index, str(path), options).in_memory()
    found = {
        part: by_client(
            parts[part], columns.client, read_labels(parts[part], columns.label, str(path), classes), x[part], str(path)
        )
        for part in x
    }
    return assemble(found.get("train", {}), found.get("test", {}), place_in(path), options)


@dataclass(frozen=True)
class TableRows:
    """Reads the features of some rows of files that hold tables."""

    files: tuple[SourceFile, ...]  # the files, in the order of their rows
    first: np.ndarray  # (files + 1,) the number of the first row of each file, and the number of all rows
    kept: np.ndarray  # the numbers of the rows of a part among all rows, ascending
    form: Format  # the format of the files
    features: Features  # the columns of features
    shape: Shape | None  # the shape of a sample; None: as stored

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        wanted, columns, take = self.kept[rows], list(as_tuple(self.features or ())), self.form.take
        assert take is not None  # `load_table` indexes such formats only
        cuts = np.searchsorted(wanted, self.first)
        tables: list[Any] = []
        for file, start, low, high in zip(self.files, self.first, cuts, cuts[1:], strict=False):
            if high > low or not tables:
                own = wanted[low:high] - start
                with file.unchanged() as path:
                    tables.append(_readable(path, self.form, partial(take, path, columns, own)))
        first = self.files[0].path
        where = str(first.parent)
        return reshape(read_features(_concatenated(first, tables), self.features or (), where), self.shape, where)


def _index(
    path: Path, files: list[Path], form: Format, columns: Columns, shape: Shape | None, classes: Classes
) -> dict[str, IndexedPart]:
    """Return the clients and labels of all rows, and functions that read their features."""
    wanted = [columns.client, *as_tuple(columns.label)] + ([] if columns.split is None else [columns.split])
    sources = tuple(source_file(file) for file in files)  # before they are read, to notice a change meanwhile
    tables = [_read(file, form, wanted) for file in files]
    for file in files:
        check_columns(form.names(file), as_tuple(columns.features or ()), str(file))
    table, first = _concatenated(path, tables), np.cumsum([0] + [len(one) for one in tables])
    parts = {"train": table} if columns.split is None else _split(table, columns.split, path)
    found = {}
    for part, rows in parts.items():
        if len(rows):
            numbers = np.arange(len(table)) if columns.split is None else _numbers(table, columns.split, part)
            read = TableRows(sources, first, numbers, form, columns.features, shape)
            labels = read_labels(rows, columns.label, str(path), classes)
            found[part] = IndexedPart(client_names(rows, columns.client, str(path)), labels, read)
    check_train(found, str(path))
    return found


def _numbers(table: Any, split: str, part: str) -> np.ndarray:
    """Return the numbers of the rows of a part."""
    import pyarrow.compute as pc

    return np.flatnonzero(pc.equal(table[split].cast("string"), part).to_numpy())


def _files(path: Path, form: Format) -> list[Path]:
    """Return the file, or the files of a folder in the order of their names."""
    if not path.exists():
        raise FedpdError(f"{path}: there is no such file or folder. Give a {form.title} file, or the folder it is in.")
    if not path.is_dir() and not path.is_file():
        raise FedpdError(f"{path}: is a pipe or a device, which may never end. Give a {form.title} file.")
    found = sorted(path.rglob(f"*{form.suffix}")) if path.is_dir() else [path]
    files = [file for file in found if file.is_file()]
    if not files:
        raise FedpdError(f"{path}: there is no {form.suffix} in this folder. Give the folder with the files.")
    return files


def column_names(path: Path, form: Format) -> list[str]:
    """Return the names of the columns of a file, or of the first file of a folder."""
    file = _files(path, form)[0]
    return _readable(file, form, lambda: form.names(file))


def _features(path: Path, form: Format, columns: Columns) -> Features:
    """Return the columns of features: the named ones, or all without another meaning."""
    if columns.features is not None:
        check_named_once("features", columns.features)
        for meaning in ("client", "label", "split"):
            if getattr(columns, meaning) in as_tuple(columns.features):
                rule = f"is the column of {meaning}= as well, so the model would see it"
                refuse("features", getattr(columns, meaning), rule, "Leave it out of features=")
        return columns.features
    others = {columns.client, *as_tuple(columns.label), columns.split}
    return [name for name in column_names(path, form) if name not in others]


def _read(file: Path, form: Format, columns: list[str]) -> Any:
    """Return the named columns of one file."""

    def read() -> Any:
        check_columns(form.names(file), columns, str(file))
        return form.read(file, list(dict.fromkeys(columns)))

    return _readable(file, form, read)


def _readable(file: Path, form: Format, read: Callable[[], Any]) -> Any:
    """Return the result of `read`, or refuse the file."""
    with extra("tables", f"Reading {form.title}"):
        import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, UnicodeError) as error:
        remedy = "Check that the file is complete, or copy it again"
        reason = str(error).rstrip(".")
        raise FedpdError(f"{file} cannot be read as {form.title}: {reason}. {remedy}.") from None


def _concatenated(path: Path, tables: list[Any]) -> Any:
    """Return all tables as one."""
    import pyarrow as pa

    try:
        table = pa.concat_tables(tables, promote_options="permissive")  # integers and decimals become decimals
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        remedy = "Give each column numbers in all files, or texts in all"
        raise FedpdError(f"{path}: its files have columns of different types: {error}. {remedy}.") from None
    if not len(table):
        raise FedpdError(f"{path} has no rows. Check that it is the right file.")
    return table


def _split(table: Any, split: str, path: Path) -> dict[str, Any]:
    """Return the rows of "train" and of "test"."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = table[split].type
    column = table[split].cast(kind.value_type) if isinstance(kind, pa.DictionaryType) else table[split]
    others = set(pc.unique(column).to_pylist()) - {"train", "test"}
    if others:
        rule = 'must hold "train" and "test" only'
        refuse(f"{path}: column {split!r}", sorted(map(str, others)), rule, "Drop those rows, or leave split= out")
    return {part: table.filter(pc.equal(column, part)) for part in ("train", "test")}
