"""A SuperExec that dies starts again, and ends with the process that supervises it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedpd.flower.local.programs import find_superexecs
from fedpd.flower.warm import supervisor
from fedpd.flower.warm.program import superexec_command

ADDRESS = "127.0.0.1:1"  # nobody listens there: a SuperExec asks again and again


def soon(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def count_starts(path: Path, end: str) -> list[str]:
    """Return a program that counts its starts in a file; on the third start it ends with code 0."""
    code = f"import os, signal; file = open({str(path)!r}, 'a'); file.write('x'); file.flush()"
    return [sys.executable, "-c", f"{code}\nif file.tell() < 3: {end}"]


@pytest.mark.parametrize(
    ("end", "why"),
    [("raise SystemExit(1)", "exit code 1"), ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9")],
)
def test_a_program_that_dies_starts_again_after_growing_pauses(
    end: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(supervisor.time, "sleep", pauses.append)
    assert supervisor.supervise(count_starts(tmp_path / "starts", end)) == 0
    assert (tmp_path / "starts").read_text() == "xxx"
    assert pauses == [1.0, 2.0]
    assert f"The SuperExec ended with {why}. It starts again in 2 s." in capsys.readouterr().err


def test_pauses_are_bounded_and_short_again_after_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, ran = iter([1, 1, 1, 1, 0]), iter([1.0, 1.0, 1.0, 99.0, 1.0])
    clock, pauses = [0.0], list[float]()

    def run(command: object) -> int:
        clock[0] += next(ran)
        return next(codes)

    monkeypatch.setattr(supervisor, "run", run)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supervisor.time, "sleep", pauses.append)
    assert supervisor.supervise([], first=1.0, longest=2.0) == 0
    assert pauses == [1.0, 2.0, 2.0, 1.0]


def test_a_wrong_command_line_ends_with_its_message() -> None:
    done = subprocess.run([*superexec_command(), "--colour"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("wb") as file:
        command = [*superexec_command(), "--insecure", "--runtime-api-address", ADDRESS]
        running = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(20)


def superexec() -> int | None:
    return find_superexecs().get(ADDRESS)


def test_a_killed_superexec_starts_again_and_ends_with_its_supervisor(supervised: subprocess.Popen[bytes]) -> None:
    first = soon(superexec)
    assert psutil.Process(first).ppid() == supervised.pid
    os.kill(first, signal.SIGKILL)
    second = soon(lambda: superexec() not in (None, first) and superexec())
    supervised.terminate()
    assert supervised.wait(20) == 0
    assert not psutil.pid_exists(second)
    assert superexec() is None


def test_a_superexec_does_not_outlive_a_killed_supervisor(supervised: subprocess.Popen[bytes]) -> None:
    child = psutil.Process(soon(superexec))
    soon(lambda: child.num_threads() > 1)  # it watches its parent
    supervised.kill()
    supervised.wait(20)
    soon(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_superexec_of_a_supernode_ends_with_the_supernode() -> None:
    assert supervisor.with_parent(["--parent-pid", "7"]) == ["--parent-pid", "7"]
    assert supervisor.with_parent(["--insecure"]) == ["--insecure", "--parent-pid", str(os.getpid())]
