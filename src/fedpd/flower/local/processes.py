"""Background processes, which continue after the command that started them, and end by their pid and start time.

A pid alone is not enough: after a crash or a restart of the machine it may belong to another process.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from fedpd.base.checks import FedpdError

TAIL = 15  # lines of a log in an error message
GRACE = 10.0  # seconds that a process has to end by itself before it is killed
POLL = 0.1
CLOCK_STEP = 2.0  # seconds by which a start time may change when the system's clock is set

_STARTED: list[subprocess.Popen[bytes]] = []  # the child processes, whose exit codes this process must read


class Member(NamedTuple):
    """A process of a federation.

    Attributes:
        name: Its name in messages and logs.
        command: The command that starts it.
        home: Its FLWR_HOME.
        log: The file with its output.
        pid: Its process id; 0: it has not been started.
        started: Its start time as the system reports it.
    """

    name: str
    command: list[str]
    home: str
    log: str
    pid: int = 0
    started: float = 0.0


def start(member: Member, environment: Mapping[str, str], folder: Path) -> Member:
    """Start a process in this folder and in its own session, so that Ctrl-C here does not end it."""
    with Path(member.log).open("wb") as file:
        process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            umask=0o077 if os.name == "posix" else -1,  # databases, states and results are their owner's alone
        )
    _STARTED.append(process)
    try:
        started = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:  # it has ended already, and `wait_until` will report it
        started = 0.0
    return member._replace(pid=process.pid, started=started)


def find(member: Member) -> psutil.Process | None:
    """Return the process if it still runs, else None."""
    if not member.pid:
        return None
    try:
        process = psutil.Process(member.pid)
        same = abs(process.create_time() - member.started) < CLOCK_STEP
    except psutil.NoSuchProcess:
        return None
    return process if same and _runs(process) else None


def wait_until(ready: Callable[[], bool], member: Member, seconds: float, what: str) -> None:
    """Wait until `ready()`.

    Raises:
        FedpdError: If the process ended before, or took too long; the message shows the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if find(member) is None:
            raise FedpdError(f"{member.name} ended before it was {what}. Its log ends:\n{tail(member)}")
        if time.monotonic() > deadline:
            raise FedpdError(f"{member.name} was not {what} within {seconds:g} s. Its log ends:\n{tail(member)}")
        time.sleep(POLL)


def tail(member: Member) -> str:
    """Return the last lines of a process's log."""
    lines = Path(member.log).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-TAIL:]) or "    (nothing)"


def end(members: Iterable[Member], grace: float = GRACE) -> list[str]:
    """End these processes and their children; return the names of the processes that were still running."""
    running = [(member, process) for member in members if (process := find(member)) is not None]
    heads = [process for _, process in running]
    children = [child for process in heads for child in _children(process)]
    remaining = _signal_and_wait(psutil.Process.terminate, heads, grace)
    remaining += _signal_and_wait(psutil.Process.terminate, children, grace)  # most have ended with their parents
    _signal_and_wait(psutil.Process.kill, remaining, grace)
    return [member.name for member, _ in running]


def _signal_and_wait(
    signal: Callable[[psutil.Process], None], processes: list[psutil.Process], grace: float
) -> list[psutil.Process]:
    """Send a signal, wait, and return the processes that still run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signal(process)
    deadline = time.monotonic() + grace
    while (processes := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(POLL)
    return processes


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs.

    The system may list an ended process until its parent reads its exit code, so this function reads it if this process
    is the parent. The system also lists a process as ended when only its first thread has ended; its parent gets the
    exit code after the last thread.
    """
    if any(held.poll() is None and held.pid == process.pid for held in _STARTED):
        return True
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Return what a process of `start` has started, also what a child that has died has left in its session."""
    try:
        own = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return own + [one for one in psutil.process_iter() if _session(one) == process.pid and one not in (process, *own)]


def _session(process: psutil.Process) -> int:
    """Return the number of a process's session, which is the pid of the process that began it; 0: unknown."""
    with suppress(OSError, AttributeError):  # it has ended; this system has no sessions
        return os.getsid(process.pid)
    return 0
