"""The `flwr-clientapp` that hands a message to a warm process, with a thread in place of that process."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpd.flower.warm import process, shim
from fedpd.flower.warm.program import write_programs

ARGUMENTS = ["--runtime-api-address", "127.0.0.1:1", "--token", "abc", "--parent-pid", "77"]


class RanError(Exception):
    """The command that would have replaced this process."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / ("deep" * 40)))  # longer than the path of a socket may be

    def run(program: str, arguments: list[str]) -> None:
        raise RanError(program, *arguments)

    monkeypatch.setattr(shim, "run", run)


def answer(act: Callable[[socket.socket], object]) -> threading.Thread:
    """Start a warm process that accepts one connection and does `act`."""
    server = process.listen(shim.socket_path(ARGUMENTS))
    assert server is not None

    def serve() -> None:
        with server, server.accept()[0] as connection:
            act(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_first_message_makes_this_process_the_warm_one() -> None:
    with pytest.raises(RanError) as ran:
        shim.main("/flower", ARGUMENTS)
    assert ran.value.args[1:4] == ("-m", "fedpd.flower.warm.process", "/flower")
    assert list(ran.value.args[4:]) == ARGUMENTS


@pytest.mark.parametrize(("sign", "code"), [(shim.DONE, 0), (shim.FAILED, 1), (b"", 1)])
def test_a_warm_process_gets_the_arguments_and_decides_the_exit_code(sign: bytes, code: int) -> None:
    taken: list[str] = []

    def act(connection: socket.socket) -> None:
        connection.sendall(shim.READY)
        taken.append(process._read(connection))
        connection.sendall(shim.TAKEN + sign)

    thread = answer(act)
    assert shim.main("/flower", ARGUMENTS) == code  # b"": it died with the message, and Flower's server sends it again
    thread.join()
    assert taken == ["\0".join(ARGUMENTS)]


def test_flowers_own_program_runs_if_the_warm_process_dies_before_it_takes_the_message() -> None:
    def die(connection: socket.socket) -> None:
        connection.sendall(shim.READY)
        connection.recv(1)

    thread = answer(die)
    with pytest.raises(RanError, match="/flower"):
        shim.main("/flower", ARGUMENTS)
    thread.join()


def test_flowers_own_program_runs_if_the_warm_process_is_busy() -> None:
    release = threading.Event()
    thread = answer(lambda connection: release.wait(5.0))
    with pytest.raises(RanError, match="/flower"):
        shim.main("/flower", ARGUMENTS, seconds=0.2)
    release.set()
    thread.join()


@pytest.mark.parametrize("how", ["environment", "installs", "alone"])
def test_flowers_own_program_runs_where_a_warm_process_would_not_do(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = list(ARGUMENTS)
    if how == "environment":
        monkeypatch.setenv("FEDPD_WARM", "0")
    elif how == "installs":
        arguments.append("--allow-runtime-dependency-installation")
    else:
        arguments = arguments[:-2]
    with pytest.raises(RanError) as ran:
        shim.main("/flower", arguments)
    assert ran.value.args == ("/flower", *arguments)


def test_only_one_process_is_warm() -> None:
    first = process.listen(shim.socket_path(ARGUMENTS))
    assert first is not None
    with first:
        assert process.listen(shim.socket_path(ARGUMENTS)) is None


def test_the_programs_start_without_site_packages(tmp_path: Path) -> None:
    folder = write_programs(tmp_path / "bin")
    text = (folder / "flwr-clientapp").read_text()
    own = text.split()[-2]
    assert os.access(own, os.X_OK)  # Flower's own program exists
    assert "-IS" in text
    fake = tmp_path / "flower"
    fake.write_text('#!/bin/sh\necho cold "$@"\n')
    fake.chmod(0o700)
    (folder / "flwr-clientapp").write_text(text.replace(own, str(fake)))
    done = subprocess.run(
        [folder / "flwr-clientapp", "--token", "x y"], env={"FEDPD_WARM": "0"}, capture_output=True, check=True
    )
    assert done.stdout == b"cold --token x y\n"
