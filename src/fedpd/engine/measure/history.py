"""Histories: what a run measured and spent, when it diverged, and which targets end it.

A history maps the names of columns to NumPy arrays, with one value per measured round. Row 0 is the start.
`fedpd.engine.measure.columns` describes the columns. On disk, a history is Parquet.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedpd import theory
from fedpd.base.atomic import read_file, replace_file
from fedpd.base.checks import as_number, nearest, refuse
from fedpd.base.errors import FedpdError
from fedpd.base.spec import Spec, Thing
from fedpd.core import Method, Problem, count_samples
from fedpd.engine.loop import Rows
from fedpd.engine.measure.columns import COLUMNS, KNOWN, Column, column_of
from fedpd.engine.measure.costs import Costs
from fedpd.theory.curvature import known_smoothness

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


LARGE_PROBLEM = 2e8  # parameters times samples; for larger problems, the message about a divergence has no L
STEPS = ("step", "eta", "gamma", "rho", "alpha", "beta", "mu", "damping")  # settings by which steps become shorter
NO_STEP = (
    "It chooses its steps itself, so f may have no minimum: it may be unbounded below. Add a penalty, e.g. l2=0.01, or "
    "start from another model."
)
EXPLOSION = 1e12  # a loss or stationarity above this multiple of its start (or of 1, if larger) is a divergence


class Divergence(NamedTuple):
    """When a run diverged, and what to try instead."""

    round: int
    message: str


def is_healthy(start: History, metrics: Mapping[str, Any]) -> np.ndarray:
    """Return where all values are finite, and loss and stationarity are at most EXPLOSION times the start's (or 1)."""
    loss, stationarity = (max(1.0, abs(start[name][0])) for name in ("loss", "stationarity"))
    bounded = np.abs(metrics["loss"]) < EXPLOSION * loss
    bounded &= metrics["stationarity"] < EXPLOSION * stationarity
    return bounded & np.isfinite(metrics["consensus"])


def explain(algorithm: Method, problem: Problem, number: int, stationarity: Any) -> Divergence:
    """Return the message about a run that diverged, with the step sizes to try if the method has any."""
    what = f"{algorithm.description} diverged at round {number} (stationarity {stationarity:.3g})."
    if not _has_step(algorithm.spec):
        return Divergence(int(number), f"{what} {NO_STEP}")
    found = _smoothness(problem)
    L = 0.0 if found is None else found.value
    bound = f"; with L = {L:.3g} ({found.kind}), below 1/L = {1 / L:.3g}" if found is not None and L > 0 else ""
    return Divergence(
        int(number),
        f"{what} Try a smaller local step size{bound}. If the method adds a penalty 1/eta (FedProx: rho), try one "
        "below 1/(L + 1/eta).",
    )


def _has_step(spec: Spec) -> bool:
    """Return whether a method, or a part of it such as its oracle, has a step size or a penalty that a user gives."""
    return any(
        _has_step(value) if isinstance(value, Spec) else isinstance(value, Thing) or (name in STEPS and value != "auto")
        for name, value in spec.settings
    )


def _smoothness(problem: Problem) -> theory.Smoothness | None:
    """Return L; None if it is unknown. For a large network, an estimate would take longer than the run."""
    if problem.answer.smoothness is None and problem.dimension * problem.samples >= LARGE_PROBLEM:
        return known_smoothness(problem)
    try:
        return theory.smoothness_constants(problem, average=False)
    except FedpdError:  # a Hessian at the start is not finite
        return None


Row = dict[str, Any]


class Measurements(NamedTuple):
    """The history and the counts of one variant."""

    history: History  # the measured rows
    totals: Totals  # the costs of all rounds so far, also of those that were not measured
    updates: np.ndarray  # (N,) local steps of each agent in all rounds together
    diverged: Divergence | None = None  # when and why the variant diverged; None: it did not


def first_measurements(agents: int, metrics: dict[str, Any]) -> Measurements:
    """Return the measurements of the start: one row with these metrics."""
    for name, what in (("loss", "f(x^0)"), ("stationarity", "||grad f(x^0)||^2")):
        value = float(np.mean(metrics[name]))
        if not np.isfinite(value):
            rule = "must be finite, so that a method can begin"
            refuse(what, value, rule, "Check the losses and the penalty, scale the features, or start elsewhere")
    return Measurements(start_row(**metrics), {}, np.zeros(agents, np.int64))


