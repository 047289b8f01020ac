"""Parquet files with a column that names each row's client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.extras import extra
from fedpd.data.arrow import Shape, as_tuple, by_client, check_columns, read_features, reshape
from fedpd.data.federated import Federated, Samples, assemble
from fedpd.data.labels import Classes


def parquet(
    path: str | Path,
    *,
    client: str,
    features: str | Sequence[str],
    label: str,
    split: str | None = None,
    shape: Shape | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return federated data from a Parquet file, or from a folder of them in the order of their names.

    Args:
        path: The file or folder.
        client: The column with the client's name. Agents are in the order in which they first appear.
        features: A column of numbers, of lists of one length (also nested) or of bytes (uint8, one number per byte); or
            several columns of numbers, which become x (n, k).
        label: A column of whole numbers or of texts.
        split: A column of "train" and "test"; None: all rows are for training.
        shape: The shape of a sample, for example (28, 28) for 784 bytes; None: as stored.
        classes: K for the labels 0..K-1, or the labels; None: as `fedpd.data.labels` says.
        label_names: The names of the classes, in their order.
        dtype: The dtype of the features; None: as stored.
        name: The name of the data in tables and figures; None: the name of the file or folder.
    """
    with extra("parquet", "data.parquet"):
        import pyarrow as _  # noqa: F401
    path = Path(path)
    columns = [client, *as_tuple(features), label, *([] if split is None else [split])]
    table = _table(path, columns)
    parts = {"train": table} if split is None else _split(table, split, path)

    def samples(rows: Any) -> dict[str, Samples]:
        x = reshape(read_features(rows, features, str(path)), shape, str(path))
        return by_client(rows, client, label, x, str(path))

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


def _table(path: Path, columns: list[str]) -> Any:
    """Return the columns of all files as one table; no other columns are read."""
    import pyarrow as pa

    if not path.exists():
        raise FedpdError(f"{path}: there is no such file or folder. Give a Parquet file, or the folder it is in.")
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FedpdError(f"{path}: there is no .parquet in this folder. Give the folder with the files.")
    try:
        table = pa.concat_tables([_columns(file, columns) for file in files])
    except pa.ArrowInvalid as error:
        raise FedpdError(f"{path}: its files have columns of different types: {error}. Make them alike.") from None
    if not len(table):
        raise FedpdError(f"{path} has no rows. Is it the right file?")
    return table


def _columns(file: Path, columns: list[str]) -> Any:
    """Return the columns of one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            check_columns(opened.schema_arrow.names, columns, str(file))
            return opened.read(columns=list(dict.fromkeys(columns)))
    except (pa.ArrowException, OSError) as error:
        raise FedpdError(f"{file} cannot be read as Parquet: {error}. Is it complete? Copy or make it again.") from None


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
