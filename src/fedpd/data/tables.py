"""Load tables with a column of clients' names: Arrow's columns as NumPy arrays, files by format, and CSV files.

Only functions that are given a table import pyarrow, which takes a third of a second.
"""

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, nearest, refuse
from fedpd.base.errors import extra
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options, Samples, assemble, common_dtype, place_in
from fedpd.data.indexed import IndexedPart, SourceFile, check_train, has_many_clients, index_by_client, source_file
from fedpd.data.labels import Classes, Label

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
    with extra("tables", f"Reading {form.title}"):
        import pyarrow.compute as pc

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
            numbers = np.arange(len(table))
            if columns.split is not None:
                numbers = np.flatnonzero(pc.equal(table[columns.split].cast("string"), part).to_numpy())
            read = TableRows(sources, first, numbers, form, columns.features, shape)
            labels = read_labels(rows, columns.label, str(path), classes)
            found[part] = IndexedPart(client_names(rows, columns.client, str(path)), labels, read)
    check_train(found, str(path))
    return found


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


MARKS = {  # the first bytes of files that name their encoding; the longest first, because one begins like another
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
BLOCK = 2**20  # bytes that are decoded at a time
WINDOWS_ONLY = frozenset(range(0x80, 0xA0))  # letters and quotes in Windows' cp1252, and control characters in Latin-1


def check_encoding(file: Path, encoding: str) -> None:
    """Refuse a file that is not text in this encoding; the message names the encoding that it probably has."""
    probable = _probable(file, encoding)
    if probable is not None:
        remedy = f"Give encoding={probable!r}, or save the file as UTF-8"
        raise FedpdError(f"{file} is not text in {encoding}, but probably in {probable}. {remedy}.")


def _probable(file: Path, encoding: str) -> str | None:
    """Return the encoding that a file probably has; None: the given one."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with file.open("rb") as opened:
        block = opened.read(BLOCK)
        marked = next((name for mark, name in MARKS.items() if block.startswith(mark)), None)
        if marked is not None:
            return None if encoding.startswith(marked) else marked
        if b"\0" in block:  # ASCII characters in UTF-16 have a zero byte each
            wide = "utf-16-le" if block[1:2] == b"\0" else "utf-16-be"
            return None if encoding == wide else wide
        while block:
            try:
                decoder.decode(block)
            except UnicodeError:
                return _one_byte(block)
            block = opened.read(BLOCK)
    return None


def _one_byte(block: bytes) -> str:
    """Return the probable encoding of a text whose characters have one byte each, or UTF-8 if it is that."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block)
    except UnicodeError:
        return "cp1252" if WINDOWS_ONLY & set(block) else "latin-1"
    return "utf-8"


@explained
def csv(
    path: str | Path,
    *,
    client: str,
    features: Features = None,
    label: Label,
    split: str | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return federated data from a CSV file with a line of column names, or from a folder of such files.

    `classes` and `label_names` are as for `from_arrays`.

    Args:
        path: The file or folder.
        client: The column with the client's name. Agents are in the order in which they first appear. Names are texts:
            "01" and "1" are two clients.
        features: The columns of numbers that become x (n, k); None: all columns that are nothing else.
        label: A column of whole numbers or of texts; with `classes=False` a column of numbers, or several columns.
        split: A column of "train" and "test"; None: all rows are for training.
        delimiter: The character between two cells, for example ";".
        encoding: The encoding of the text, for example "latin-1" or "utf-16".
        dtype: The dtype of the features; None: float64, or int32 if all are whole numbers.
        name: The name of the data in tables and figures; None: the name of the file or folder.

    Raises:
        FedpdError: A cell of a column that is read is empty or "NA", a feature is not a number, a column is missing, or
            the file has another encoding.
    """
    chosen = [features] if isinstance(features, str) else features  # x is (n, k) for one column too
    options = Options(classes, label_names, dtype, name or Path(path).stem)
    form = table_format(client, split, delimiter, encoding)
    return load_table(Path(path), form, Columns(client, chosen, label, split), options)


def table_format(client: str | None, split: str | None, delimiter: str = ",", encoding: str = "utf-8") -> Format:
    """Return the format of CSV files, in which the columns of clients and splits are texts."""
    if not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()):
        refuse("delimiter", delimiter, "must be one ASCII character", 'Give e.g. ";"')
    try:
        "a".encode(encoding)  # refuses encodings of bytes, such as "base64"
        known = codecs.lookup(encoding).name  # the usual name, such as "utf-8"
    except (LookupError, TypeError, ValueError):
        refuse("encoding", encoding, "there is no such encoding of texts", 'Give e.g. "utf-8", "latin-1" or "utf-16"')

    def options() -> dict[str, Any]:
        from pyarrow import csv

        read = csv.ReadOptions(encoding="utf8" if known == "utf-8" else known)  # only "utf8" is not converted first
        return {"read_options": read, "parse_options": csv.ParseOptions(delimiter=delimiter)}

    def names(file: Path) -> list[str]:
        from pyarrow import csv

        with _explain_encoding(file, known):
            found = csv.open_csv(file, **options()).schema.names
        if any("\0" in name for name in found):
            check_encoding(file, known)
        return found

    def read(file: Path, columns: list[str]) -> Any:
        from pyarrow import csv, string, types

        texts = {column: string() for column in (client, split) if column is not None}
        convert = csv.ConvertOptions(include_columns=columns, column_types=texts, strings_can_be_null=True)
        with _explain_encoding(file, known):
            table = csv.read_csv(file, convert_options=convert, **options())
        if any(types.is_binary(kind) for kind in table.schema.types):  # Arrow's type of texts that are not UTF-8
            check_encoding(file, known)
        return table

    return Format("CSV", ".csv", names, read)


@contextmanager
def _explain_encoding(file: Path, encoding: str) -> Iterator[None]:
    """Name the encoding of a file that cannot be read, if it is not the given one."""
    from pyarrow import ArrowInvalid

    try:
        yield
    except (ArrowInvalid, UnicodeError):
        check_encoding(file, encoding)
        raise
