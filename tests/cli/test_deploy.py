"""The commands for Flower, from a shell's side."""

import os
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from fedpd.checks import FedpdError
from fedpd.cli import app
from fedpd.flower import local
from fedpd.flower.local import LocalFederation
from fedpd.flower.local.federation import Page, page_member
from fedpd.flower.local.programs import ADDRESS, Member

SITES = (["provision", "s"], ["register", "s"], ["client", "s"], ["app-hash", "s"], ["doctor", "s"])


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_without_flower_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("flwr", "psutil"):
        monkeypatch.setitem(sys.modules, package, None)
    for command in (["new-app", str(tmp_path / "toy")], ["up"], ["down"], *SITES):
        with pytest.raises(FedpdError, match=r'which is not installed. Run: pip install "fedpd\[flower\]"'):
            invoke(*command)


def test_new_app_names_what_it_wrote(tmp_path: Path) -> None:
    said = invoke("new-app", str(tmp_path / "toy"), "--framework", "numpy")
    assert "toy/toy/task.py" in said
    assert said.rstrip().endswith("toy/README.md")


@pytest.mark.parametrize(
    ("gate", "words"), [(1234, "nginx is not installed"), (99, "127.0.0.1:99, where nginx serves")]
)
def test_up_says_how_to_run_an_app_and_how_to_end_it(
    gate: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "up", lambda folder, agents, page: LocalFederation(folder, agents, 1234, gate, ()))
    folder = tmp_path / "a federation"
    said = invoke("up", "--agents", "3", "--dir", str(folder))
    assert "127.0.0.1:1234 and 3 SuperNodes" in said
    assert words in said
    assert f"FLWR_HOME='{folder}/flwr'" in said
    assert "run APP fedpd --stream" in said
    assert f"fedpd down --dir '{folder}'" in said


def test_up_says_where_its_page_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def up(folder: Path, agents: int, page: Page | None) -> LocalFederation:
        members = () if page is None else (page_member(folder, folder, page),)
        return LocalFederation(folder, agents, 1234, 99, members)

    monkeypatch.setattr(local, "up", up)
    assert "live page" not in invoke("up", "--dir", str(tmp_path))
    assert "Its live page:  http://127.0.0.1:8050" in invoke("up", "--dir", str(tmp_path), "--dashboard")
    given = ("--dashboard-host", "0.0.0.0", "--dashboard-port", "81")
    assert "http://127.0.0.1:81\n" in invoke("up", "--dir", str(tmp_path), "--dashboard", *given)


def test_down_says_what_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "down", lambda folder: ["supernode-0", "superlink"])
    assert invoke("down", "--dir", str(tmp_path)) == "Ended: supernode-0, superlink.\n"
    monkeypatch.setattr(local, "down", lambda folder: [])
    assert invoke("down", "--dir", str(tmp_path)) == "Nothing was running.\n"


def test_up_refuses_more_processes_than_a_machine_runs(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match=r"--agents = 99999999: must be below 2\^10"):
        invoke("up", "--agents", "99999999", "--dir", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


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
    assert written == ["flower-superexec", "flower-superlink", "flower-supernode", "flwr-clientapp"]
    assert all(os.access(path, os.X_OK) for path in (tmp_path / "bin").iterdir())
