"""Ends a warm process that would wait in vain: for the arrays of a message, or for a SuperNode that has ended."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

LOOK_SECONDS = 0.5  # the interval of the checks whether the next message waits, and whether the SuperNode lives
GRACE_SECONDS = 1.0  # for the arrays of a message when the next one waits; less than the shim's READY_SECONDS
END_SECONDS = 5.0  # for this process to end by itself after its SuperNode has ended


@contextmanager
def leaving_if_superseded(server: socket.socket | None, leave: Callable[[int], object] = os._exit) -> Iterator[None]:
    """End this process if the next message waits at `server` and this block does not end soon.

    A SuperNode has the arrays of one message before it takes the next, unless the run of the first has ended. So a
    process that still waits for arrays when the next message comes would wait in vain, for up to two hours.

    Args:
        server: The socket for further messages; None: there will be none.
        leave: Ends this process.
    """
    pulled = threading.Event()

    def watch(server: socket.socket) -> None:
        while not pulled.wait(LOOK_SECONDS):
            if select.select([server], [], [], 0)[0] and not pulled.wait(GRACE_SECONDS):
                leave(1)
                return

    if server is not None:
        threading.Thread(target=watch, args=(server,), daemon=True).start()
    try:
        yield
    finally:
        pulled.set()


def end_with(parent: int) -> None:
    """End this process when another one ends, whatever it waits for."""

    def watch() -> None:
        while psutil.pid_exists(parent):
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)  # a signal that this thread raised would not interrupt the first one
        time.sleep(END_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
