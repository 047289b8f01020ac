"""A file is the old one or the new one, and nothing else is left behind."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from fedpd import FedpdError
from fedpd.base.atomic import check_replaceable, held, make_folder, nameless_file, replace_file


def test_a_new_file_appears_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one" / "model.bin"
    with replace_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    with replace_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path, error: type[BaseException]) -> None:
    with replace_file(path) as file:
        file.write(b"half of the new")
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_no_temporary(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_before_there_was_a_file_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write_half(tmp_path / "model.bin", RuntimeError)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fedpd_did_not_write_is_never_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    check_replaceable(path, b"mark")
    path.write_bytes(b"my own page")
    link.symlink_to(tmp_path / "nowhere")
    for taken in (path, link, tmp_path):
        with pytest.raises(FedpdError, match=r"a file of this name exists\. Choose another name"):
            check_replaceable(taken, b"mark")
    path.write_bytes(b"<html> mark")
    check_replaceable(path, b"mark")
    with pytest.raises(FedpdError, match="a file of this name exists"):
        check_replaceable(path)


@pytest.mark.parametrize("name", ["file", "file/below", "zero\0byte", "long" * 100])
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FedpdError, match=r"cannot be a folder .* Choose another folder"):
        make_folder(tmp_path / name)


def test_a_folder_in_which_no_file_can_be_made(tmp_path: Path) -> None:
    with nameless_file(tmp_path / "new") as file:
        file.write(b"x")
        assert list((tmp_path / "new").iterdir()) == []
    refusal = OSError(30, "Read-only file system")
    with (
        patch("tempfile.TemporaryFile", side_effect=refusal),
        pytest.raises(FedpdError, match=r"no file can be made in it \(Read-only file system\)"),
    ):
        nameless_file(tmp_path)


HOLD = """
import sys
from pathlib import Path
from fedpd.base.atomic import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(FedpdError, match=r"run: another process is writing to this folder\. Wait until"),
            held(tmp_path / "run"),
        ):
            pass
        first.kill()
    with held(tmp_path / "run"):
        pass


def test_unfinished_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, user = tmp_path / f".history.parquet.{dead.pid}.tmp", tmp_path / "notes.1.tmp"
    alive = tmp_path / ".history.parquet.1.tmp"
    for path in (left, user, alive):
        path.touch()
    with held(tmp_path):
        assert sorted(tmp_path.iterdir()) == sorted([user, alive])


def test_the_number_of_a_killed_process_may_belong_to_another_one(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ".a.safetensors.1.tmp").touch()  # process 1 always runs
    with held(tmp_path, tmp_path / "models"):
        assert not list((tmp_path / "models").iterdir())


def test_what_safetensors_left_is_removed_where_only_fedpd_writes(tmp_path: Path) -> None:
    """Its `save_file` writes to a name of its own first."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ".tmpgdEEp4").touch()
    user = tmp_path / ".tmpgdEEp4"
    user.touch()
    with held(tmp_path, tmp_path / "models"):
        assert not list((tmp_path / "models").iterdir())
        assert user.exists()
