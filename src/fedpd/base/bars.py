"""Bars: they show progress in a terminal or in a notebook."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpd.base.progress import Event, Listener

if TYPE_CHECKING:
    from rich.console import Console

INTERVAL = 0.2  # seconds between two updates of a notebook


class Pace(NamedTuple):
    """When something was how far for the first time, by which its speed is measured."""

    seconds: float
    done: float

    def rate(self, done: float) -> str:
        """Return what is done per second, or "" as long as that is not known."""
        seconds = time.monotonic() - self.seconds
        if done <= self.done or seconds <= 0:
            return ""
        speed = (done - self.done) / seconds
        return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"

    def left(self, done: float, total: float) -> str:
        """Return how long the rest takes at the same speed, or "" as long as that is not known."""
        if done <= self.done or done >= total:
            return ""
        seconds = (time.monotonic() - self.seconds) * (total - done) / (done - self.done)
        return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"


class Told(NamedTuple):
    """An event in words."""

    how_far: str
    note: str


def in_words(event: Event, pace: Pace, alone: bool = True) -> Told:
    """Return how far something is, and what else there is to say of it.

    Args:
        event: How far it is.
        pace: When it began.
        alone: Whether nothing else is shown, so that the time that is left belongs here.
    """
    is_run = event.compiling or not math.isnan(event.stationarity)
    how_far = f"{event.done:,.0f}/{event.total:,}" + (" rounds" if alone and is_run else "")
    if event.compiling and event.done < event.total:
        return Told(how_far, "compiling")
    left = pace.left(event.done, event.total) if alone else ""
    stationarity = "" if math.isnan(event.stationarity) else f"‖∇f‖² {event.stationarity:.2e}"
    rate = pace.rate(event.done) if is_run else ""
    return Told(how_far, " ".join(part for part in (rate, left, stationarity) if part))


def paces() -> Callable[[Event], Pace]:
    """Return a function that remembers when each thing began; compiling does not count."""
    known: dict[str, Pace] = {}

    def pace(event: Event) -> Pace:
        now = Pace(time.monotonic(), event.done)
        return now if event.compiling else known.setdefault(event.what, now)

    return pace


@contextmanager
def terminal_bars(
    console: "Console | None" = None, labels: Sequence[str] = (), total: int = 0, wait: float = 0.0
) -> Iterator[Listener]:
    """Yield a listener that draws a bar for each thing, and one more with the time that is left for all of them.

    Args:
        console: Where to draw; None: standard error.
        labels: What there is to do, as far as that is known; everything else gets a bar when it begins.
        total: What there is to do of each of them, e.g. rounds.
        wait: Seconds before anything is drawn.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    display = Progress(
        TextColumn("{task.description:.28}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told].how_far}", justify="right", markup=False),
        TextColumn("{task.fields[told].note}", markup=False),
        console=console or Console(stderr=True),
    )
    began, pace, done = time.monotonic(), paces(), dict.fromkeys(labels, 0.0)
    tasks = {label: display.add_task(label, total=total, told=Told("", "")) for label in labels}
    everything, first = total * len(labels), list[Pace]()
    whole = display.add_task("all methods", total=everything, told=Told("", "")) if len(labels) > 1 else None

    def listen(event: Event) -> None:
        if not display.live.is_started and time.monotonic() - began >= wait:
            display.start()
        if event.what not in tasks:
            tasks[event.what] = display.add_task(event.what, total=event.total, told=Told("", ""))
        told = in_words(event, pace(event), alone=whole is None)
        display.update(tasks[event.what], completed=event.done, total=event.total, told=told)
        if whole is not None and event.what in done:
            done[event.what] = event.done
            finished = sum(done.values())
            if not first:  # what an earlier session did does not count
                first.append(Pace(began, finished))
            left = first[0].left(finished, everything)
            told = Told(f"{finished:,.0f}/{everything:,}", f"rounds, {left}" if left else "rounds")
            display.update(whole, completed=finished, told=told)

    if wait == 0:
        display.start()
    try:
        yield listen
    finally:
        display.stop()


def notebook() -> bool:
    """Return whether this is a notebook: IPython with a kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def notebook_line(wait: float = 0.0) -> Iterator[Listener]:
    """Yield a listener that keeps one line of a notebook's output up to date; nothing needs to be installed for it."""
    from IPython.display import display

    began, pace, handles = time.monotonic(), paces(), dict[str, Any]()
    shown = dict[str, float]()

    def listen(event: Event) -> None:
        now, own = time.monotonic(), pace(event)
        early = now - began < wait or (event.done < event.total and now - shown.get(event.what, -math.inf) < INTERVAL)
        if early and not (event.compiling and now - began >= wait):
            return
        shown[event.what] = now
        told = in_words(event, own)
        text = "  ".join(part for part in (event.what, *told) if part)
        bar = f'<progress value="{event.done}" max="{event.total}"></progress> '
        content = {"text/plain": text, "text/html": f"<code>{bar}{escape(text)}</code>"}
        if event.what in handles:
            handles[event.what].update(content, raw=True)
        else:
            handles[event.what] = display(content, raw=True, display_id=True)

    yield listen
