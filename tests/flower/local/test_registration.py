"""Registration of provisioned keys: each once, under the name of its client."""

from pathlib import Path
from typing import Any

import pytest

from fedpd import FedpdError
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.local import programs
from fedpd.flower.local.registration import register_clients


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's kit with two keys, and a SuperLink that answers."""
    (tmp_path / "keys").mkdir()
    for name in ("hospital-1", "hospital-2.north"):
        (tmp_path / "keys" / f"{name}.pub").write_text("a key")
    monkeypatch.setattr(programs, "is_healthy", lambda port, authority: port == 8000)
    return tmp_path


def test_each_key_is_registered_once(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def flwr(home: Path, *words: str) -> Any:
        asked.append(words)
        return {"success": True, "node-id": 2**63 + len(asked)}

    monkeypatch.setattr(programs, "flwr", flwr)
    wanted = {"hospital-1": 2**63 + 1, "hospital-2.north": 2**63 + 2}
    assert register_clients(kit, 8000) == wanted
    assert register_clients(kit, 8000) == wanted
    assert read_owners(kit / "clients.json") == wanted
    assert [words[:2] for words in asked] == [("supernode", "register")] * 2
    assert f'root-certificates = "{kit}/ca.crt"' in (kit / "flwr" / "config.toml").read_text()


def test_problems_are_sentences(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flwr(home: Path, *words: str) -> Any:
        raise FedpdError("flwr supernode register failed: Public key already in use")

    monkeypatch.setattr(programs, "flwr", flwr)
    with pytest.raises(
        FedpdError, match=r"hospital-1\.pub was not registered .*Public key already in use\)\. If the key"
    ):
        register_clients(kit, 8000)
    with pytest.raises(FedpdError, match=r"no SuperLink answers at 127\.0\.0\.1:8001\. Start it"):
        register_clients(kit, 8001, seconds=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedpdError, match="has no public keys"):
        register_clients(tmp_path / "empty", 8000)
