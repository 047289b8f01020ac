"""The commands for a federation on several machines, from a shell's side."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpd.cli import app
from fedpd.flower.local.new_app import new_app

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # flwr uses an old name of pathspec
SITES = '[server]\nhost = "127.0.0.1"\nport = 1\n[[sites]]\nname = "a"\n'


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_provision_names_the_kits(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(SITES)
    said = invoke("provision", str(tmp_path / "sites.toml"), "--out", str(tmp_path / "kits"))
    assert said.splitlines() == [
        *(f"{tmp_path}/kits/{name}: see {tmp_path}/kits/{name}/README.md" for name in ("server", "a")),
        f"{tmp_path}/kits/passphrase: keep it apart from the server. fedpd add-site and fedpd renew ask for it.",
    ]


def test_app_hash_prints_what_a_policy_lists(tmp_path: Path) -> None:
    new_app(tmp_path / "toy-app", "numpy")
    said = invoke("app-hash", str(tmp_path / "toy-app"))
    assert len(said.strip()) == 64


def test_doctor_says_what_is_wrong_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(SITES)
    invoke("provision", str(tmp_path / "sites.toml"), "--out", str(tmp_path / "kits"))
    said = invoke("doctor", str(tmp_path / "kits" / "a"), code=1)
    assert "ok       files: client.key and ca.crt are in order" in said
    assert "PROBLEM  port of the server: 127.0.0.1:1 does not answer" in said
