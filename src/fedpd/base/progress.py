"""Progress events for bars, loggers and callbacks, and the bars of terminals and notebooks."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 60.0  # seconds between two lines of a run without a terminal
INTERVAL = 0.2  # seconds between two updates of a notebook
PATIENCE = 2.0  # seconds after which a bar appears if the user did not ask for one

Row = dict[str, Any]


class Event(NamedTuple):
    """The progress of a run or of another computation."""

    what: str  # the name of the computation: a method's label, or "measuring L"
    done: float  # the number of rounds (or other steps) done; it has a fraction within a round
    total: int  # the total number of rounds (or other steps)
    stationarity: float = math.nan  # the newest stationarity of a run; NaN if there is none
    rows: Callable[[], list[Row]] = list  # returns the rows that the history gained since the last event, by seed
    # returns the current model of the seed of each of these rows. It is the model of the row's round if the run has an
    # event after every row
    models: Callable[[], list[Any]] = list
    compiling: bool = False  # whether JAX is compiling the program, so that no round is done for a while


Listener = Callable[[Event], Any]  # True: stop the run, and return what it has so far
ProgressFunction = Callable[[Any, int, float], Any]  # the user's function: (rounds done, total, stationarity)
StepFunction = Callable[[str, int, int], Any]  # the user's function: (what, done, total)


def ends_run(answer: Any) -> bool:
    """Return whether the answer of a user's callback ends the run: True does, False and None do not.

    NumPy, JAX and PyTorch have truth values of their own, for example the result of a comparison.
    """
    scalar = getattr(answer, "shape", None) == () and str(getattr(answer, "dtype", "")) in ("bool", "torch.bool")
    if not (answer is None or isinstance(answer, bool) or scalar):
        rule = "the callback returned neither True, False nor None"
        from fedpd.base.checks import refuse  # it imports JAX, which fails in the process that reports why JAX fails

        refuse("callback", answer, rule, "Return True to end the run, and False or nothing to continue it")
    return bool(answer)


def all_listeners(listeners: Sequence[Listener | None]) -> Listener:
    """Return a listener that passes an event to all listeners, and stops the run if one of them does."""
    known = [listener for listener in listeners if listener is not None]

    def listen(event: Event) -> bool:
        answers = [listener(event) for listener in known]  # a list, so that every listener receives the event
        return any(answer is True for answer in answers)

    return listen


class Pace(NamedTuple):
    """The first event of a computation, from which its speed is measured."""

    seconds: float  # the time of the event, by the monotonic clock
    done: float  # the number of steps that were done then

    def rate(self, done: float) -> str:
        """Return the steps per second as text, or "" as long as the speed is not known."""
        seconds = time.monotonic() - self.seconds
        if done <= self.done or seconds <= 0:
            return ""
        speed = (done - self.done) / seconds
        return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"

    def left(self, done: float, total: float) -> str:
        """Return the time that is left at the same speed, or "" as long as the speed is not known."""
        if done <= self.done or done >= total:
            return ""
        seconds = (time.monotonic() - self.seconds) * (total - done) / (done - self.done)
        return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"


class EventText(NamedTuple):
    """An event as text: its progress, such as "20/600 rounds", and a note, such as "30 s left"."""

    progress: str
    note: str


def event_text(event: Event, pace: Pace, alone: bool = True) -> EventText:
    """Return progress as text, with its speed, the stationarity and, if it is `alone` on the screen, the time left."""
    is_run = event.compiling or not math.isnan(event.stationarity)
    progress = f"{event.done:,.0f}/{event.total:,}" + (" rounds" if alone and is_run else "")
    if event.compiling and event.done < event.total:
        return EventText(progress, "compiling")
    left = pace.left(event.done, event.total) if alone else ""
    stationarity = "" if math.isnan(event.stationarity) else f"‖∇f‖² {event.stationarity:.2e}"
    rate = pace.rate(event.done) if is_run else ""
    return EventText(progress, " ".join(part for part in (rate, left, stationarity) if part))


def paces() -> Callable[[Event], Pace]:
    """Return a function that remembers the first event of each computation after its compilation."""
    known: dict[str, Pace] = {}

    def pace(event: Event) -> Pace:
        now = Pace(time.monotonic(), event.done)
        return now if event.compiling else known.setdefault(event.what, now)

    return pace


@contextmanager
def terminal_bars(
    console: Console | None = None, labels: Sequence[str] = (), total: int = 0, wait: float = 0.0
) -> Iterator[Listener]:
    """Yield a listener that draws one bar per computation, and one more with the time left for all of them.

    Args:
        console: The terminal to draw on; None: standard error.
        labels: The names of the computations that are known before. Any other one gets a bar when it begins.
        total: The number of steps of each of them, e.g. rounds.
        wait: Seconds before the first bar appears.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    display = Progress(
        TextColumn("{task.description:.28}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text].progress}", justify="right", markup=False),
        TextColumn("{task.fields[text].note}", markup=False),
        console=console or Console(stderr=True),
    )
    began, pace, done = time.monotonic(), paces(), dict.fromkeys(labels, 0.0)
    tasks = {label: display.add_task(label, total=total, text=EventText("", "")) for label in labels}
    everything, first = total * len(labels), list[Pace]()
    whole = display.add_task("all methods", total=everything, text=EventText("", "")) if len(labels) > 1 else None

    def listen(event: Event) -> None:
        if not display.live.is_started and time.monotonic() - began >= wait:
            display.start()
        if event.what not in tasks:
            tasks[event.what] = display.add_task(event.what, total=event.total, text=EventText("", ""))
        text = event_text(event, pace(event), alone=whole is None)
        display.update(tasks[event.what], completed=event.done, total=event.total, text=text)
        if whole is not None and event.what in done:
            done[event.what] = event.done
            finished = sum(done.values())
            if not first:  # the speed does not count rounds of an earlier session
                first.append(Pace(began, finished))
            left = first[0].left(finished, everything)
            text = EventText(f"{finished:,.0f}/{everything:,}", f"rounds, {left}" if left else "rounds")
            display.update(whole, completed=finished, text=text)

    if wait == 0:
        display.start()
    try:
        yield listen
    finally:
        display.stop()


