"""Runs by label, the input of figures, tables and reports; what they measured and spent, and its numbers as text.

In a notebook they are small tables with a curve beside each row, and pandas DataFrames. All text of the tables is
escaped, and no script runs. Only frames need pandas.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedpd.base.errors import extra
from fedpd.engine.measure.columns import KNOWN, NETWORK, Column, column_of
from fedpd.engine.measure.history import Divergence, History


class Measured(Protocol):
    """The part of a `Run` that figures and tables need.

    Attributes:
        seed: The seed.
        history: The measured rows.
        elapsed: The seconds at each row; NaN if they are not known.
        diverged: When it diverged, if it did.
    """

    @property
    def seed(self) -> int: ...
    @property
    def history(self) -> History: ...
    @property
    def elapsed(self) -> np.ndarray: ...
    @property
    def diverged(self) -> Divergence | None: ...


class Entry(NamedTuple):
    """The runs of a method, one per seed, with their rows so far."""

    label: str  # the name of the method in tables and figures
    runs: tuple[Measured, ...]  # its runs
    rounds: int  # the number of rounds of a finished run

    @property
    def done(self) -> int:
        """Return the number of rounds that all seeds have done, apart from those that diverged."""
        return min(int(run.history["round"][-1]) for run in self.runs if run.diverged is None or self.diverged)

    @property
    def diverged(self) -> bool:
        """Return whether all seeds diverged."""
        return all(run.diverged is not None for run in self.runs)

    @property
    def finished(self) -> bool:
        """Return whether there are no more rounds to come."""
        return self.diverged or self.done >= self.rounds

    @property
    def usable(self) -> tuple[Measured, ...]:
        """Return the runs that every mean, band and cost is over: those that did not diverge; all if every one did.

        `divergence` says beside each of them how many are left out.
        """
        return tuple(run for run in self.runs if run.diverged is None) or self.runs

    @property
    def divergence(self) -> str:
        """Return how many seeds diverged, such as "1 of 3 diverged"; "diverged" for a single one, "" for none."""
        number = sum(run.diverged is not None for run in self.runs)
        return (
            ""
            if not number
            else "diverged"
            if number == len(self.runs) == 1
            else f"{number} of {len(self.runs)} diverged"
        )


def entry_of(label: str, runs: Sequence[Measured]) -> Entry:
    """Return the entry of finished runs."""
    return Entry(label, tuple(runs), max(int(run.history["round"][-1]) for run in runs))


def measured_rows(run: Measured, name: str) -> np.ndarray:
    """Return the numbers of the rows in which a column was measured.

    A federation evaluates its model only in some rows; in the others its columns are NaN. The last row of a run that
    diverged was measured, also if it is NaN.
    """
    values = run.history[name]
    measured = ~np.isnan(values)
    if run.diverged is not None:
        measured[-1] = True
    return np.flatnonzero(measured)


def measured_values(run: Measured, name: str) -> np.ndarray:
    """Return the values of a column in the rows in which it was measured, in order; see `measured_rows`."""
    return run.history[name][measured_rows(run, name)]


WINDOW = 3  # measurements whose mean keeps a target


def reached_row(run: Measured, name: str, target: float) -> int | None:
    """Return the row of the history from which a run keeps a target; None: it does not, or it diverged.

    A value that is only touched does not count. A column on a logarithmic axis, such as the stationarity, must stay at
    the target. Other columns have noise, so that the mean of three measurements must be at it. Tables, pages and
    comparisons ask this function; `kept_words` is its sentence.
    """
    column, rows = column_of(name), measured_rows(run, name)
    values = run.history[name][rows]
    if run.diverged is not None or not len(values):
        return None
    if not column.log:
        found = first_kept(values, target, column.better or "less", min(WINDOW, len(values)))
        return None if found is None else int(rows[found])
    missed = np.flatnonzero(~(np.isfinite(values) & column.reaches(values, target)))
    last = missed[-1] if len(missed) else -1
    return int(rows[last + 1]) if last + 1 < len(rows) else None


def first_kept(values: np.ndarray, target: float, better: str, window: int = WINDOW, first: int = 0) -> int | None:
    """Return the first place, from `first` on, at which the mean of a window is at the target; None: there is none."""
    sign = 1 if better == "more" else -1
    slack = 1e-9 * max(1.0, abs(target))  # of the rounding of a mean
    if len(values) < first + window:
        return None
    means = sliding_window_view(values[first:], window).mean(axis=-1)
    places = np.flatnonzero(sign * means >= sign * target - slack)
    return first + int(places[0]) if len(places) else None


def kept_words(column: Column) -> str:
    """Return when a target counts as reached, as a sentence."""
    if column.log:
        return "A target counts from the first measurement after which it is never lost."
    return "A target counts from the first measurement at which the mean of three is at it."


def last_value(run: Measured, name: str) -> float:
    """Return the last value of a column that was measured; NaN if there is none."""
    values = measured_values(run, name)
    return float(values[-1]) if len(values) else float("nan")


PREFIXES = ("", "k", "M", "G", "T", "P")


def short_number(number: float, unit: str = "") -> str:
    """Return a large number with three digits and a prefix, such as "192 M" or "9.6 MB"."""
    power = 0 if number < 1 else min(int(np.log10(number) // 3), len(PREFIXES) - 1)
    return f"{number / 1000**power:.3g} {PREFIXES[power]}{unit}".strip()


BYTES = Column("bytes", "bytes sent and received, all agents together", "bytes", "cost", np.int64, "bytes", log=True)
SECONDS = Column("seconds", "seconds of wall time, compilation included", "seconds", "cost", unit="s")
COSTS = {column.name: column for column in (column_of("communications"), column_of("samples"), BYTES, SECONDS)}
MAIN = "stationarity"  # the quantity that a report begins with


def cost_values(run: Measured) -> dict[str, np.ndarray]:
    """Return the costs of a run, one value per row of its history: those of `COSTS`, and its time if it has a clock."""
    history = run.history
    derived = {BYTES.name: history["bytes_up"] + history["bytes_down"], SECONDS.name: run.elapsed}
    timed = (NETWORK.name,) if NETWORK.name in history else ()
    return {name: derived[name] if name in derived else history[name] for name in (*COSTS, *timed)}


def shared_quantities(entries: Sequence[Entry]) -> list[Column]:
    """Return the quantities that all runs measured at least once, the main one first and the user's own last."""
    runs = [run for entry in entries for run in entry.runs]
    names = dict.fromkeys((*KNOWN, *runs[0].history))
    shared = [column_of(name) for name in names if all(name in run.history for run in runs)]
    values = [column for column in shared if column.kind == "value"]
    columns = [column for column in values if all(len(measured_rows(run, column.name)) for run in runs)]
    others = [column.name for column in columns if column.name != "consensus"]
    first = MAIN if MAIN in others else "".join(others[:1])  # a federation may evaluate only columns of the user's own
    return sorted(columns, key=lambda column: column.name != first)


