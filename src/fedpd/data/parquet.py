"""Parquet files with a column that names each row's client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import check_room
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options
from fedpd.data.labels import Classes, Label
from fedpd.data.tables import Columns, Features, Format, Shape, load_table


@explained
def parquet(
    path: str | Path,
    *,
    client: str,
    features: Features = None,
    label: Label,
    split: str | None = None,
    shape: Shape | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    lazy: bool = False,
) -> Federated:
    """Return federated data from a Parquet file, or from a folder of them in the order of their names.

    `classes`, `label_names` and `dtype` are as for `from_arrays`.

    Args:
        path: The file or folder.
        client: The column with the client's name. Agents are in the order in which they first appear.
        features: A column of numbers, of lists of one length (also nested) or of bytes (uint8, one number per byte); or
            several columns of numbers, which become x (n, k). None: all columns that are nothing else.
        label: A column of whole numbers or of texts; with `classes=False` a column of numbers, or several columns.
        split: A column of "train" and "test"; None: all rows are for training.
        shape: The shape of a sample, for example (28, 28) for 784 bytes; None: as stored.
        name: The name of the data in tables and figures; None: the name of the file or folder.
        lazy: Whether the features stay in the files and are read when a round needs them, for data larger than memory.
            This is fast if the rows of a client are together and row groups are small, because a read takes whole row
            groups.
    """
    options = Options(classes, label_names, dtype, name or Path(path).stem)
    columns = Columns(client, features, label, split)
    return load_table(Path(path), table_format(client, split), columns, options, shape=shape, lazy=lazy)


def table_format(client: str | None, split: str | None) -> Format:
    """Return the format of Parquet files, whose columns have types."""

    def names(file: Path) -> list[str]:
        import pyarrow.parquet as pq

        return pq.read_schema(file).names

    def read(file: Path, columns: list[str]) -> Any:
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as opened:
            rows = opened.metadata.num_rows  # a small file may hold billions of equal rows
            check_room(f"{file}: {rows:,} rows of {len(columns)} columns", rows * len(columns), "Divide the file")
            return opened.read(columns=columns)

    return Format("Parquet", ".parquet", names, read, read_rows)


def read_rows(file: Path, columns: list[str], rows: np.ndarray) -> Any:
    """Return some rows of a Parquet file, in ascending order, by reading only the row groups that hold them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        about = opened.metadata
        ends = np.cumsum([about.row_group(i).num_rows for i in range(about.num_row_groups)])
        groups = np.searchsorted(ends, rows, side="right")
        parts = [opened.schema_arrow.empty_table().select(columns)]
        for group in np.unique(groups):
            first = ends[group] - about.row_group(int(group)).num_rows
            parts.append(opened.read_row_group(int(group), columns).select(columns).take(rows[groups == group] - first))
        return pa.concat_tables(parts)
