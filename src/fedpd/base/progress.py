"""Progress: the event that bars, loggers and callbacks receive, and the bars themselves."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

PATIENCE = 2.0  # seconds after which a bar appears if the user did not ask for one

Row = dict[str, Any]


class Event(NamedTuple):
    """The progress of a run or of another computation.

    Attributes:
        what: The name of the computation: a method's label, or "measuring L".
        done: The number of rounds (or other steps) done; it has a fraction within a round.
        total: The total number of rounds (or other steps).
        stationarity: The newest stationarity of a run; NaN if there is none.
        rows: Returns the rows of the history that are new since the last event, by seed.
        model: Returns the current model.
    """

    what: str
    done: float
    total: int
    stationarity: float = math.nan
    rows: Callable[[], list[Row]] = list
    model: Callable[[], Any] | None = None


Listener = Callable[[Event], Any]  # True: stop the run, and return what it has so far
ProgressFunction = Callable[[Any, int, float], Any]  # the user's function: (rounds done, total, stationarity)
StepFunction = Callable[[str, int, int], Any]  # the user's function: (what, done, total)


def all_listeners(listeners: Sequence[Listener | None]) -> Listener:
    """Return a listener that passes an event to all listeners, and stops the run if one of them does."""
    known = [listener for listener in listeners if listener is not None]

    def listen(event: Event) -> bool:
        answers = [listener(event) for listener in known]  # a list, so that every listener receives the event
        return any(answer is True for answer in answers)

    return listen


class RateColumn(ProgressColumn):
    """A column with the rounds per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s")


def bars(console: Console | None = None, unit: str = "rounds") -> Progress:
    """Return a display with one bar per method. It shows rounds and their rate, or another unit without a rate."""
    return Progress(
        TextColumn("{task.description:.28}", markup=False),
        BarColumn(bar_width=24),
        TextColumn(f"{{task.completed:>5.0f}}/{{task.total:.0f}} {unit}"),
        *([RateColumn()] if unit == "rounds" else []),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def show_event(display: Progress, tasks: dict[str, TaskID], event: Event) -> None:
    """Draw an event as the bar with its name; the first event with a name adds the bar."""
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
    display, tasks = bars(Console(stderr=True)), dict[str, TaskID]()
    began, wait = time.monotonic(), 0.0 if progress else PATIENCE

    def listen(event: Event) -> None:
        if not display.live.is_started and time.monotonic() - began >= wait:
            display.start()
        show_event(display, tasks, event)

    try:
        yield listen
    finally:
        display.stop()
