"""A client added and removed, and a certificate renewed, at the server's kit; the SuperLink is a list of nodes."""

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedpd
from fedpd import FedpdError
from fedpd.cli import app
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.local import doctor, programs
from fedpd.flower.local.certificates import end_of, make_node_keys, serial_of
from fedpd.flower.local.doctor import examine_processes, examine_server
from fedpd.flower.local.provision import (
    add_site,
    authority_end,
    give_to_owner,
    is_server,
    provision,
    read_server,
    register_clients,
    remove_site,
    renew,
    wheel_name,
    write_wheel,
)
from fedpd.flower.local.sites import read_site

SITES = '[server]\nhost = "fl.example.org"\n[[sites]]\nname = "a"\n[[sites]]\nname = "b"\nconfig = { data = "b.csv" }\n'


class Link:
    """A SuperLink: what `flwr supernode` does to its nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}

    def flwr(self, home: Path, _: str, command: str, *words: str) -> Any:
        if command == "register":
            node = str(100 + len(self.nodes))
            self.nodes[node] = "registered"
            return {"node-id": node}
        if command == "unregister":
            self.nodes[words[0]] = "unregistered"
            return {}
        return {"nodes": [{"node-id": node, "status": status} for node, status in self.nodes.items()]}


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(programs, "flwr", made.flwr)
    monkeypatch.setattr(programs, "is_healthy", lambda *_: True)
    return made


@pytest.fixture
def kits(tmp_path: Path, link: Link) -> Path:
    (tmp_path / "sites.toml").write_text(SITES)
    provision(tmp_path / "sites.toml", tmp_path / "kits")
    register_clients(tmp_path / "kits" / "server", 8000)
    return tmp_path / "kits"


def passphrase(kits: Path) -> bytes:
    return (kits / "passphrase").read_bytes().strip()


def known(kit: Path) -> dict[str, str]:
    """The clients that the proxy lets in, by the serial number of their certificates."""
    lines = (kit / "sites.map").read_text().splitlines()
    return {line.split('"')[1]: line.split('"')[3] for line in lines}


def test_a_new_client_has_its_own_partition_and_key_and_the_old_ones_stay(kits: Path) -> None:
    server = kits / "server"
    before = {path: path.read_bytes() for path in (kits / "a").rglob("*") if path.is_file()}
    said = add_site(server, "c", kits / "new", passphrase(kits))
    assert said.startswith("c is node 102. When the proxy runs, it knows this.")
    site = read_site(kits / "new" / "c")
    assert site.config["partition-id"] == 2
    assert site.certificate is not None
    assert known(server)[serial_of(site.certificate)] == "c"
    assert sorted(known(server).values()) == ["a", "b", "c"]
    assert [plan.name for plan in read_server(server)[1]] == ["a", "b", "c"]
    assert read_server(server)[1][1].config["data"] == "b.csv"
    assert {path: path.read_bytes() for path in before} == before
    assert stat.S_IMODE((kits / "new" / "c" / "client.key").stat().st_mode) == 0o600


def test_a_removed_clients_name_is_free_again(kits: Path, link: Link) -> None:
    server = kits / "server"
    old = read_site(kits / "b").certificate
    assert old is not None
    assert remove_site(server, "b").startswith("b, node 101, is no longer registered.")
    assert read_owners(server / "clients.json") == {"a": 100}
    assert link.nodes["101"] == "unregistered"
    assert list(known(server).values()) == ["a"]
    add_site(server, "b", kits / "new", passphrase(kits))
    assert read_owners(server / "clients.json") == {"a": 100, "b": 102}
    assert serial_of(old) not in known(server)


def test_a_renewal_changes_the_server_alone(kits: Path) -> None:
    server = kits / "server"
    authority, certificate = (server / "ca.crt").read_bytes(), (server / "server.pem").read_bytes()
    assert "Clients need nothing" in renew(server, passphrase(kits))
    assert (server / "ca.crt").read_bytes() == authority
    assert (server / "server.pem").read_bytes() != certificate
    assert stat.S_IMODE((server / "server.key").stat().st_mode) == 0o600
    assert authority_end(server) > f"{end_of(server / 'server.pem'):%Y-%m-%d}"
    assert b"ENCRYPTED" in (server / "authority.key").read_bytes()


def test_mistakes_are_sentences_and_change_nothing(kits: Path, tmp_path: Path) -> None:
    server, right = kits / "server", passphrase(kits)
    before = {path: path.read_bytes() for path in server.rglob("*") if path.is_file()}
    for name, words in (("a", "is a name of this federation already"), ("server", "already"), ("a b", "must have")):
        with pytest.raises(FedpdError, match=words):
            add_site(server, name, kits / "new", right)
    with pytest.raises(FedpdError, match=r"authority\.key cannot be opened"):
        add_site(server, "c", kits / "new", b"wrong")
    with pytest.raises(FedpdError, match=r"authority\.key cannot be opened"):
        renew(server, b"")
    with pytest.raises(FedpdError, match=r"is no client of this federation\. Its clients: a, b"):
        remove_site(server, "c")
    with pytest.raises(FedpdError, match="is not a server's kit"):
        remove_site(kits / "a", "b")
    make_node_keys(tmp_path, "own")
    (tmp_path / "own.pub").write_bytes((server / "keys" / "a.pub").read_bytes())
    with pytest.raises(FedpdError, match=r"key of c = .* is the key of a too"):
        add_site(server, "c", kits / "new", right, tmp_path / "own.pub")
    assert {path: path.read_bytes() for path in server.rglob("*") if path.is_file()} == before
    assert not (kits / "new" / "c").exists()


def test_a_client_that_cannot_be_registered_leaves_nothing_behind(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = kits / "server"
    before = {path: path.read_bytes() for path in server.rglob("*") if path.is_file()}

    def refuse(*_: object) -> None:
        raise FedpdError("flwr supernode register failed")

    monkeypatch.setattr(programs, "flwr", refuse)
    with pytest.raises(FedpdError, match="was not registered"):
        add_site(server, "c", kits / "new", passphrase(kits))
    assert {path: path.read_bytes() for path in server.rglob("*") if path.is_file()} == before
    assert not (kits / "new" / "c").exists()


def test_status_and_doctor_of_a_server(kits: Path, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    server = kits / "server"
    link.nodes |= {"100": "online", "101": "offline"}
    monkeypatch.setattr(programs, "is_closed", lambda *_: True)
    monkeypatch.setattr("fedpd.flower.local.doctor.find_superexecs", lambda: {"127.0.0.1:8000": 7})
    found = {one.what: one for one in examine_processes(server)}
    assert [name for name, one in found.items() if not one.good] == ["b"]
    assert found["a"].found == "online, node 100"
    assert "offline, node 101. At its machine: fedpd doctor" in found["b"].found
    assert is_server(server)
    assert not is_server(kits / "a")
    monkeypatch.setattr("fedpd.flower.local.doctor.other_accounts", lambda: ["ada"])
    (server / "server.key").chmod(0o644)
    problems = {one.what: one.found for one in examine_server(server) if not one.good}
    assert set(problems) == {"files", "b"}
    users = next(one for one in examine_server(server) if one.what == "other users")
    assert users.found.startswith("ada can log in on this machine")
    said = CliRunner().invoke(app, ["status", "--dir", str(server)])
    assert said.exit_code == 1
    assert "a: online, node 100" in said.output


def test_accounts_that_can_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pwd = pytest.importorskip("pwd")

    def account(name: str, number: int, shell: str) -> Any:
        return pwd.struct_passwd((name, "x", number, number, "", "/", shell))

    people = [account("ada", 1001, "/bin/bash"), account("emmy", 1002, "/bin/sh")]
    others = [account("root", 0, "/bin/bash"), account("www", 33, "/bin/sh"), account("nobody", 65534, "/bin/sh")]
    closed = [account("fedpd", 1003, "/usr/sbin/nologin")]
    monkeypatch.setattr(pwd, "getpwall", lambda: people + others + closed)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1002)
    assert doctor.other_accounts() == ["ada"]


def test_the_wheel_is_this_fedpd(tmp_path: Path) -> None:
    digest = write_wheel(tmp_path)
    assert write_wheel(tmp_path) == digest
    with zipfile.ZipFile(tmp_path / wheel_name()) as wheel:
        names = set(wheel.namelist())
        assert wheel.read("fedpd/__init__.py") == Path(fedpd.__file__).read_bytes()
        assert "Name: fedpd\n" in wheel.read(f"fedpd-{fedpd.__version__}.dist-info/METADATA").decode()
    assert "fedpd/flower/local/templates/kits/site/install.sh.tmpl" in names
    assert not any("__pycache__" in name for name in names)


@pytest.mark.slow
def test_pip_installs_the_wheel_and_the_program_runs(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "to"),
    ]
    subprocess.run([*pip, str(tmp_path / wheel_name())], check=True)
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'to')!r}); import fedpd; print(fedpd.__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(str(tmp_path / "to"))


def test_install_as_root(kits: Path, tmp_path: Path) -> None:
    """With stand-ins for the programs that change the machine; they write down how they were called."""
    stand_ins, log = tmp_path / "stand-ins", tmp_path / "log"
    stand_ins.mkdir()
    for name in ("useradd", "chown", "systemctl", "id", "python3", "cp", "install", "nginx", "runuser"):
        answer = {"id": '[ "$*" = -u ] && echo 0'}.get(name, "true")
        (stand_ins / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{answer}\n')
        (stand_ins / name).chmod(0o755)
    for kit in ("a", "server"):
        folder = tmp_path / "srv" / kit
        script = kits / kit / "install.sh"
        script.write_text(script.read_text().replace("/srv/fedpd", str(tmp_path / "srv")))
        (folder / ".venv" / "bin").mkdir(parents=True)
        for name in ("python", "pip"):
            (folder / ".venv" / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
            (folder / ".venv" / "bin" / name).chmod(0o755)
        path = {"PATH": f"{stand_ins}:/usr/bin:/bin"}
        done = subprocess.run([str(script)], env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said = log.read_text()
        assert "useradd --system --user-group" in said
        assert f"pip install --quiet ./{wheel_name()}[flower,privacy]" in said
        assert f"chown -R fedpd:fedpd {folder}" in said
        log.unlink()
        (stand_ins / "runuser").write_text("#!/bin/sh\nexit 126\n")  # as for a Python in the home folder of root
        done = subprocess.run([str(script)], env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "The user fedpd cannot run" in done.stderr
        assert "pip" not in log.read_text()
        (stand_ins / "runuser").write_text("#!/bin/sh\n")
        log.unlink()
    (kits / "a" / wheel_name()).write_bytes(b"another")
    done = subprocess.run([str(kits / "a" / "install.sh")], env=path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip" not in log.read_text()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files to others")
def test_no_link_of_a_kits_owner_gives_it_the_files_of_others(tmp_path: Path) -> None:
    kit, others, user = tmp_path / "kit", tmp_path / "others", 65534
    kit.mkdir()
    others.mkdir()
    (others / "shadow").touch()
    (kit / "keys").symlink_to(others)
    (kit / "sites.map").symlink_to(others / "shadow")
    (kit / "clients.json").touch()
    os.chown(kit, user, user)
    give_to_owner(kit)
    assert ((others / "shadow").stat().st_uid, (kit / "clients.json").stat().st_uid) == (0, user)
