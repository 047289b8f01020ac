"""Show the curves and the latest numbers of a run in the terminal while it runs, from its folder."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpd.base.interrupts import in_order
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    SECONDS,
    Entry,
    Measured,
    cost_text,
    last_costs,
    last_text,
    measured_rows,
    shared_quantities,
)
from fedpd.engine.views.style import Style, styles
from fedpd.experiments.recorded import Record, read
from fedpd.report.curves import thinned

DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of Unicode's braille patterns

PATTERNS = {"solid": "1", "dash": "11100", "dashdot": "11110010", "dot": "100", "longdashdot": "1111110010010"}

Curve = tuple[np.ndarray, np.ndarray]  # x and y, finite


def plot(
    curves: Sequence[Curve], styles: Sequence[Style], width: int, height: int
) -> tuple[list[Text], tuple[float, float, float, float]]:
    """Return the lines of a plot, and the ends of its axes (left, right, bottom, top)."""
    points = [(x, y) for x, y in curves if len(x)]
    left, right = _ends([x for x, _ in points])
    bottom, top = _ends([y for _, y in points])
    cells = np.zeros((height, width), int)
    owner = np.full((height, width), -1)
    for number, ((x, y), style) in enumerate(zip(curves, styles, strict=True)):
        columns = (np.asarray(x, float) - left) / (right - left) * (2 * width - 1)
        rows = (top - np.asarray(y, float)) / (top - bottom) * (4 * height - 1)
        for column, row in _dots(columns, rows, style.dash):
            cells[row // 4, column // 2] |= DOTS[row % 4, column % 2]
            owner[row // 4, column // 2] = number
    lines = []
    for marks, owners in zip(cells, owner, strict=True):
        line = Text()
        for mark, who in zip(marks, owners, strict=True):
            line.append(chr(0x2800 + mark) if mark else " ", styles[who].colours.terminal if mark else "")
        lines.append(line)
    return lines, (left, right, bottom, top)


def _ends(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    if not columns:
        return 0.0, 1.0
    low, high = float(min(c.min() for c in columns)), float(max(c.max() for c in columns))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sample(style: Style) -> Text:
    """Return a short piece of a curve in its colour and dash, for the row of a table."""
    lines, _ = plot([(np.arange(9.0), np.zeros(9))], [style], 3, 1)
    return lines[0]


def _dots(columns: np.ndarray, rows: np.ndarray, dash: str) -> list[tuple[int, int]]:
    """Return the dots on the straight lines between the points, without those in the gaps of the dash."""
    dots = {(round(column), round(row)): None for column, row in zip(columns, rows, strict=True)}
    path: dict[tuple[int, int], None] = {} if len(columns) > 1 else dots
    for i in range(len(columns) - 1):
        steps = int(max(abs(columns[i + 1] - columns[i]), abs(rows[i + 1] - rows[i]))) + 2
        between = (np.linspace(ends[i], ends[i + 1], steps) for ends in (columns, rows))
        path |= {(round(column), round(row)): None for column, row in zip(*between, strict=True)}
    pattern = PATTERNS[dash]
    return [dot for place, dot in enumerate(path) if pattern[place % len(pattern)] == "1"]


HEIGHT = 14  # lines of the plot
POINTS = 400  # of a curve


def watch(folder: Path, console: Console, *, once: bool = False, every: float = 1.0) -> None:
    """Show a run folder until the run is finished or Ctrl-C is pressed.

    Args:
        folder: The run folder.
        console: The terminal.
        once: Whether to show the current state and return.
        every: The refresh interval in seconds.
    """
    record = read(folder)
    if once or record.finished:
        console.print(view(record, console.width))
        return
    live = Live(view(record, console.width), console=console, auto_refresh=False)
    with live, suppress(KeyboardInterrupt), in_order():  # Ctrl-C ends only the view, not the run
        while not record.finished:
            time.sleep(every)
            record = read(folder)
            live.update(view(record, console.width), refresh=True)


def view(record: Record, width: int) -> Group:
    """Return the view of a run: its title, its curves and a table."""
    state = "finished" if record.finished else "as of the last checkpoints; Ctrl-C ends this view, not the run"
    curves = [_curve(entry) for entry in record.entries]
    title = Text(f"{record.name}: {state}", "bold")
    drawn = styles([entry.label for entry in record.entries])
    return Group(title, *_figure(curves, drawn, max(20, min(width, 110) - 11)), _table(record, drawn))


def _curve(entry: Entry) -> Curve:
    """Return log10 of the stationarity against communications."""
    run = _longest(entry)
    measured = measured_rows(run, MAIN)
    kept = measured[thinned(len(measured), POINTS)]
    x, y = run.history["communications"][kept], run.history[MAIN][kept]
    shown = np.isfinite(y) & (y > 0)
    return x[shown], np.log10(y[shown])


def _figure(curves: list[Curve], drawn: list[Style], width: int) -> list[Text]:
    if curves and not any(len(x) for x, _ in curves):
        return [Text("No stationarity above zero was measured yet, so there is no curve.", "yellow")]
    if not curves:
        return [Text("There are no rows yet. The first checkpoint will add them.", "yellow")]
    lines, (left, right, bottom, top) = plot(curves, drawn, width, HEIGHT)
    ticks = {0: f"{10**top:.1e}", HEIGHT - 1: f"{10**bottom:.1e}"}
    rows = [Text.assemble(f"{ticks.get(i, ''):>9} ", ("│", "dim"), line) for i, line in enumerate(lines)]
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    across = f"{first}{'communications':^{width - len(first) - len(last)}}{last}"
    return [Text("stationarity ‖∇f‖²", "dim"), *rows, Text(f"{'':10}└{'─' * width}", "dim"), Text(f"{'':10} {across}")]


def _table(record: Record, drawn: list[Style]) -> Table:
    """Return a table with one row per method, for the seed that the plot shows."""
    table = Table(box=None, pad_edge=False)
    with_accuracy = bool(record.entries) and "test_accuracy" in [one.name for one in shared_quantities(record.entries)]
    table.add_column("method", overflow="fold")
    table.add_column("rounds", min_width=8)
    for name in ("stationarity", "loss", *(("accuracy",) if with_accuracy else ()), "comm.", "bytes", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry, style in zip(record.entries, drawn, strict=True):
        table.add_row(*_row(entry, with_accuracy, style))
    for label in record.waiting:
        table.add_row(Text(label, "dim"), Text("waiting", "dim"))
    return table


def _row(entry: Entry, with_accuracy: bool, style: Style) -> list[Text | ProgressBar | str]:
    run = _longest(entry)
    progress: Text | ProgressBar = ProgressBar(entry.rounds, entry.done, width=8)
    if entry.finished:
        progress = Text("diverged", "red") if entry.diverged else Text(f"{entry.done:,}", "green")
    measured = (MAIN, "loss", *(("test_accuracy",) if with_accuracy else ()))
    values = [last_text(run, name) for name in measured]
    costs = last_costs([run])
    spent = [cost_text(COSTS[name], costs[name]) for name in ("communications", "bytes")]
    seconds = cost_text(SECONDS, costs["seconds"]) if np.isfinite(costs["seconds"]) else ""
    name = Text.assemble(sample(style), " ", (entry.label, style.colours.terminal))
    return [name, progress, *values, *spent, seconds]


def _longest(entry: Entry) -> Measured:
    """Return the first of the seeds that have the most rows."""
    return max(entry.runs, key=lambda run: len(run.history["round"]))
