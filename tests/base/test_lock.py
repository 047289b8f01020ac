"""One process holds a folder at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedpd import FedpdError
from fedpd.base.lock import held

HOLD = """
import sys
from pathlib import Path
from fedpd.base.lock import held
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
