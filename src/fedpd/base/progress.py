"""Progress: one event for bars, loggers and callbacks; and the bars themselves."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a simulation that shows no bar does not import rich
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task, TaskID
    from rich.text import Text

PATIENCE = 2.0  # seconds before a bar appears unasked

Row = dict[str, Any]


class Event(NamedTuple):
    """How far something is.

    Attributes:
        what: What is under way: a method's label, "measuring L".
        done: What is done of it, with a fraction where a round is under way.
        total: All of it.
        stationarity: The newest stationarity of a run; NaN where there is none.
        rows: Returns the rows of the history that are new since the last event, by seed.
        model: Returns the model as it is now.
    """

    what: str
    done: float
    total: int
    stationarity: float = math.nan
    rows: Callable[[], list[Row]] = list
    model: Callable[[], Any] | None = None


Listener = Callable[[Event], Any]  # True: stop the run, and return what it has so far
ProgressFunction = Callable[[Any, int, float], Any]  # the user's own: (rounds done, in all, stationarity)
StepFunction = Callable[[str, int, int], Any]  # the user's own: (what, done, of)


def all_listeners(listeners: Sequence[Listener | None]) -> Listener:
    """Return a listener that passes an event on to all; it stops the run if any of them does."""
    known = [listener for listener in listeners if listener is not None]

    def listen(event: Event) -> bool:
        answers = [listener(event) for listener in known]  # all of them hear it
        return any(answer is True for answer in answers)

    return listen


def rate_column() -> ProgressColumn:
    """Return a column with the rounds per second."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Rounds per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s")

    return RateColumn()


def bars(console: Console | None = None, unit: str = "rounds") -> Progress:
    """Return a display with one bar per method, in rounds (or, with another unit, without their rate)."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:.28}", markup=False),
        BarColumn(bar_width=24),
        TextColumn(f"{{task.completed:>5.0f}}/{{task.total:.0f}} {unit}"),
        *([rate_column()] if unit == "rounds" else []),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def show_event(display: Progress, tasks: dict[str, TaskID], event: Event) -> None:
    """Draw an event as a bar of its own name, which appears when it begins."""
    if event.what not in tasks:
        tasks[event.what] = display.add_task(event.what, total=event.total, note="")
    task = tasks[event.what]
    display.start_task(task)
    note = "" if math.isnan(event.stationarity) else f"‖∇f‖² {event.stationarity:.2e}"
    display.update(task, completed=event.done, total=event.total, note=note)


@contextmanager
def shown(progress: bool | ProgressFunction | None) -> Iterator[Listener]:
    """Yield the listener that shows a run: the user's own function, a bar, or nothing."""
    if callable(progress):
        yield lambda event: progress(event.done, event.total, event.stationarity) and None
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda event: None
        return
    from rich.console import Console

    display = bars(Console(stderr=True))
    tasks: dict[str, TaskID] = {}
    began, wait = time.monotonic(), 0.0 if progress else PATIENCE

    def listen(event: Event) -> None:
        if not display.live.is_started and time.monotonic() - began >= wait:
            display.start()
        show_event(display, tasks, event)

    try:
        yield listen
    finally:
        display.stop()