def drawn_quantities(entries: Sequence[Entry]) -> list[Column]:
    """Return the quantities of tables and printed figures: all but the consensus gap, which is mostly zero."""
    return [column for column in shared_quantities(entries) if column.name != "consensus"]


def known_costs(entries: Sequence[Entry]) -> list[Column]:
    """Return all costs, without the seconds if no run has recorded them."""
    timed = any(np.isfinite(run.elapsed).any() for entry in entries for run in entry.runs)
    return [column for column in shared_costs(entries).values() if timed or column is not SECONDS]


def shared_costs(entries: Sequence[Entry]) -> dict[str, Column]:
    """Return `COSTS`, and the simulated seconds if all runs have a clock."""
    clocked = all(NETWORK.name in run.history for entry in entries for run in entry.runs)
    return COSTS | ({NETWORK.name: NETWORK} if clocked else {})


def heading(column: Column) -> str:
    """Return the heading of a column of a table, such as "stationarity ‖∇f‖²" or "test accuracy"."""
    name = column.name.replace("_", " ")
    return column.symbol if " " in column.symbol else f"{name} {column.symbol}".strip()


def axis_label(column: Column) -> str:
    """Return the label of an axis of a small figure: the words up to their first comma."""
    return column.words.partition(",")[0]


def value_text(column: Column, value: float) -> str:
    """Return a measured value for a table, such as "1.25e-10", "0.3412" or "97.3%"."""
    if column.unit == "share":
        return f"{value:.1%}"
    return f"{value:.2e}" if column.log else f"{value:.4g}"


def end_text(entry: Entry, column: Column) -> str:
    """Return a quantity at the end: its mean over the seeds that did not diverge, such as "1.2e-10 ± 3e-11".

    Tables, notebooks and pages call it, so that they agree. The main quantity also says how many seeds diverged.
    """
    if entry.diverged:
        first = min(run.diverged.round for run in entry.runs if run.diverged is not None)
        which = "" if len(entry.runs) == 1 else f", {entry.divergence}"
        return f"diverged at {first}{which}" if column.name == MAIN else ""
    values = np.array([last_value(run, column.name) for run in entry.usable])
    values = values[~np.isnan(values)]
    if not len(values):
        return "not measured"
    spread = f" ± {values.std():.0e}" if values.std() > 0 and column.unit != "share" else ""
    note = f", {entry.divergence}" if entry.divergence and column.name == MAIN else ""
    return value_text(column, float(values.mean())) + spread + note