@contextmanager
def plain_lines(
    write: Callable[[str], None], columns: Sequence[str] = (), every: float = LINE_EVERY
) -> Iterator[Listener]:
    """Yield a listener that writes a line per minute, for a run whose output is a file or a pipe.

    Args:
        columns: The columns of the history that the lines show beside the stationarity, where a run has them.
        every: Seconds between two lines of a computation. Its end has a line as well.
    """
    pace, values, last = paces(), dict[str, str](), dict[str, float]()

    def listen(event: Event) -> None:
        own, now = pace(event), time.monotonic()
        if columns and (rows := event.rows()):
            shown = [f"{name} {rows[-1][name]:.4g}" for name in columns if name in rows[-1]]
            values[event.what] = ", ".join(shown)
        finished = event.done >= event.total and not event.compiling
        if not finished and now - last.setdefault(event.what, now) < every:
            return
        if finished and last.get(event.what) == math.inf:
            return
        last[event.what] = math.inf if finished else now
        parts = (*event_text(event, own), values.get(event.what, ""))
        write(f"{event.what}: {', '.join(part for part in parts if part)}")

    yield listen


def notebook() -> bool:
    """Return whether this process runs a notebook, that is IPython with a kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def notebook_line(wait: float = 0.0) -> Iterator[Listener]:
    """Yield a listener that updates one line of a notebook's output. It needs no package besides IPython."""
    from IPython.display import display

    began, pace, handles = time.monotonic(), paces(), dict[str, Any]()
    shown = dict[str, float]()

    def listen(event: Event) -> None:
        now, own = time.monotonic(), pace(event)
        early = now - began < wait or (event.done < event.total and now - shown.get(event.what, -math.inf) < INTERVAL)
        if early and not (event.compiling and now - began >= wait):
            return
        shown[event.what] = now
        text = "  ".join(part for part in (event.what, *event_text(event, own)) if part)
        bar = f'<progress value="{event.done}" max="{event.total}"></progress> '
        content = {"text/plain": text, "text/html": f"<code>{bar}{escape(text)}</code>"}
        if event.what in handles:
            handles[event.what].update(content, raw=True)
        else:
            handles[event.what] = display(content, raw=True, display_id=True)

    yield listen


def shown(progress: bool | ProgressFunction | None) -> AbstractContextManager[Listener]:
    """Return a context that yields a listener: the user's own function, a bar, or one that shows nothing.

    Args:
        progress: A function of (done, total, stationarity); True: a bar; False: nothing; None: a bar in a terminal or a
            notebook, if the run takes longer than PATIENCE.
    """

    def call(event: Event) -> None:
        if callable(progress) and not event.compiling:
            progress(event.done, event.total, event.stationarity)

    if callable(progress):
        return nullcontext(call)
    wait = 0.0 if progress else PATIENCE
    if progress is not False and notebook():
        return notebook_line(wait)
    if progress or (progress is None and sys.stderr.isatty()):
        return terminal_bars(wait=wait)
    return nullcontext(lambda event: None)
