"""The cache of compiled programs: where it is, its bits, damaged entries. Freed memory goes back to the system."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpd.base import process

SCRIPT = """
import sys
import jax
from jax import monitoring
import fedpd
assert jax.config.values["jax_compilation_cache_dir"] is None, "importing fedpd changes nothing"
hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
from fedpd import algorithms, data, oracles, problems, simulate
problem = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3))
algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.3, iterations=2))
run = simulate(algorithm, problem, rounds=20, checkpoints=sys.argv[1] or None, checkpoint_every=10)
print(jax.config.values["jax_compilation_cache_dir"], len(hits) > 0, run.model.tobytes().hex())
"""


class Config:
    """JAX's configuration, as far as fedpd looks at it."""

    def __init__(self, folder: str | None = None) -> None:
        self.values: dict[str, Any] = {
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 1.0,
        }

    def update(self, name: str, value: Any) -> None:
        self.values[name] = value


def chosen_folder(monkeypatch: pytest.MonkeyPatch, before: str | None = None, **limits: int) -> Any:
    """Return the folder that JAX is told, given the one that the user has told it before."""
    config = Config(before)
    monkeypatch.setattr(process, "jax", SimpleNamespace(config=config))
    process.use_compilation_cache.__wrapped__(**limits)
    return config.values["jax_compilation_cache_dir"]


def test_it_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDPD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(chosen_folder(monkeypatch)).parent == tmp_path / "fedpd" / "xla"


def test_the_user_may_turn_it_off_move_it_or_have_one_already(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPD_CACHE", "off")
    assert chosen_folder(monkeypatch) is None
    monkeypatch.setenv("FEDPD_CACHE", str(tmp_path))
    assert Path(chosen_folder(monkeypatch)).parent == tmp_path / "xla"
    assert chosen_folder(monkeypatch, "/the/users/own") == "/the/users/own"


def test_a_folder_that_cannot_be_made_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPD_CACHE", str(tmp_path / "file"))
    assert chosen_folder(monkeypatch) is None


def test_it_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPD_CACHE", str(tmp_path))
    folder = Path(chosen_folder(monkeypatch))
    for age, name in enumerate(("new", "middle", "old")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    (folder / "empty").write_bytes(b"")
    chosen_folder(monkeypatch, most=250)
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "new"]


@pytest.mark.slow
def test_a_second_process_finds_the_programs_with_the_same_bits_and_survives_damage(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "FEDPD_"))}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # a quick machine would keep no program

    def run(checkpoints: str = "") -> tuple[str, bool, str]:
        command = [sys.executable, "-c", SCRIPT, checkpoints]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        folder, hit, bits = done.stdout.split()
        return folder, hit == "True", bits

    folder, hit, bits = run(str(tmp_path / "run"))
    assert not hit
    assert list(Path(folder).iterdir())
    max((tmp_path / "run").glob("round-*")).unlink()
    assert run(str(tmp_path / "run")) == (folder, True, bits)  # resumed at round 10, by the program from the cache
    for entry in Path(folder).iterdir():
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    assert run() == (folder, False, bits)


CODE = """
import numpy as np
from fedpd.base.process import return_large_blocks

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

def grow():
    blocks = [np.ones(2**19) for _ in range(20)]  # 4 MiB each
    last = np.ones(100)
    del blocks
    return last

grow()  # glibc now keeps such blocks
return_large_blocks()
before = anonymous()
kept = grow()
print(anonymous() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed blocks of this size")
def test_freed_blocks_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8, "of 80 MiB"
