"""The live page of a federation: the newest run, its clients, its processes, and the addresses it may have."""

import json
import os
import socket
from pathlib import Path

import pytest

from fedpd.checks import FedpdError
from fedpd.flower import local
from fedpd.flower.local.dashboard import newest_run, state
from fedpd.flower.local.federation import Page, address_of, check_free, page_member
from tests.flower.federations import FEDPD, run

RECORD = {"agents": 1, "port": 1, "members": [{"name": "superlink", "command": [], "home": "", "log": ""}]}


def test_it_shows_the_newest_run_its_clients_and_its_processes(tmp_path: Path) -> None:
    (tmp_path / "federation.json").write_text(json.dumps(RECORD))
    waiting = state(tmp_path)
    assert (waiting["name"], waiting["progress"], waiting["entries"]) == (tmp_path.name, [], [])
    assert waiting["processes"] == [{"name": "superlink", "runs": False}]
    for name, age in (("runs/new", 0), ("old", 1000)):
        run(FEDPD, 3, out=tmp_path / name, evaluate_every=1)
        for path in (tmp_path / name / "checkpoints").iterdir():
            os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert newest_run(tmp_path) == tmp_path / "runs" / "new"
    shown = state(tmp_path)
    assert shown["name"] == "new"
    assert {one["reply"] for one in shown["clients"]} == {3}
    assert all(one["present"] for one in shown["clients"])
    assert shown["events"] == {"missing": 0, "refused": 0, "rebuilt": 0, "clipped": 0}
    costs = [one["name"] for one in shown["costs"]]
    reached = shown["entries"][0]["reached"]["loss"][0]["costs"]
    assert len(reached) == len(costs)
    assert "seconds" in costs, "a federation has its time to each target"


def test_its_address(tmp_path: Path) -> None:
    assert Page().url == "http://127.0.0.1:8050"
    assert Page("::1", 81).url == "http://[::1]:81"
    assert address_of(page_member(tmp_path, tmp_path, Page("10.0.0.1", 7))) == Page("10.0.0.1", 7)


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = Page(port=taken.getsockname()[1])
        with pytest.raises(FedpdError, match=r"cannot be used .* Give another --dashboard-port"):
            check_free(page)
        with pytest.raises(FedpdError, match="--dashboard"):
            local.up(tmp_path / "federation", 1, page)
    assert not (tmp_path / "federation").exists()
