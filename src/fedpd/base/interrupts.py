"""Ctrl-C. A command ends at once, or, while it runs something that can be resumed, in order; always with code 130.

Neither way lets Python shut down. A thread may still be compiling then, and Python would wait for it or crash.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

CODE = 130
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


def end_at_once(*_: Any) -> NoReturn:
    """End the process. Files are complete or missing, so nothing is left half-written."""
    if sys.stdout.isatty():
        sys.stdout.write(SHOW_CURSOR)
    sys.stderr.write("\nInterrupted.\n")
    leave()


def leave() -> NoReturn:
    """End the process with code 130, after what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(CODE)


@contextmanager
def in_order() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C into KeyboardInterrupt during a block.

    Yields:
        A function to call now and then. It raises KeyboardInterrupt again if Ctrl-C was pressed and the first one was
        lost, e.g. in a callback of a library that ignores exceptions.
    """
    pressed = threading.Event()

    def interrupt(*_: Any) -> NoReturn:
        pressed.set()
        raise KeyboardInterrupt

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives Ctrl-C
        yield check
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
