"""Files that stay the source of lazy data. fedpd refuses a file that changed after it was indexed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpd.base.checks import FedpdError
from fedpd.core import Spec

WHOLE = 2**30  # bytes; a larger file is hashed in parts. A whole one takes about 0.6 s per GB
PARTS = 64  # parts of a larger file, evenly spaced from its first byte to its last
PART = 2**20  # bytes of a part


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when fedpd noted which client each of its rows belongs to.

    Attributes:
        path: The file.
        size: Its bytes.
        time: When it was last changed, in nanoseconds.
        content: The hash of its content.
    """

    path: Path
    size: int
    time: int
    content: str

    @property
    def spec(self) -> Spec:
        """The identity of the file: its content, wherever it lies."""
        return Spec.of("file", size=self.size, content=self.content)

    @contextmanager
    def unchanged(self) -> Iterator[Path]:
        """Give the path to read from, and refuse a file that changed before or while it was read.

        Raises:
            FedpdError: The file changed, so its rows may belong to other clients.
        """
        self._check()
        yield self.path
        self._check()

    def _check(self) -> None:
        try:
            found = self.path.stat()
        except OSError as error:
            raise FedpdError(
                f"{self.path} cannot be read any more: {error.strerror}. Put it back, and build the problem again."
            ) from None
        if (found.st_size, found.st_mtime_ns) == (self.size, self.time):
            return
        same = found.st_size == self.size <= WHOLE and _hash(self.path, self.size) == self.content
        if not same:
            raise FedpdError(
                f"{self.path} changed after fedpd read which rows belong to which client, so clients would get the "
                "rows of others. Read the data and build the problem again."
            )


def source_file(path: Path) -> SourceFile:
    """Return a file as it is now."""
    about = path.stat()
    return SourceFile(path, about.st_size, about.st_mtime_ns, _hash(path, about.st_size))


def _hash(path: Path, size: int) -> str:
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found = hashlib.sha256()
        for i in range(PARTS):
            file.seek(i * (size - PART) // (PARTS - 1))
            found.update(file.read(PART))
        return found.hexdigest()
