"""Show results in a notebook: small tables with a curve beside each row, and pandas DataFrames.

All text of the tables is escaped, and no script runs. Only frames need pandas.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedpd.base.errors import extra
from fedpd.engine.measure.columns import NETWORK
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    SECONDS,
    Entry,
    Measured,
    cost_text,
    drawn_quantities,
    end_text,
    heading,
    last_costs,
    last_text,
    measured_values,
    value_text,
)

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
