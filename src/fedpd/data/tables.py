"""Load tables with a column of clients' names, for Parquet and CSV."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.extras import extra
from fedpd.data.arrow import Shape, as_tuple, by_client, check_columns, read_features, reshape
from fedpd.data.federated import Federated, Samples, assemble
from fedpd.data.labels import Classes

Features = str | Sequence[str] | None


class Format(NamedTuple):
    """A kind of file that holds a table.

    Attributes:
        title: The name of the format, for messages.
        suffix: The suffix of its files.
        names: Returns the names of a file's columns.
        read: Reads the named columns of a file as an Arrow table. Clients and splits are texts or become texts.
    """

    title: str
    suffix: str
    names: Callable[[Path], list[str]]
    read: Callable[[Path, list[str]], Any]


class Columns(NamedTuple):
    """The columns of a table by their meaning; `split` is None if all rows are for training."""

    client: str
    features: Features
    label: str
    split: str | None


def load_table(
    path: Path,
    form: Format,
    columns: Columns,
    *,
    shape: Shape | None,
    classes: Classes,
    label_names: Sequence[str] | None,
    dtype: DTypeLike | None,
    name: str | None,
) -> Federated:
    """Return federated data from a file, or from a folder of files in the order of their names."""
    files = _files(path, form)
    columns = columns._replace(features=_features(path, form, columns))
    wanted = [columns.client, *as_tuple(columns.features or ()), columns.label]
    wanted += [] if columns.split is None else [columns.split]
    table = _concatenated(path, [_read(file, form, wanted) for file in files])
    parts = {"train": table} if columns.split is None else _split(table, columns.split, path)

    def samples(rows: Any) -> dict[str, Samples]:
        x = reshape(read_features(rows, columns.features or (), str(path)), shape, str(path))
        return by_client(rows, columns.client, columns.label, x, str(path))

    def place(agent: str, part: str) -> str:
        return f"{path}: {part} data of agent {agent!r}"

    found = {part: samples(rows) for part, rows in parts.items() if len(rows)}
    return assemble(
        found.get("train", {}),
        found.get("test", {}),
        place,
        classes=classes,
        label_names=label_names,
        dtype=dtype,
        name=name or path.stem,
    )


def _files(path: Path, form: Format) -> list[Path]:
    """Return the file, or the files of a folder in the order of their names."""
    if not path.exists():
        raise FedpdError(f"{path}: there is no such file or folder. Give a {form.title} file, or the folder it is in.")
    files = sorted(path.rglob(f"*{form.suffix}")) if path.is_dir() else [path]
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
        return columns.features
    others = {columns.client, columns.label, columns.split}
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
        table = pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        remedy = "Give each column the same type in all files"
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
