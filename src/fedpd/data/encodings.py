"""The encodings of text files: check the name of one, and find out why a file does not have it."""

import codecs
from pathlib import Path

from fedpd.base.checks import FedpdError, refuse

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
