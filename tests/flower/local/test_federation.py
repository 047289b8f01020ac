"""A real federation on this machine: SuperLink, SuperNodes, TLS, registered keys; and nothing left behind."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedpd.checks import FedpdError
from fedpd.flower import local
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import make_node_keys
from fedpd.flower.local.federation import Page, free_ports, is_served
from fedpd.flower.local.programs import Member, end, start
from fedpd.flower.local.proxy import find_nginx
from tests.flower.deployment import AGENTS, Deployment, equal

ROUNDS = 2


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    try:
        yield Deployment(tmp_path, page=Page(port=free_ports(1)[0]))
    finally:
        if local.read(tmp_path / "federation") is not None:
            local.down(tmp_path / "federation")


@pytest.mark.smoke
def test_an_app_on_a_real_federation(deployment: Deployment, tmp_path: Path) -> None:
    """The model is that of a simulation; a stranger cannot join; nothing runs on afterwards."""
    deployment.start(rounds=ROUNDS, out="results")
    stranger = _stranger(deployment, tmp_path)
    try:
        equal(deployment.model("results", 300.0), deployment.simulated(rounds=ROUNDS))
        assert programs.was_rejected(stranger)
        assert not programs.is_online(stranger)
    finally:
        end([stranger])
    nodes = programs.flwr(deployment.federation.home, "supernode", "list", programs.CONNECTION)["nodes"]
    assert [node["status"] for node in nodes] == ["online"] * AGENTS
    _check_page(deployment)
    everyone = [psutil.Process(member.pid) for member in deployment.federation.members]
    everyone += [child for process in everyone for child in process.children(recursive=True)]
    folder = deployment.federation.folder
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    for name in ("superlink.db", "history.parquet", "model.safetensors", "superexec.secret", "clients.json"):
        assert modes[name] == 0o600, name
    assert len(local.down(folder)) == AGENTS + 3 + (find_nginx() is not None)
    assert deployment.federation.page is not None
    assert not is_served(deployment.federation.page)
    assert not [one for one in everyone if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert local.down(folder) == []


def _check_page(deployment: Deployment) -> None:
    """The live page shows the finished run, its clients and its processes."""
    assert deployment.federation.page is not None
    with urllib.request.urlopen(f"{deployment.federation.page.url}/state", timeout=60) as answer:
        shown = json.load(answer)
    assert (shown["name"], shown["finished"], shown["events"]["missing"]) == ("results", True, 0)
    assert [one["reply"] for one in shown["clients"]] == [ROUNDS] * AGENTS
    assert shown["progress"][0]["seconds"] > 0
    assert {one["name"]: one["runs"] for one in shown["processes"]}["supernode-0"]
    assert all(one["runs"] for one in shown["processes"])


def _stranger(deployment: Deployment, folder: Path) -> Member:
    """A SuperNode with a key that nobody has registered."""
    federation = deployment.federation
    (port,) = free_ports(1)
    keys = make_node_keys(folder, "stranger")
    command = programs.supernode_command(federation.port, port, federation.certificates, keys, {"partition-id": 0})
    member = Member("stranger", command, str(folder / "home"), str(folder / "stranger.log"))
    return start(member, programs.environment(folder / "home"), folder)


def test_commands_answer_without_colours_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter sets FORCE_COLOR, with which flwr writes colours between the words of its JSON."""
    program = tmp_path / "flwr"
    words = f"#!{sys.executable}\nimport json, os\nprint(json.dumps({{'forced': os.environ.get('FORCE_COLOR')}}))\n"
    program.write_text(words, encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(programs, "bin_folder", lambda: tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert programs.flwr(tmp_path, "ls") == {"forced": None}


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", "print('the port is taken'); raise SystemExit(1)"]
    monkeypatch.setattr(programs, "superlink_command", lambda *arguments: program)
    with pytest.raises(FedpdError, match=r"(?s)superlink ended before it was ready.*the port is taken"):
        local.up(tmp_path / "federation", 2)
    assert not (tmp_path / "federation").exists()


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FedpdError, match="holds no federation"):
        local.up(tmp_path, 2)
    with pytest.raises(FedpdError, match="holds no federation"):
        local.down(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "federation.json").write_text("{")
    with pytest.raises(FedpdError, match=r"federation.json cannot be read"):
        local.down(tmp_path)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="at least 1"):
        local.up(tmp_path / "federation", 0)
    member = {"name": "superlink", "command": [], "home": "", "log": ""}
    (tmp_path / "federation.json").write_text(json.dumps({"agents": 3, "port": 1, "members": [member]}))
    with pytest.raises(FedpdError, match="has 3 agents"):
        local.up(tmp_path, 2)
