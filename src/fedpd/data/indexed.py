"""Federated data whose features stay in their files: fedpd keeps who has which rows, and the labels.

An index takes 12 bytes per sample. The features of an agent are read when a round needs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError
from fedpd.core.rows import first_rows, row_numbers
from fedpd.data.federated import Federated, Samples, checked_dtype, common_dtype
from fedpd.data.labels import Classes, encode
from fedpd.data.lazy import Lazy
from fedpd.data.many import cast

MANY_CLIENTS = 10_000  # beyond, federated data in memory are ragged rows, without one Python object per client

Read = Callable[[np.ndarray], np.ndarray]  # (numbers of rows, ascending) -> their features


class Part(NamedTuple):
    """The training or the test samples of a source.

    Attributes:
        clients: An Arrow array of texts, the client of each row.
        labels: (M, ...) the label of each row.
        read: Reads the features of some rows.
    """

    clients: Any
    labels: np.ndarray
    read: Read


@dataclass(frozen=True)
class IndexedRows:
    """Loads the samples of agents, whose features are read from a source.

    Attributes:
        read: Reads the features of some rows.
        rows: (M,) the numbers of the rows, agent after agent.
        labels: (M, ...) agent after agent.
        sizes: (N,) the numbers of samples.
    """

    read: Read
    rows: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray

    def __call__(self, agents: np.ndarray) -> Samples:
        places = row_numbers(first_rows(self.sizes)[agents], self.sizes[agents])
        wanted, again = np.unique(self.rows[places], return_inverse=True)
        features = self.read(wanted)
        if not np.array_equal(again, np.arange(len(wanted))):
            features = features[again]
        return {"x": features, "y": self.labels[places]}


def index_by_client(
    parts: Mapping[str, Part],
    where: str,
    *,
    classes: Classes,
    label_names: Sequence[str] | None,
    dtype: DTypeLike | None,
    name: str,
) -> Federated:
    """Return lazy federated data from parts in which each row has a client; `where` names the source in errors."""
    import pyarrow as pa

    def place(agent: str, part: str) -> str:
        return f"{where}: {part} data"

    everyone = pa.concat_arrays([part.clients for part in parts.values()]).dictionary_encode()
    names, codes = np.array(everyone.dictionary.to_pylist(), np.str_), everyone.indices.to_numpy()
    labels, values, called = encode(
        {(key, ""): part.labels for key, part in parts.items()}, place, classes, label_names
    )
    first = 0
    lazy = {}
    samples = {key: part.read(np.zeros(1, np.int64))[:0] for key, part in parts.items()}
    wanted = checked_dtype(dtype) or common_dtype(x.dtype for x in samples.values())
    for key, part in parts.items():
        own = codes[first : first + len(part.labels)]
        first += len(part.labels)
        rows = np.argsort(own, kind="stable")
        sizes = np.bincount(own, minlength=len(names)).astype(np.int32)
        load = IndexedRows(part.read, rows, labels[key, ""][rows], sizes)
        held = Lazy(load, sizes, {"x": samples[key], "y": labels[key, ""][:0]})
        lazy[key] = held.map(partial(cast, wanted, f"{where}: {key} data"))
    return Federated(names, lazy["train"], lazy.get("test") or nothing(lazy["train"]), values, called, name)


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
