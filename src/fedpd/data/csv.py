"""CSV files with a column that names each row's client."""

import codecs
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options
from fedpd.data.labels import Classes, Label
from fedpd.data.tables import Columns, Features, Format, load_table

MARKS = {  # the first bytes of files that name their encoding; the longest first, because one begins like another
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
BLOCK = 2**20  # bytes that are decoded at a time
WINDOWS_ONLY = frozenset(range(0x80, 0xA0))  # letters and quotes in Windows' cp1252, and control characters in Latin-1


def checked_encoding(encoding: str) -> str:
    """Return the usual name of an encoding, such as "utf-8"; refuse a name that Python does not know."""
    try:
        "a".encode(encoding)  # refuses encodings of bytes, such as "base64"
        return codecs.lookup(encoding).name
    except (LookupError, TypeError, ValueError):
        refuse("encoding", encoding, "there is no such encoding of texts", 'Give e.g. "utf-8", "latin-1" or "utf-16"')


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
    known = checked_encoding(encoding)

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
