"""Arrow tables: read columns as NumPy arrays, and group rows by client.

Only functions that are given an Arrow table import pyarrow, which takes a third of a second.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpd.base.checks import FedpdError, nearest, refuse
from fedpd.data.federated import Samples, common_dtype
from fedpd.data.labels import Label

Shape = tuple[int, ...]


def check_columns(held: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse a column that the source does not hold."""
    for column in wanted:
        if column not in held:
            refuse(f"{where}: column", column, "there is no such column", nearest(column, held))
        if list(held).count(column) > 1:
            refuse(f"{where}: column", column, "is the name of several columns", "Rename all but one of them")


def check_named_once(name: str, columns: str | Sequence[str]) -> None:
    """Refuse a list of columns that names one twice: it would count twice."""
    repeated = next((column for column, times in Counter(as_tuple(columns)).items() if times > 1), None)
    if repeated is not None:
        refuse(name, list(columns), f"names the column {repeated!r} twice", "Name each column once")


def as_tuple(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return one column or several as a tuple of names."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def read_features(table: Any, columns: str | Sequence[str], where: str) -> np.ndarray:
    """Return the features: (n, ...) of one column, (n, k) of a sequence of k columns of numbers."""
    if isinstance(columns, str):
        return to_numpy(table[columns], f"{where}: column {columns!r}")
    if not columns:
        refuse("features", columns, "must name at least one column", "Give the columns that the model sees")
    check_named_once("features", columns)
    arrays = [to_numpy(table[column], f"{where}: column {column!r}") for column in columns]
    for column, array in zip(columns, arrays, strict=True):
        if array.dtype.kind not in "buif":
            remedy = "Turn it into numbers, or name the columns of features without it"
            refuse(f"{where}: type of column {column!r}", "text", "must be numbers", remedy)
        if array.ndim > 1:
            rule = "must be one number per row to stand beside other columns"
            refuse(f"{where}: shape of column {column!r}", array.shape, rule, "Give a column of lists alone")
    whole = all(array.dtype.kind != "f" for array in arrays)
    # Integers keep their width here. A later check, with the data of all agents, decides which fit into int32.
    dtype = np.result_type(*arrays) if whole else common_dtype(array.dtype for array in arrays)
    return np.stack(arrays, axis=1, dtype=dtype, casting="same_kind" if whole else "unsafe")


def reshape(x: np.ndarray, shape: Shape | None, where: str) -> np.ndarray:
    """Return x, (n, ...), with samples of the given shape."""
    if shape is None:
        return x
    if any(axis < 1 for axis in shape) or math.prod(shape) != math.prod(x.shape[1:]):
        refuse("shape", shape, f"must hold the {math.prod(x.shape[1:])} numbers of a sample of {where}", "Correct it")
    return x.reshape(len(x), *shape)


def by_client(table: Any, client: str, y: np.ndarray, x: np.ndarray, where: str) -> dict[str, Samples]:
    """Return {client: its rows of x and of the labels y}, in the order in which the clients first appear."""
    names = client_names(table, client, where).dictionary_encode()
    codes = names.indices.to_numpy()
    if (np.diff(codes) < 0).any():  # the clients' rows are not together
        order = np.argsort(codes, kind="stable")
        x, y, codes = x[order], y[order], codes[order]
    ends = np.cumsum(np.bincount(codes, minlength=len(names.dictionary)))
    starts = np.concatenate([[0], ends[:-1]])
    return {
        name: {"x": x[start:end], "y": y[start:end]}
        for name, start, end in zip(names.dictionary.to_pylist(), starts, ends, strict=True)
    }


def read_labels(table: Any, label: Label, where: str, classes: Any) -> np.ndarray:
    """Return the labels of an Arrow table: (n, ...) of one column, (n, k) of k columns of targets."""
    if classes is not False:
        if not isinstance(label, str):
            refuse(
                "label", list(label), "must be one column", "Several columns are targets: give classes=False as well"
            )
        return to_numpy(table[label], f"{where}: column {label!r}")
    if isinstance(label, str):
        return to_numpy(_filled(table[label]), f"{where}: column {label!r}")
    check_named_once("label", label)
    columns = [to_numpy(_filled(table[one]), f"{where}: column {one!r}") for one in label]
    for one, column in zip(label, columns, strict=True):
        if column.ndim > 1 or column.dtype.kind not in "buif":
            rule = "must be one number per row to stand beside other columns"
            refuse(f"{where}: column", one, rule, "Give a column of lists alone")
    return np.stack(columns, axis=1)


def _filled(column: Any) -> Any:
    """Return a column of numbers with NaN in place of null; other columns stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    plain = pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return pc.fill_null(column.cast(pa.float64()), np.nan) if column.null_count and plain else column


def client_names(table: Any, client: str, where: str) -> Any:
    """Return the client of each row, as an Arrow array of texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = _plain(table[client], f"{where}: column {client!r}")
    if pa.types.is_nested(plain.type) or pa.types.is_binary(plain.type):
        remedy = "Give a column of texts or numbers"
        refuse(f"{where}: type of column {client!r}", str(plain.type), "cannot name clients", remedy)
    if pa.types.is_floating(plain.type) and pc.any(pc.is_nan(plain)).as_py():
        row = pc.index(pc.is_nan(plain), True).as_py()
        raise FedpdError(f"{where}: column {client!r}: row {row} is NaN and names no client. Fill or drop such rows.")
    return plain.cast(pa.string())


def to_numpy(column: Any, what: str) -> np.ndarray:
    """Return a column as an array (n, ...).

    Numbers and texts stay as they are, lists of one length become an axis, bytes of one length become uint8.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = _plain(column, what)
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        held = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.zeros(0, np.uint8)
        start = array.offset * kind.byte_width
        return held[start : start + len(array) * kind.byte_width].reshape(len(array), kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        width = _one_length(pc.binary_length(array), what)
        return to_numpy(array.cast(pa.binary()).cast(pa.binary(width)), what)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        length = _one_length(pc.list_value_length(array), what)
        values = array.flatten()
        if values.null_count:
            raise FedpdError(f"{what}: some of its lists hold null. Fill or drop such rows.")
        inner = to_numpy(values, what)
        return inner.reshape(len(array), length, *inner.shape[1:])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist(), np.str_)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        refuse(f"{what}: type", str(kind), "must be numbers, lists, bytes or texts", "Read encoded images with hub()")
    return array.to_numpy(zero_copy_only=False)


def _plain(column: Any, what: str) -> Any:
    """Return the column as one array without nulls, dictionaries and extensions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise FedpdError(f"{what}: row {row} is null. Fill or drop such rows.")
    if isinstance(column.type, pa.DictionaryType):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _one_length(lengths: Any, what: str) -> int:
    """Return the length that all rows share."""
    import pyarrow.compute as pc

    extremes = pc.min_max(lengths).as_py()
    least, most = extremes["min"] or 0, extremes["max"] or 0
    if least != most:
        refuse(f"{what}: lengths of its rows", (least, most), "must be equal", "Bring all samples to one shape")
    return most
