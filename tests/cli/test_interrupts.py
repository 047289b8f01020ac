"""Ctrl-C ends a command with code 130 and a sentence, at any moment, and leaves a run that can be resumed."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpd.base.interrupts import in_order

TEXT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = 1000000
checkpoint_every = 256

[[algorithm]]
name = "fedavg"
oracle = { name = "gd", step = 0.3, iterations = 2 }
"""


def interrupted(command: list[str], wait: float, file: Path | None = None) -> tuple[int, str]:
    """Return the code and the output of a command that is interrupted after some time, or when a file appears."""
    with subprocess.Popen(
        [sys.executable, "-m", "fedpd", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        until = time.monotonic() + 60
        while file is not None and not any(file.parent.rglob(file.name)) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output


@pytest.mark.slow
def test_while_it_imports(tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "slow.py").write_text(f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(60)\n")
    (tmp_path / "file.toml").write_text(TEXT.replace('"fedavg"', '"slow:method"'))
    code, output = interrupted(["run", str(tmp_path / "file.toml"), "--out", str(tmp_path / "run")], 0.1, started)
    assert (code, output.strip().splitlines()[-1]) == (130, "Interrupted.")
    assert "Traceback" not in output


def test_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(TEXT)
    folder = tmp_path / "run"
    code, output = interrupted(
        ["run", str(tmp_path / "file.toml"), "--out", str(folder)], 0.1, folder / "round-*.safetensors"
    )
    assert (code, output.strip().splitlines()[-1]) == (130, f"Interrupted. Resume it: fedpd resume {folder}")


def test_an_interrupt_that_a_library_ignored_is_raised_again() -> None:
    with in_order() as check:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
