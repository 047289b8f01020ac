"""`fedpd start`: it follows a run to its end, and says by its exit code how the run ended."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpd import FedpdError
from fedpd.cli import app as command_line
from fedpd.flower.local import programs, start

LOG = ("INFO :      Starting logstream for run_id `7`", "INFO :      Round 1 of 2", "INFO :      Round 2 of 2")
DOWN = "the SuperLink is down"


class Federation:
    """A SuperLink with run 7, whose states follow one another with every question."""

    def __init__(self, folder: Path, *states: str, logs: tuple[tuple[str, ...], ...] = (LOG,)) -> None:
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").touch()
        (folder / "app").mkdir()
        (folder / "app" / "pyproject.toml").touch()
        self.folder, self.states, self.logs, self.asked = folder, list(states), list(logs), list[tuple[str, ...]]()

    def flwr(self, home: Path, *arguments: str) -> Any:
        self.asked.append(arguments)
        if arguments[0] == "run":
            return {"run-id": "7"}
        if arguments[-1] not in ("7", programs.CONNECTION):
            raise FedpdError("flwr list failed: [code: 16] Run ID not found.")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == DOWN:
            raise FedpdError("flwr list failed: Connection refused")
        details = "an error of the app" if state == "finished:failed" else "N/A"
        times = {"7": "2026-01-02", "5": "2026-01-01"}
        if "--run-id" in arguments:
            return {"runs": [{"run-id": "7", "status": state, "status-details": details}]}
        return {"runs": [{"run-id": run, "pending-at": time} for run, time in times.items()]}

    def stream(self, home: Path, run: str) -> Iterator[str]:
        assert run == "7"
        yield from self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]

    def invoke(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(programs, "flwr", self.flwr)
        monkeypatch.setattr(start, "_stream", self.stream)
        monkeypatch.setattr(start.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(start.follow, "__defaults__", (lambda seconds: None,))
        given = ["start", *words, "--dir", str(self.folder)]
        result = CliRunner().invoke(command_line, given, catch_exceptions=False)
        return result.exit_code, result.output.splitlines()


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("finished:completed", 0, "The run is complete."),
        ("finished:failed", 1, "The run failed (an error of the app). Repair the cause"),
        ("finished:stopped", 1, "The run was stopped. Repair the cause"),
    ],
)
def test_the_exit_code_says_how_the_run_ended(
    state: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path, "pending", "running", state)
    found, lines = federation.invoke(monkeypatch, str(tmp_path / "app"), "-c", "rounds=2", "-c", "p=0.5")
    assert found == code
    assert lines[0].startswith("Run 7. Ctrl-C does not end it; follow it again: fedpd start --attach 7 --dir")
    assert lines[1:3] == ["Round 1 of 2", "Round 2 of 2"]
    assert lines[3].startswith(said)
    assert ("run", str(tmp_path / "app"), programs.CONNECTION, "--run-config", "rounds=2 p=0.5") in federation.asked


def test_every_line_is_shown_once_though_the_superlink_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ("running", DOWN, DOWN, "running", "finished:completed")
    federation = Federation(tmp_path, *states, logs=(LOG[:2], LOG, LOG))
    code, lines = federation.invoke(monkeypatch, "--attach", "7")
    assert code == 0
    wanted = ["Round 1 of 2", "The SuperLink does not answer", "Round 2 of 2", "The run is complete."]
    assert [line[: len(start)] for line, start in zip(lines[1:], wanted, strict=True)] == wanted


def test_a_run_that_nobody_takes_is_worth_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, *["pending"] * 30, "running", "finished:completed")
    _, lines = federation.invoke(monkeypatch, "--attach", "7")
    assert sum("fedpd status shows whether the SuperExec runs" in line for line in lines) == 1


def test_flower_is_asked_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo -u fedpd fedpd doctor` failed in a folder of another user: Flower looked there for an app named "fedpd"."""
    home, program = tmp_path / "flwr", tmp_path / "bin" / "flwr"
    for folder in (home, program.parent):
        folder.mkdir()
    program.write_text('#!/bin/sh\nprintf \'{"folder": "%s"}\' "$PWD"\n')
    program.chmod(0o700)
    monkeypatch.setattr(programs, "bin_folder", lambda: program.parent)
    monkeypatch.chdir(tmp_path)
    assert programs.flwr(home, "list", programs.CONNECTION) == {"folder": str(home)}
    assert list(start._stream(home, "7")) == [f'{{"folder": "{home}"}}']


def test_the_newest_run_is_the_one_that_was_started_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, "finished:completed")
    assert federation.invoke(monkeypatch, "--attach", "newest")[1][0].startswith("Run 7.")


def test_after_ctrl_c_it_says_how_to_attach_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, "running")

    def interrupted(home: Path, run: str) -> Iterator[str]:
        yield LOG[1]
        raise KeyboardInterrupt

    monkeypatch.setattr(federation, "stream", interrupted)
    code, lines = federation.invoke(monkeypatch, "--attach", "7")
    assert code == 130
    assert lines[-1].startswith("The run continues. Follow it: fedpd start --attach 7 --dir")


def test_wrong_uses_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, "running")
    for words, message in (
        ((), "either APP"),
        ((str(tmp_path / "app"), "--attach", "7"), "either APP"),
        ((str(tmp_path),), "has no pyproject.toml"),
        (("--attach", "3"), "'3': is not a run of this federation"),
    ):
        with pytest.raises(FedpdError, match=message):
            federation.invoke(monkeypatch, *words)
    federation.folder = tmp_path / "app"
    with pytest.raises(FedpdError, match="has no flwr/config"):
        federation.invoke(monkeypatch, "--attach", "7")