def last_text(run: Measured, name: str) -> str:
    """Return the last value of a column that was measured, for a table; "not measured" if there is none."""
    return value_text(column_of(name), last_value(run, name)) if len(measured_rows(run, name)) else "not measured"


def cost_text(column: Column, value: float) -> str:
    """Return a cost for a table, such as "1,200", "192 M", "9.6 MB" or "4.52 s"."""
    if column is NETWORK and value >= 7200:
        return f"{value / 3600:,.1f} h"
    if column.unit == "s":
        return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"
    if column.log:
        return short_number(value, "B" if column.unit == "bytes" else "")
    return f"{value:,.0f}"


def target_text(quantity: str, value: float, digits: int = 3) -> str:
    """Return a value of a quantity for a sentence, such as "1e-10" or "91%"."""
    return f"{100 * value:.{digits}g}%" if column_of(quantity).unit == "share" else f"{value:.{digits}g}"


def goal(quantity: str, target: float) -> str:
    """Return a target in symbols, such as "‖∇f‖² ≤ 1e-10"."""
    column = column_of(quantity)
    sign = "≥" if column.better == "more" else "≤"
    return f"{column.symbol or column.name} {sign} {target_text(quantity, target, 12)}"


def last_costs(runs: Iterable[Measured]) -> dict[str, float]:
    """Return the costs of runs at their ends, as means over the seeds."""
    each = [cost_values(run) for run in runs]
    shared = [name for name in each[0] if all(name in costs for costs in each)]
    return {name: float(np.mean([costs[name][-1] for costs in each])) for name in shared}


SAME = 1.1  # local work that differs by at most this factor is equal, because some methods begin with a gradient
LONGEST = 30  # characters of a label


def local_work(entry: Entry) -> float:
    """Return the sample gradients of all agents per communication, as the mean over seeds; NaN if there was none."""
    ends = [(run.history["samples"][-1], run.history["communications"][-1]) for run in entry.usable]
    return float(np.mean([samples / number if number else np.nan for samples, number in ends]))


def works_of(entries: Iterable[Entry]) -> dict[str, float]:
    """Return the local work of each method, by label."""
    return {entry.label: local_work(entry) for entry in entries}


def unequal_work(works: Mapping[str, float], unit: str = "sample gradients") -> str:
    """Return how the local work of methods differs, as the beginning of a sentence; "" if it is equal.

    A method that computes more per communication usually needs fewer of them. Every headline about communications asks
    this function, so that none compares batches of one sample with full gradients without saying so.

    Args:
        works: The local work per communication of each method, by label. Those that are not finite do not count.

    Examples:
        >>> from fedpd.engine.views.entries import unequal_work
        >>> unequal_work({"FedAvg": 24, "FedPD": 4800, "FedProx": 4800})
        'Unequal local work, from 24 (FedAvg) to 4.8 k (FedPD) sample gradients per communication'
        >>> unequal_work({"FedPD": 4800, "FedProx": 4800})
        ''
    """
    known = {label: work for label, work in works.items() if np.isfinite(work)}
    if not known or max(known.values()) <= SAME * min(known.values()):
        return ""
    least, most = (_with_name(pick(known, key=lambda label: known[label]), known) for pick in (min, max))
    return f"Unequal local work, from {least} to {most} {unit} per communication"


def _with_name(label: str, works: Mapping[str, float]) -> str:
    short = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
    return f"{short_number(works[label])} ({short})"


MOST_ROWS = 30  # of a table in a notebook
POINTS = 60  # of a small curve
WIDE, HIGH = 120, 24  # pixels of a small curve


