"""Processes are ended by their pid and start time, and no others."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedpd.checks import FedpdError
from fedpd.flower.local.programs import Member, _session, end, find, start, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    "print('started', flush=True); time.sleep(60)",
]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]


def run(folder: Path, command: list[str], name: str = "one") -> Member:
    return start(Member(name, command, str(folder), str(folder / f"{name}.log")), os.environ, folder)


def says(member: Member, word: str) -> bool:
    return word in Path(member.log).read_text()


def test_a_process_and_what_it_started_end(tmp_path: Path) -> None:
    member = run(tmp_path, PARENT)
    wait_until(lambda: says(member, "started"), member, 30, "ready")
    (child,) = psutil.Process(member.pid).children()
    assert end([member]) == ["one"]
    assert find(member) is None
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert end([member]) == []


def test_what_a_dead_child_has_left_ends_too(tmp_path: Path) -> None:
    """As a ServerApp whose SuperExec was killed: it is a child of another process now, but in the same session."""
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    code = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {leaves!r}]); print('left', flush=True)"
    )
    member = run(tmp_path, [sys.executable, "-c", f"{code}; time.sleep(60)"])
    wait_until(lambda: says(member, "left"), member, 30, "ready")
    (left,) = (one for one in psutil.process_iter() if _session(one) == member.pid != one.pid)
    assert left.pid not in [child.pid for child in psutil.Process(member.pid).children(recursive=True)]
    assert end([member]) == ["one"]
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    member = run(tmp_path, STUBBORN)
    wait_until(lambda: says(member, "deaf"), member, 30, "ready")
    assert end([member], grace=0.3) == ["one"]
    assert find(member) is None


def test_a_pid_that_somebody_else_has_now_is_left_alone(tmp_path: Path) -> None:
    member = run(tmp_path, SLEEP)
    try:
        other = member._replace(started=member.started - 3600)
        assert find(other) is None
        assert end([other]) == []
        assert find(member) is not None
    finally:
        end([member])


def test_the_error_for_a_process_that_ends_too_early_shows_its_log(tmp_path: Path) -> None:
    member = run(tmp_path, [sys.executable, "-c", "print('no such port'); raise SystemExit(1)"])
    with pytest.raises(FedpdError, match=r"(?s)one ended before it was ready.*no such port"):
        wait_until(lambda: False, member, 30, "ready")


def test_a_process_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    member = run(tmp_path, SLEEP)
    try:
        began = time.monotonic()
        with pytest.raises(FedpdError, match=r"one was not ready within 0.2 s"):
            wait_until(lambda: False, member, 0.2, "ready")
        assert time.monotonic() - began < 10
    finally:
        end([member])
