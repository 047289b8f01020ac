"""Settings for Flower in tests: no telemetry, no installation, and clients keep their state in the test's folder."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

os.environ["FLWR_HOME"] = tempfile.mkdtemp(prefix="fedpd-flwr-")
atexit.register(shutil.rmtree, os.environ["FLWR_HOME"], ignore_errors=True)
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPD_STATE", str(tmp_path / "clients"))