class Html(str):
    """Text that is HTML already."""


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Return a table with a caption above and notes below, cut if it is long; cells that are not `Html` are escaped."""
    left, right = 'style="text-align: left"', 'style="text-align: right"'

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag} {right if i else left}>{_cell(cell)}</{tag}>" for i, cell in enumerate(cells))

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows[:MOST_ROWS])
    below = [*notes, *([f"and {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else [])]
    return (
        f'<div><div style="font-weight: bold">{escape(caption)}</div><table><thead><tr>{row("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table>{''.join(f'<div>{escape(note)}</div>' for note in below)}</div>"
    )


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def sparkline(values: np.ndarray, log: bool) -> Html:
    """Return a small curve as SVG; an empty text if there are fewer than two points to draw."""
    rows = np.unique(np.linspace(0, max(len(values) - 1, 0), POINTS).round().astype(int))
    y = np.asarray(values, float)[rows[: len(values)]]
    with np.errstate(all="ignore"):
        y = np.where(np.isfinite(y) & (y > 0), np.log(y), np.nan) if log else y
    known = np.isfinite(y)
    if known.sum() < 2:
        return Html("")
    low, high = y[known].min(), y[known].max()
    x = np.linspace(1, WIDE - 1, len(y))
    level = HIGH - 2 - (HIGH - 4) * (y - low) / ((high - low) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[known], level[known], strict=True))
    return Html(
        f'<svg width="{WIDE}" height="{HIGH}" role="img" aria-label="curve over the measured rounds">'
        f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5"/></svg>'
    )


def run_html(caption: str, entry: Entry) -> str:
    """Return the table of one run: its quantities at the start and at the end."""
    (run,) = entry.runs
    rows = [
        [heading(column), value_text(column, values[0]), value_text(column, values[-1]), sparkline(values, column.log)]
        for column in drawn_quantities([entry])
        for values in [measured_values(run, column.name)]
    ]
    return html_table(caption, ("", "start", "end", "by round"), rows, [spent_text([run]), *divergence_texts([run])])


def entries_html(caption: str, entries: Sequence[Entry], names: str = "", notes: Iterable[str] = ()) -> str:
    """Return a table with one row per entry: its quantities at the end, as means over the seeds, and its costs."""
    columns = drawn_quantities(entries)
    head = [names, "rounds", "communications", *(heading(column) for column in columns), "by round"]
    rows = [
        [entry.label, f"{entry.done:,}", cost_text(COSTS["communications"], costs["communications"])]
        + [end_text(entry, column) for column in columns]
        + [sparkline(measured_values(entry.usable[0], MAIN), log=True)]
        for entry in entries
        for costs in [last_costs(entry.usable)]
    ]
    diverged = divergence_texts(run for entry in entries for run in entry.runs)
    return html_table(caption, head, rows, [*notes, *diverged[:3]])


def spent_text(runs: Sequence[Measured]) -> str:
    """Return the costs of runs as text, such as "600 rounds, 600 communications, 19.2 M samples, 9.6 MB, 4.5 s"."""
    costs, rounds = last_costs(runs), max(int(run.history["round"][-1]) for run in runs)
    names = {"communications": " communications", "samples": " samples", "bytes": "", SECONDS.name: ""}
    names[NETWORK.name] = " on the network"
    shown = [(name, unit) for name, unit in names.items() if np.isfinite(costs.get(name, np.nan))]
    columns = COSTS | {NETWORK.name: NETWORK}
    return ", ".join([f"{rounds:,} rounds", *(cost_text(columns[name], costs[name]) + unit for name, unit in shown)])


def divergence_texts(runs: Iterable[Measured]) -> list[str]:
    """Return the messages of the runs that diverged, each once."""
    return list(dict.fromkeys(run.diverged.message for run in runs if run.diverged is not None))


def ends_text(run: Measured) -> str:
    """Return the last values of a run, such as "loss 0.3412, stationarity 1.25e-10, test accuracy 97.3%"."""
    names = [name for name in ("loss", MAIN, "test_accuracy") if name in run.history]
    return ", ".join(f"{name.replace('_', ' ')} {last_text(run, name)}" for name in names)


Frame = Any  # a pandas.DataFrame


def history_frame(runs: Iterable[tuple[Mapping[str, Any], Measured]]) -> Frame:
    """Return a DataFrame with one row per measured round: the key of the run, its history, and the seconds.

    Args:
        runs: Pairs of a key, such as {"seed": 0}, and the run.
    """
    pandas = _pandas()
    parts = [pandas.DataFrame({**run.history, "seconds": run.elapsed}).assign(**about) for about, run in runs]
    names = list(dict.fromkeys(name for about, _ in runs for name in about))
    whole = pandas.concat(parts, ignore_index=True)
    return whole[names + [name for name in whole.columns if name not in names]]


def table_frame(rows: Sequence[Mapping[str, Any]]) -> Frame:
    """Return a DataFrame with these rows."""
    return _pandas().DataFrame(list(rows))


def _pandas() -> Any:
    with extra("frames", "A frame"):
        import pandas

    return pandas
