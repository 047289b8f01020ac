"""A run as it goes on, in a terminal: its curves and latest numbers, read from its folder and nowhere else."""

import time
from pathlib import Path

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpd.report.braille import COLOURS, Curve, plot
from fedpd.report.curves import thinned
from fedpd.report.recorded import Entry, Record, read
from fedpd.report.tables import quantity

HEIGHT = 14  # lines of the plot
POINTS = 400  # of a curve


def watch(folder: Path, console: Console, *, once: bool = False, every: float = 1.0) -> None:
    """Show a run's folder until it is finished or Ctrl-C is pressed; `once`: as it is now."""
    record = read(folder)
    if once or record.finished:
        console.print(view(record, console.width))
        return
    with Live(view(record, console.width), console=console, auto_refresh=False) as live:
        try:
            while not record.finished:
                time.sleep(every)
                record = read(folder)
                live.update(view(record, console.width), refresh=True)
        except KeyboardInterrupt:
            pass  # the run itself goes on


def view(record: Record, width: int) -> Group:
    state = "finished" if record.finished else "as of the last checkpoints; Ctrl-C ends this view, not the run"
    curves = [_curve(entry) for entry in record.entries]
    title = Text(f"{record.name}: {state}", "bold")
    return Group(title, *_figure(curves, max(20, min(width, 110) - 11)), _table(record))


def _curve(entry: Entry) -> Curve:
    """log10 of the stationarity against communications, of the first seed that went on longest."""
    run = max(entry.runs, key=lambda run: len(run.history["round"]))
    kept = thinned(len(run.history["round"]), POINTS)
    x, y = run.history["communications"][kept], run.history["stationarity"][kept]
    shown = np.isfinite(y) & (y > 0)
    return x[shown], np.log10(y[shown])


def _figure(curves: list[Curve], width: int) -> list[Text]:
    if not any(len(x) for x, _ in curves):
        return [Text("Nothing is recorded yet: the first rows come with the first checkpoint.", "yellow")]
    lines, (left, right, bottom, top) = plot(curves, width, HEIGHT)
    ticks = {0: f"{10**top:.1e}", HEIGHT - 1: f"{10**bottom:.1e}"}
    rows = [Text.assemble(f"{ticks.get(i, ''):>9} ", ("│", "dim"), line) for i, line in enumerate(lines)]
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    across = f"{first}{'communications':^{width - len(first) - len(last)}}{last}"
    return [Text("stationarity ‖∇f‖²", "dim"), *rows, Text(f"{'':10}└{'─' * width}", "dim"), Text(f"{'':10} {across}")]


def _table(record: Record) -> Table:
    """One row a method; several seeds by the first one's numbers, as in the plot."""
    table = Table(box=None, pad_edge=False)
    judged = all("test_accuracy" in run.history for entry in record.entries for run in entry.runs)
    table.add_column("method", overflow="fold")
    table.add_column("rounds", min_width=12)
    for name in ("stationarity", "loss", *(("accuracy",) if judged else ()), "comm.", "bytes", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, entry in enumerate(record.entries):
        table.add_row(*_row(entry, judged, COLOURS[number % len(COLOURS)]))
    for label in record.waiting:
        table.add_row(Text(label, "dim"), Text("waiting", "dim"))
    return table


def _row(entry: Entry, judged: bool, colour: str) -> list[Text | ProgressBar | str]:
    run = max(entry.runs, key=lambda run: len(run.history["round"]))
    last = {name: column[-1] for name, column in run.history.items()}
    progress: Text | ProgressBar = ProgressBar(entry.rounds, entry.done, width=12)
    if entry.finished:
        progress = Text("diverged", "red") if entry.diverged else Text(f"{entry.done:,}", "green")
    moved = quantity(int(last["bytes_up"]) + int(last["bytes_down"]), "B")
    accuracy = (f"{last['test_accuracy']:.1%}",) if judged else ()
    seconds = run.elapsed[-1]
    return [
        Text(entry.label, colour),
        progress,
        f"{last['stationarity']:.2e}",
        f"{last['loss']:.4g}",
        *accuracy,
        f"{last['communications']:,}",
        moved,
        f"{seconds:.1f} s" if np.isfinite(seconds) else "",
    ]
