"""Federated data whose features stay in their files: fedpd keeps who has which rows, and the labels.

An index takes 12 bytes per sample. The features of an agent are read when a round needs them. fedpd refuses a file that
changed after it was indexed.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError
from fedpd.core import Spec
from fedpd.core.rows import first_rows, row_numbers
from fedpd.data.federated import Federated, Options, Samples, checked_dtype, common_dtype
from fedpd.data.labels import encode
from fedpd.data.lazy import Lazy
from fedpd.data.many import cast

MANY_CLIENTS = 10_000  # beyond, federated data in memory are ragged rows, without one Python object per client

Read = Callable[[np.ndarray], np.ndarray]  # (numbers of rows, ascending) -> their features
WHOLE = 2**30  # bytes; a larger file is hashed in parts. A whole one takes about 0.6 s per GB
PARTS = 64  # parts of a larger file, evenly spaced from its first byte to its last
PART = 2**20  # bytes of a part


class IndexedPart(NamedTuple):
    """The training or the test samples of a source."""

    clients: Any  # an Arrow array of texts, the client of each row
    labels: np.ndarray  # (M, ...) the label of each row
    read: Read  # reads the features of some rows


@dataclass(frozen=True)
class IndexedRows:
    """Loads the samples of agents, whose features are read from a source."""

    read: Read  # reads the features of some rows
    rows: np.ndarray  # (M,) the numbers of the rows, agent after agent
    labels: np.ndarray  # (M, ...) agent after agent
    sizes: np.ndarray  # (N,) the numbers of samples

    def __call__(self, agents: np.ndarray) -> Samples:
        places = row_numbers(first_rows(self.sizes)[agents], self.sizes[agents])
        wanted, again = np.unique(self.rows[places], return_inverse=True)
        features = self.read(wanted)
        if not np.array_equal(again, np.arange(len(wanted))):
            features = features[again]
        return {"x": features, "y": self.labels[places]}


def index_by_client(parts: Mapping[str, IndexedPart], where: str, options: Options) -> Federated:
    """Return lazy federated data from parts in which each row has a client; `where` names the source in errors."""
    import pyarrow as pa

    def place(agent: str, part: str) -> str:
        return f"{where}: {part} data"

    everyone = pa.concat_arrays([part.clients for part in parts.values()]).dictionary_encode()
    names, codes = np.array(everyone.dictionary.to_pylist(), np.str_), everyone.indices.to_numpy()
    given = {(key, ""): part.labels for key, part in parts.items()}
    labels, values, called = encode(given, place, options.classes, options.label_names)
    first = 0
    lazy = {}
    samples = {key: part.read(np.zeros(1, np.int64))[:0] for key, part in parts.items()}
    wanted = checked_dtype(options.dtype) or common_dtype(x.dtype for x in samples.values())
    for key, part in parts.items():
        own = codes[first : first + len(part.labels)]
        first += len(part.labels)
        rows = np.argsort(own, kind="stable")
        sizes = np.bincount(own, minlength=len(names)).astype(np.int32)
        load = IndexedRows(part.read, rows, labels[key, ""][rows], sizes)
        held = Lazy(load, sizes, {"x": samples[key], "y": labels[key, ""][:0]})
        lazy[key] = held.map(partial(cast, wanted, f"{where}: {key} data"))
    return Federated(names, lazy["train"], lazy.get("test") or nothing(lazy["train"]), values, called, options.name)


def has_many_clients(clients: Sequence[Any]) -> bool:
    """Return whether Arrow arrays of clients name so many that their samples are kept as rows, not as a list."""
    return sum(len(one.dictionary_encode().dictionary) for one in clients) > MANY_CLIENTS


def nothing(like: Lazy) -> Lazy:
    """Return lazy data of the same agents without any samples."""
    return Lazy(partial(_nothing, like.sample), np.zeros(len(like), np.int32), like.sample)


def _nothing(sample: Samples, agents: np.ndarray) -> Samples:
    return sample


def check_train(parts: Mapping[str, Any], where: str) -> None:
    """Refuse a source without training samples."""
    if "train" not in parts:
        raise FedpdError(f"{where} has no training samples. Check the split, or read it without lazy=True.")


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when fedpd noted which client each of its rows belongs to."""

    path: Path  # the file
    size: int  # its bytes
    time: int  # when it was last changed, in nanoseconds
    content: str  # the hash of its content

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
