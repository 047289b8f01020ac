"""Progress bars: rounds done, rounds a second, time left, current stationarity."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

Report = Callable[[Any, int, float], None]  # (rounds done, with a fraction if agents are on disk; in all; stationarity)

PATIENCE = 2.0  # seconds before a bar appears unasked


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s")


def bars(console: Console | None = None, unit: str = "rounds") -> Progress:
    """A display of one bar a method, in rounds (or, with another unit, without their rate)."""
    return Progress(
        TextColumn("{task.description:.28}", markup=False),
        BarColumn(bar_width=24),
        TextColumn(f"{{task.completed:>5.0f}}/{{task.total:.0f}} {unit}"),
        *([RateColumn()] if unit == "rounds" else []),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def stationarity_note(stationarity: float) -> str:
    return f"‖∇f‖² {stationarity:.2e}"


@contextmanager
def reporter(progress: bool | Report | None, name: str, rounds: int) -> Iterator[Report]:
    """The function that a run tells how far it is: the user's own, a bar, or nothing."""
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done, total, stationarity: None
        return
    display = bars(Console(stderr=True))
    task = display.add_task(name, total=rounds, note="")
    began, wait = time.monotonic(), 0.0 if progress else PATIENCE

    def report(done: float, total: int, stationarity: float) -> None:
        if not display.live.is_started and time.monotonic() - began >= wait:
            display.start()
        display.update(task, completed=done, note=stationarity_note(stationarity))

    try:
        yield report
    finally:
        display.stop()
