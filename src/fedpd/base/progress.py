"""Progress events for bars, loggers and callbacks, and the functions that receive them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

PATIENCE = 2.0  # seconds after which a bar appears if the user did not ask for one

Row = dict[str, Any]


class Event(NamedTuple):
    """The progress of a run or of another computation.

    Attributes:
        what: The name of the computation: a method's label, or "measuring L".
        done: The number of rounds (or other steps) done; it has a fraction within a round.
        total: The total number of rounds (or other steps).
        stationarity: The newest stationarity of a run; NaN if there is none.
        rows: Returns the rows that the history gained since the last event, by seed.
        models: Returns the current model of the seed of each of these rows. It is the model of the row's round if the
            run has an event after every row.
        compiling: Whether JAX is compiling the program, so that no round is done for a while.
    """

    what: str
    done: float
    total: int
    stationarity: float = math.nan
    rows: Callable[[], list[Row]] = list
    models: Callable[[], list[Any]] = list
    compiling: bool = False


Listener = Callable[[Event], Any]  # True: stop the run, and return what it has so far
ProgressFunction = Callable[[Any, int, float], Any]  # the user's function: (rounds done, total, stationarity)
StepFunction = Callable[[str, int, int], Any]  # the user's function: (what, done, total)


def ends_run(answer: Any) -> bool:
    """Return whether the answer of a user's callback ends the run: True does, False and None do not.

    NumPy, JAX and PyTorch have truth values of their own, for example the result of a comparison.

    Raises:
        FedpdError: The answer is something else.
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


@contextmanager
def _user_function(progress: ProgressFunction) -> Iterator[Listener]:
    """Yield a listener that calls the user's own function."""

    def listen(event: Event) -> None:
        if not event.compiling:
            progress(event.done, event.total, event.stationarity)

    yield listen


@contextmanager
def _nothing() -> Iterator[Listener]:
    yield lambda event: None


def shown(progress: bool | ProgressFunction | None) -> AbstractContextManager[Listener]:
    """Return a context that yields a listener: the user's own function, a bar, or one that shows nothing.

    Args:
        progress: A function of (done, total, stationarity); True: a bar; False: nothing; None: a bar in a terminal or a
            notebook, if the run takes longer than PATIENCE.
    """
    if callable(progress):
        return _user_function(progress)
    from fedpd.base import bars  # they import rich or IPython

    wait = 0.0 if progress else PATIENCE
    if progress is not False and bars.notebook():
        return bars.notebook_line(wait)
    if progress or (progress is None and sys.stderr.isatty()):
        return bars.terminal_bars(wait=wait)
    return _nothing()
