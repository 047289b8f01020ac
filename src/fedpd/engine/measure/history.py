"""Histories: mappings from column names to NumPy arrays, with one value per measured round.

Row 0 is the start. `fedpd.engine.measure.columns` describes the columns. On disk, a history is Parquet.
"""

import hashlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpd.base.atomic import read_file, replace_file
from fedpd.engine.measure.columns import COLUMNS, column_of
from fedpd.engine.measure.costs import Costs

History = dict[str, np.ndarray]
Totals = dict[str, int]  # the costs so far, {} at the start
CHECKSUM = b"fedpd-sha256:"  # before the checksum of all bytes of the file, with NO_SUM in its own place
NO_SUM = b"0" * 64
MAGIC = b"PAR1"  # the first and the last bytes of a Parquet file


def start_row(**measured: float) -> History:
    """Return a history with row 0 only: the start, with these measured values and no costs."""
    values = dict.fromkeys(COLUMNS, 0) | measured
    return {name: np.array([value], column_of(name).dtype) for name, value in values.items()}


def extend(
    history: History, totals: Totals, costs: Costs, rounds: Mapping[str, np.ndarray], keep: np.ndarray
) -> tuple[History, Totals]:
    """Return the history and the totals after more rounds. This function alone counts costs.

    Args:
        rounds: The columns of the new rounds: communicated, senders and receivers (by exchange), updates and samples
            (by agent), and the metrics.
        keep: Which of the new rounds become rows of the history. The costs of all of them count.
    """
    senders, receivers = rounds["senders"].astype(np.int64), rounds["receivers"].astype(np.int64)
    grown = {
        "round": np.ones(len(senders), np.int64),
        "communications": (receivers > 0).sum(axis=1),
        "local_updates": rounds["updates"].max(axis=1),
        "samples": rounds["samples"].sum(axis=1, dtype=np.int64),
        "bytes_up": senders @ np.array(costs.bytes_up, np.int64),
        "bytes_down": receivers @ np.array(costs.bytes_down, np.int64),
    }
    new = {name: totals.get(name, 0) + np.cumsum(column, dtype=np.int64) for name, column in grown.items()}
    totals = {name: int(column[-1]) for name, column in new.items()}
    if costs.privacy is not None:  # a private method has one exchange per round
        rounds = {**rounds, "epsilon": costs.privacy.epsilons(new["communications"])}
    if costs.examples is not None:
        rounds = {**rounds, "epsilon_examples": costs.examples.epsilons(new["round"])}
    new |= {name: rounds[name] for name in history if name not in grown}
    rows = {name: np.concatenate([history[name], new[name][keep].astype(column_of(name).dtype)]) for name in history}
    return rows, totals


def mean_and_spread(histories: Sequence[History]) -> tuple[History, History]:
    """Return the mean and the standard deviation of each column, for the rows that all histories have."""
    rows = min(len(history["round"]) for history in histories)
    stacks = {name: np.stack([history[name][:rows] for history in histories]) for name in histories[0]}
    with np.errstate(over="ignore", invalid="ignore"):  # a run may have diverged
        mean = {name: stack.mean(axis=0) for name, stack in stacks.items()}
        return mean, {name: stack.std(axis=0) for name, stack in stacks.items()}


def write_parquet(path: Path, histories: Mapping[tuple[str, int], History]) -> None:
    """Write all histories of an experiment, by (label, seed), to one file."""
    from arro3.core import Array, DataType, Table  # only writing a file needs it
    from arro3.io import write_parquet as write

    rows = [len(history["round"]) for history in histories.values()]
    labels = [label for (label, _), count in zip(histories, rows, strict=True) for _ in range(count)]
    seeds = np.repeat(np.array([seed for _, seed in histories], np.int64), rows)
    columns: dict[str, Any] = {"label": Array(labels, type=DataType.utf8()), "seed": Array.from_numpy(seeds)}
    for name in dict.fromkeys(name for history in histories.values() for name in history):
        columns[name] = Array.from_numpy(np.concatenate([history[name] for history in histories.values()]))
    whole = BytesIO()
    noted = {"checksum": (CHECKSUM + NO_SUM).decode()}
    write(Table.from_pydict(columns), whole, compression="snappy", key_value_metadata=noted)
    content = whole.getvalue()
    with replace_file(path) as file:
        file.write(content.replace(CHECKSUM + NO_SUM, CHECKSUM + _sum(content)))


def read_parquet(path: Path) -> dict[tuple[str, int], History]:
    """Return all histories of an experiment by (label, seed), each value as it was written, bit for bit.

    Raises:
        OSError: The file is not Parquet, or a part of it is missing.
    """
    table = _read_table(path)
    missing = [name for name in ("label", "seed", "round") if name not in table.column_names]
    if missing:
        raise OSError(f"it has no column {missing[0]!r}")
    labels, seeds = table["label"].to_pylist(), table["seed"].to_pylist()
    columns = {name: table[name].to_numpy() for name in table.column_names if name not in ("label", "seed")}
    rows: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(zip(labels, seeds, strict=True)):
        rows.setdefault(key, []).append(row)
    return {key: {name: column[chosen] for name, column in columns.items()} for key, chosen in rows.items()}


def _sum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _is_intact(content: bytes) -> bool:
    """Return whether a file has the checksum that it was written with. Files of other programs have none."""
    before, mark, after = content.partition(CHECKSUM)
    given, rest = after[: len(NO_SUM)], after[len(NO_SUM) :]
    return not mark or given == _sum(before + mark + NO_SUM + rest)


def _read_table(path: Path) -> Any:
    """Return an Arrow table; raise an OSError if the file cannot be read for any reason."""
    from arro3.io import read_parquet as read

    content = read_file(path)
    if len(content) < 12 or not content.startswith(MAGIC) or not content.endswith(MAGIC):
        raise OSError("it is not Parquet, or its end is missing")
    if not _is_intact(content):  # the reader may end the process at a damaged file
        raise OSError("its checksum does not match: it is damaged or was changed")
    try:
        return read(path).read_all()
    except Exception as error:  # the readers of Arrow raise errors of many types
        raise OSError(str(error)) from None
    except BaseException as error:  # arro3 panics at a damaged footer, and a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise OSError("it is damaged") from None


def first_row(values: np.ndarray, target: float, better: Literal["less", "more"] = "less") -> int | None:
    """Return the first row whose value is at least as good as the target, or None if there is none.

    Args:
        values: A column of a history. Values that are not finite never count.

    Examples:
        >>> import numpy as np
        >>> from fedpd.engine.measure.history import first_row
        >>> first_row(np.array([9.0, np.nan, 0.5, 0.1]), 1.0)
        2
    """
    reached = values >= target if better == "more" else values <= target
    rows = np.flatnonzero(np.isfinite(values) & reached)
    return int(rows[0]) if len(rows) else None
