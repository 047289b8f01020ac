"""Start-up kits: complete, private, and made only from a description in order."""

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedpd import FedpdError
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.clients.site_policy import read_policy
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import make_node_keys
from fedpd.flower.local.provision import provision, register_clients, wheel_name
from fedpd.flower.local.sites import node_config, read_site, supernode_arguments

SITES = """
[server]
host = "fl.example.org"
port = 443
days = 30

[[sites]]
name = "hospital-1"

[[sites]]
name = "hospital-2"
config = { data = "/data/b.parquet", partition-id = 7 }
policy = { secure = true, min-clients = 3 }
"""


ED25519 = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2dgYMUBtNnYYRdZjgWsSSzJRJZrZTTDyNqHlbbbbbb a@b"
NAMES = ("hospital-1", "hospital-2")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provision")
    (folder / "sites.toml").write_text(SITES)
    written = provision(folder / "sites.toml", folder / "kits")
    assert [kit.name for kit in written] == ["server", "hospital-1", "hospital-2"]
    return folder / "kits"


def test_a_kit_has_everything_and_its_secrets_are_its_owners_alone(kits: Path) -> None:
    common = {"ca.crt", "start.sh", "install.sh", "README.md", "compose.yaml", "Dockerfile", ".dockerignore"}
    common |= {wheel_name(), "SHA256SUMS"}
    server = common | {"server.pem", "server.key", "authority.key", "superexec.secret", "nginx.conf", "units", "keys"}
    server |= {"sites.toml", "sites.map"}
    assert {path.name for path in (kits / "server").iterdir()} == server
    site = common | {"client.key", "client.crt", "site.toml", "policy.toml", "fedpd-hospital-1.service"}
    assert {path.name for path in (kits / "hospital-1").iterdir()} == site
    secrets = ("server.key", "authority.key", "superexec.secret")
    private = ("passphrase", *(f"server/{name}" for name in secrets), *(f"{name}/client.key" for name in NAMES))
    for name in private:
        assert stat.S_IMODE((kits / name).stat().st_mode) == 0o600
    for kit in (kits / "server", *(kits / name for name in NAMES)):
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
        assert len((kit / "README.md").read_text().splitlines()) <= 32


def test_every_site_has_a_key_of_its_own_and_the_server_its_public_half(kits: Path) -> None:
    keys = {name: load_ssh_private_key((kits / name / "client.key").read_bytes(), None) for name in NAMES}
    publics = {name: load_ssh_public_key((kits / "server" / "keys" / f"{name}.pub").read_bytes()) for name in keys}
    assert {name: key.public_key() for name, key in keys.items()} == publics
    assert publics["hospital-1"] != publics["hospital-2"]


