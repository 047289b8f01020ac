"""The test suite itself: -x ends all workers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import time
import pytest

@pytest.mark.parametrize("i", range(60))
def test_many(i):
    time.sleep(0.1)
    assert i != 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(("option", "most"), [("-x", 30), ("--maxfail=2", 62)])
def test_a_failure_stops_all_workers(option: str, most: int, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_many.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FEDPD_TEST"))}
    command = [sys.executable, "-m", "pytest", option, "--numprocesses", "2", "--dist", "worksteal", "-rA", "-q"]
    done = subprocess.run(command, cwd=tmp_path, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "1 failed" in done.stdout
    assert done.stdout.count("PASSED") < most, done.stdout
    assert ("stopping after 1 failures" in done.stdout) == (option == "-x"), done.stdout
