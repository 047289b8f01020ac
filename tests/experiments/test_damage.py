"""Damaged run folders: every command ends with a result or a sentence, and a resumed run is never a wrong one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedpd
from fedpd import FedpdError, report
from fedpd.experiments import recorded, run_folder, runner
from tests.experiments.test_loading import TEXT

Damage = Callable[[Path, Path, int], None]  # (the file, another file, a random number)


def truncate(path: Path, other: Path, number: int) -> None:
    path.write_bytes(path.read_bytes()[: number % (path.stat().st_size + 1)])


def flip(path: Path, other: Path, number: int) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[number % len(content)] ^= 1 << number % 8
    path.write_bytes(content)


def append(path: Path, other: Path, number: int) -> None:
    path.write_bytes(path.read_bytes() + bytes(number % 100 + 1))


def exchange(path: Path, other: Path, number: int) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def delete(path: Path, other: Path, number: int) -> None:
    path.unlink()


def empty(path: Path, other: Path, number: int) -> None:
    path.write_bytes(b"")


def become_a_pipe(path: Path, other: Path, number: int) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_folder(path: Path, other: Path, number: int) -> None:
    path.unlink()
    path.mkdir()


def become_a_link_to_nothing(path: Path, other: Path, number: int) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nothing"))


def become_a_link_to_itself(path: Path, other: Path, number: int) -> None:
    path.unlink()
    path.symlink_to(path)


DAMAGES = (
    truncate,
    flip,
    append,
    exchange,
    delete,
    empty,
    become_a_pipe,
    become_a_folder,
    become_a_link_to_nothing,
    become_a_link_to_itself,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_folder.create(folder, TEXT.format(seeds="0"))
    runner.run(runner.open_folder(folder), folder, lambda event: None)
    return folder


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


def histories(folder: Path) -> dict[tuple[str, int], dict[str, list[float]]]:
    found = run_folder.read_histories(folder)
    return {key: {name: column.tolist() for name, column in history.items()} for key, history in found.items()}


def sentence(call: Callable[[], object]) -> str | None:
    """Return the error message of a call; None if it has a result."""
    try:
        call()
    except FedpdError as error:
        return str(error)
    return None


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(damage=st.sampled_from(DAMAGES), place=st.integers(0, 99), number=st.integers(0, 2**20), twice=st.booleans())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_folder_ends_in_a_result_or_a_sentence(
    whole: Path, copies: Path, damage: Damage, place: int, number: int, twice: bool
) -> None:
    folder = copies / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    expected, path = histories(whole), files[place % len(files)]
    damage(path, files[(place + 1) % len(files)], number)
    if twice and path.is_file():
        flip(path, path, number // 8)
    sentences = [sentence(partial(look, folder)) for look in (recorded.read, fedpd.load, report.figure)]
    sentences.append(sentence(lambda: runner.run(runner.open_folder(folder), folder, lambda event: None)))
    assert all(text is None or text.endswith((".", "?")) for text in sentences)
    if sentences[-1] is None and (folder / "experiment.toml").read_text() == (whole / "experiment.toml").read_text():
        assert histories(folder) == expected


def test_a_resumed_run_removes_what_killed_processes_left(whole: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for place in (folder, folder / "models", next((folder / "checkpoints").iterdir())):
        (place / f".file.{dead.pid}.tmp").touch()
    runner.run(runner.open_folder(folder), folder, lambda event: None)
    assert not list(folder.rglob("*.tmp"))


def test_a_full_disk_is_a_sentence(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    run_folder.create(folder, TEXT.format(seeds="0"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedpdError, match="No space left on device"):
        runner.run(runner.open_folder(folder), folder, lambda event: None)
    monkeypatch.undo()
    runner.run(runner.open_folder(folder), folder, lambda event: None)
    assert histories(folder) == histories(whole)
    assert np.array_equal(fedpd.load_model(folder, method="FedPD"), fedpd.load_model(whole, method="FedPD"))