def test_the_certificate_is_the_servers(kits: Path) -> None:
    certificate = x509.load_pem_x509_certificate((kits / "server" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert 29 <= (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 31


def test_the_settings_of_a_site_are_those_of_the_description(kits: Path) -> None:
    one, two = (read_site(kits / name) for name in NAMES)
    assert one.server == "fl.example.org:443"
    assert node_config(one) == {
        "partition-id": 0,
        "num-partitions": 2,
        "fedpd-policy": str(kits / "hospital-1" / "policy.toml"),
        "name": "hospital-1",
        "fedpd-state": str(kits / "hospital-1" / "state"),
    }
    assert two.config == {"partition-id": 7, "num-partitions": 2, "data": "/data/b.parquet"}
    assert 'partition-id=7 num-partitions=2 data="/data/b.parquet"' in supernode_arguments(two)[-1]
    rules = read_policy(two.policy)
    assert (rules.secure, rules.min_clients) == (True, 3)
    assert not read_policy(one.policy).secure


def test_units_keep_their_processes_and_their_files(kits: Path) -> None:
    units = [*(kits / "server" / "units").iterdir(), kits / "hospital-1" / "fedpd-hospital-1.service"]
    assert len(units) == 5
    for unit in units:
        lines = unit.read_text().splitlines()
        assert "UMask=0077" in lines
        assert "User=fedpd" in lines
        assert "Restart=on-failure" in lines if "register" in unit.name else "Restart=always" in lines
        kit = "server" if unit.parent.name == "units" else "hospital-1"
        assert f"WorkingDirectory=/srv/fedpd/{kit}" in lines
        assert any(line.startswith(f"ExecStart=/srv/fedpd/{kit}/start.sh") for line in lines)


def test_scripts_and_compose_files_are_well_formed(kits: Path) -> None:
    for kit in (kits / "server", *(kits / name for name in NAMES)):
        for script in ("start.sh", "install.sh"):
            subprocess.run(["sh", "-n", str(kit / script)], check=True)
        services = yaml.safe_load((kit / "compose.yaml").read_text())["services"]
        assert all(service["restart"] in ("always", "on-failure") for service in services.values())
        for service in services.values():
            assert (kit / service["command"][0]).exists()
        docker = [line.split()[0] for line in (kit / "Dockerfile").read_text().splitlines() if line[:1] not in "# "]
        assert docker == ["FROM", "RUN", "COPY", "RUN", "WORKDIR"]
    services = yaml.safe_load((kits / "server" / "compose.yaml").read_text())["services"]
    assert services["superlink"]["ports"] == ["443:443"]
    others = [service for name, service in services.items() if name != "superlink"]
    assert all("ports" not in service and service["network_mode"] == "service:superlink" for service in others)
    wrong = subprocess.run([str(kits / "server" / "start.sh"), "all"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "usage:" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nhost = 'a'", r"sites = \[\]: must have at least one table"),
        ("[[sites]]\nname = 'a'", r"\[server\]: host is missing"),
        ("[server]\nhost = 'a b'\n[[sites]]\nname = 'a'", r"host = 'a b': must be a host name"),
        ("[server]\nhost = 'a'\nports = 1\n[[sites]]\nname = 'a'", "ports = 1: there is no such entry.*port"),
        ("[server]\nhost = 'a'\nport = 'x'\n[[sites]]\nname = 'a'", "port = 'x': must be an integer"),
        ("[server]\nhost = 'a'\nport = 8000\n[[sites]]\nname = 'a'", "port = 8000: must differ from link-port"),
        ("[server]\nhost = 'a'\nfolder = 'x y'\n[[sites]]\nname = 'a'", "folder = 'x y': must be an absolute path"),
        ("[server]\nhost = 'a'\n[[sites]]\nname = '../x'", r"number 1: name = '../x': must have letters"),
        ("[server]\nhost = 'a'\n[[sites]]\nname = 'a'\n[[sites]]\nname = 'a'", "name = 'a': must be the name of one"),
        ("[server]\nhost = 'a'\n[[sites]]\nname = 'a'\nconfig = {b = [1]}", r"config: b = \[1\]: must be a text"),
        ("[server]\nhost = 'a'\n[[sites]]\nname = 'a'\npolicy = {safe = true}", "safe = True: there is no such rule"),
        ("[clients]", "clients = {}: there is no such table"),
        ("[server", r"cannot be read .*with \[server\] and \[\[sites\]\]"),
    ],
)
def test_a_description_with_a_mistake(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(text)
    with pytest.raises(FedpdError, match=message):
        provision(tmp_path / "sites.toml", tmp_path / "kits")


def test_a_site_may_make_its_own_key(tmp_path: Path) -> None:
    own = make_node_keys(tmp_path, "own")
    (tmp_path / "sites.toml").write_text(SITES.replace('name = "hospital-1"', 'name = "hospital-1"\nkey = "own.pub"'))
    provision(tmp_path / "sites.toml", tmp_path / "kits")
    assert not (tmp_path / "kits" / "hospital-1" / "client.key").exists()
    assert (tmp_path / "kits" / "hospital-2" / "client.key").exists()
    assert (tmp_path / "kits" / "server" / "keys" / "hospital-1.pub").read_bytes() == own.public.read_bytes()
    assert "Copy the private key that you have made" in (tmp_path / "kits" / "hospital-1" / "README.md").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "key of hospital-1 = .*: cannot be read"),
        (b"ssh-ed25519 AAAA", "key of hospital-1 = .*: cannot be read"),
        (ED25519, "must be a key on a NIST curve"),
    ],
)
def test_a_key_that_flower_would_refuse(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "own.pub").write_bytes(content)
    (tmp_path / "sites.toml").write_text(SITES.replace('name = "hospital-1"', 'name = "hospital-1"\nkey = "own.pub"'))
    with pytest.raises(FedpdError, match=message):
        provision(tmp_path / "sites.toml", tmp_path / "kits")


def test_two_sites_do_not_share_a_key(tmp_path: Path) -> None:
    make_node_keys(tmp_path, "own")
    sites = SITES.replace('name = "hospital-', 'key = "own.pub"\nname = "hospital-')
    (tmp_path / "sites.toml").write_text(sites)
    with pytest.raises(FedpdError, match=r"key of hospital-2 = .* is the key of hospital-1 too"):
        provision(tmp_path / "sites.toml", tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_kits_are_not_overwritten_because_they_hold_keys(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(SITES)
    provision(tmp_path / "sites.toml", tmp_path / "kits")
    with pytest.raises(FedpdError, match="exists already and is not empty"):
        provision(tmp_path / "sites.toml", tmp_path / "kits")


def test_a_description_that_fails_late_leaves_no_kit_behind(tmp_path: Path) -> None:
    name = f"{'a' * 70}.example.org"  # longer than a name in a certificate
    text = SITES.replace("fl.example.org", name)
    (tmp_path / "sites.toml").write_text(text.replace("secure = true", "secret = true"))
    with pytest.raises(FedpdError, match="secret = True: there is no such rule"):
        provision(tmp_path / "sites.toml", tmp_path / "kits")
    (tmp_path / "sites.toml").write_text(text)
    assert len(provision(tmp_path / "sites.toml", tmp_path / "kits")) == 3


def test_a_certificate_for_longer_than_dates_reach_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(SITES.replace("days = 30", "days = 100000000"))
    with pytest.raises(FedpdError, match="days = 100000000: must be at most 36500"):
        provision(tmp_path / "sites.toml", tmp_path / "kits")


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