def add_rounds(
    measurements: Measurements,
    rows: Rows,
    done: int,
    every: int,
    last: int,
    costs: Costs,
    explain: Callable[[int, float], Divergence],
    participants: np.ndarray | None = None,
) -> Measurements:
    """Return the measurements after a chunk of rounds; if the variant diverged, up to that round.

    Args:
        measurements: The measurements after `done` rounds. If the variant has diverged already, they do not change.
        rows: The results of the rounds, leaves (K, ...).
        done: The number of rounds before this chunk.
        every: Every how many rounds the run measures.
        last: The last round of the run, which is always measured.
        explain: Returns the message about a divergence, from (round, stationarity).
        participants: (K, C) the agents of the rounds, N where nobody is; None: all N agents, in order.
    """
    if measurements.diverged is not None:
        return measurements
    agents = len(measurements.updates)
    communicated, senders, receivers, work = rows.rounds
    samples = count_samples(work)
    numbers = done + 1 + np.arange(len(communicated))
    measured = (numbers % every == 0) | (numbers == last)
    rounds: dict[str, Any] = {
        "communicated": communicated,
        "senders": senders,
        "receivers": receivers,
        "updates": work.updates[:, :agents] if participants is None else work.updates,
        "samples": samples[:, :agents] if participants is None else samples,
        **rows.metrics,
    }
    bad = np.flatnonzero(measured & ~is_healthy(measurements.history, dict(rows.metrics)))
    diverged = None
    if len(bad):
        end = bad[0] + 1
        diverged = explain(int(numbers[bad[0]]), float(rows.metrics["stationarity"][bad[0]]))
        rounds, measured = {name: column[:end] for name, column in rounds.items()}, measured[:end]
    history, totals = extend(measurements.history, measurements.totals, costs, rounds, measured)
    return Measurements(history, totals, _add_updates(measurements.updates, rounds["updates"], participants), diverged)


def _add_updates(updates: np.ndarray, more: np.ndarray, participants: np.ndarray | None) -> np.ndarray:
    """Return the local steps of each agent after more rounds; with participants, in place: N may be large."""
    if participants is None:
        return updates + more.sum(axis=0, dtype=np.int64)
    participants = participants[: len(more)]
    here = participants < len(updates)
    # Of the same type: NumPy adds 12,800 numbers to a million in 0.06 ms, and in 1.0 ms if it must convert them.
    np.add.at(updates, participants[here], more[here].astype(updates.dtype))
    return updates


def rows_since(history: History, seconds: np.ndarray, since: int, **about: Any) -> list[Row]:
    """Return the rows after round `since` (-1: all), each a dict of plain numbers together with `about`."""
    new = history["round"] > since
    columns = {name: column[new].tolist() for name, column in history.items()} | {"seconds": seconds[new].tolist()}
    return [about | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def variant(tree: Any, i: int, many: bool) -> Any:
    """Return the arrays of variant i. They have a leading axis of variants if there are several (`many`)."""
    return jax.tree.map(lambda leaf: leaf[i], tree) if many else tree


Until = Mapping[str, float]
ACCURACIES = tuple(name for name in KNOWN if "accuracy" in name)


class Target(NamedTuple):
    """A column and the value that it has to reach."""

    column: Column
    value: float


def make_targets(until: Until | None, columns: Sequence[Column]) -> tuple[Target, ...]:
    """Return the targets that `until` names; () if there are none."""
    example = 'Give e.g. until={"stationarity": 1e-10}'
    if until is None:
        return ()
    if not isinstance(until, Mapping) or not until:
        refuse("until", until, "must map names of columns to values", example)
    known = {column.name: column for column in columns if column.better is not None}
    for name, value in until.items():
        if name in {column.name for column in columns} - set(known):
            rule = "this column does not say whether less or more is better"
            refuse("until", name, rule, 'Make it with Column(..., better="less") or better="more"')
        if name not in known:
            refuse("until", name, "the run does not measure this column", nearest(name, known))
        check_target(name, as_number(f"until[{name!r}]", value, example))
    return tuple(Target(known[name], float(value)) for name, value in until.items())


def check_target(name: str, value: float) -> None:
    """Refuse an accuracy above 1, such as 90 for 90 %: no run reaches it."""
    if name in ACCURACIES and value > 1:
        remedy = f"Give {value / 100:g} for {value:g} %" if value <= 100 else "Give e.g. 0.9 for 90 %"
        refuse(name, value, "must be at most 1, because an accuracy is a share of the samples", remedy)


def target_values(targets: Sequence[Target], columns: Sequence[Column], double: bool) -> np.ndarray:
    """Return the target of each column, (columns,), for the compiled rounds; NaN if a column has none.

    In float32, a target is rounded so that it is not easier to reach. Comparisons on the device and on the host then
    agree.
    """
    values = {target.column.name: _rounded(target, double) for target in targets}
    return np.array([values.get(column.name, np.nan) for column in columns], np.float64 if double else np.float32)


def _rounded(target: Target, double: bool) -> np.float64 | np.float32:
    if double:
        return np.float64(target.value)
    upward, single = target.column.better == "more", np.float32(target.value)
    easier = single < target.value if upward else single > target.value
    return np.nextafter(single, np.float32(np.inf if upward else -np.inf)) if easier else single


def are_reached(targets: Sequence[Target], measurements: Sequence[Measurements]) -> bool:
    """Return whether every seed that did not diverge has a row in which all targets are reached."""
    running = [one.history for one in measurements if one.diverged is None]
    return bool(targets) and all(has_row(targets, history) for history in running)


def has_row(targets: Sequence[Target], history: History) -> bool:
    """Return whether a history has a row in which all targets are reached."""

    rows = [target.column.reaches(history[target.column.name], target.value) for target in targets]
    return bool(np.all(rows, axis=0).any())
