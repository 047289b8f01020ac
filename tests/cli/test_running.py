"""The commands for a federation that is running."""

import os
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from fedpd.checks import FedpdError
from fedpd.cli import app
from fedpd.flower import local
from fedpd.flower.local import LocalFederation
from fedpd.flower.local.processes import Member
from fedpd.flower.local.programs import ADDRESS


def test_status_says_that_no_run_can_start_without_a_superexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = Member("superlink", [], "", "link.log", os.getpid(), psutil.Process().create_time())
    members = (alive, Member("superexec", [], "", "exec.log"), Member("supernode-0", [], "", "node.log"))
    monkeypatch.setattr(local, "read", lambda folder: LocalFederation(folder, 1, 1234, 1234, members))
    said = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)])
    assert said.exit_code == 1
    assert f"superlink: runs, process {os.getpid()}" in said.output
    assert "superexec: does not run; no run can start, and `flwr run` waits without a word" in said.output
    assert "supernode-0: does not run; its client is absent" in said.output
    assert f"fedpd up --agents 1 --dir {tmp_path}" in said.output
    monkeypatch.setattr(local, "read", lambda folder: LocalFederation(folder, 0, 1234, 1234, (alive,)))
    assert CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).exit_code == 0


def test_status_says_that_a_client_waits_for_its_superexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid(), psutil.Process().create_time()
    server = Member("superexec", [ADDRESS, "127.0.0.1:5"], "", "exec.log", *here)
    members = server, Member("supernode-0", ["--port", "7"], "", "node.log", *here)
    monkeypatch.setattr(local, "read", lambda folder: LocalFederation(folder, 1, 5, 5, members))
    monkeypatch.setattr("fedpd.flower.local.federation.find_superexecs", lambda: {"127.0.0.1:5": 1})
    said = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)])
    assert said.exit_code == 1
    assert "superexec: runs" in said.output
    assert "supernode-0: its SuperExec has died and starts again; until then, its client is absent" in said.output
    assert "Its log: node.log" in said.output
    assert "Start it again" not in said.output
    monkeypatch.setattr("fedpd.flower.local.federation.find_superexecs", lambda: {"127.0.0.1:5": 1, "127.0.0.1:7": 2})
    assert CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).exit_code == 0


def test_status_of_another_folder(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="holds no federation"):
        CliRunner().invoke(app, ["status", "--dir", str(tmp_path)], catch_exceptions=False)


def test_warm_writes_programs_and_says_where(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["warm", str(tmp_path / "bin")])
    assert said.output == f"{tmp_path / 'bin'}\n"
    written = sorted(path.name for path in (tmp_path / "bin").iterdir())
    assert written == ["flower-superexec", "flower-supernode", "flwr-clientapp"]
    assert all(os.access(path, os.X_OK) for path in (tmp_path / "bin").iterdir())
