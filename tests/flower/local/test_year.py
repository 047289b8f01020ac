"""The year of a federation from its kits, on this machine: attacks from inside, and a client added, removed, renewed.

Minutes: `make test-faults`.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedpd.flower.carry.directory import read_owners
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import make_server_certificates
from fedpd.flower.local.doctor import examine, examine_processes, examine_server
from fedpd.flower.local.federation import free_ports
from fedpd.flower.local.new_app import new_app
from fedpd.flower.local.programs import Member, end, find, find_superexecs, start, tail
from fedpd.flower.local.provision import add_site, provision, remove_site, renew
from fedpd.flower.local.proxy import find_nginx
from fedpd.flower.local.sites import read_site
from tests.flower.deployment import words_of

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore:GitWildMatchPattern")]

HOST = "127.0.0.1"
NOBODY = 65534
PARTS = ("superlink", "superexec", "proxy", "register")
GREEDY = """
import numpy as np
from flwr.app import Array, ArrayRecord


def greedy(message, context, call_next):
    reply = call_next(message, context)
    if message.metadata.message_type == "train" and context.node_config["name"] == "a":
        reply.content["more"] = ArrayRecord({str(i): Array(np.full(600_000, i)) for i in range(20)})
    return reply


app = client_app(algorithm, start, local, mods=[greedy])
"""
THIEF = """
import pathlib, ssl, sys, urllib.error, urllib.request

port, kind, body, node = sys.argv[1:]
headers = {"content-type": kind, "accept": kind}
request = urllib.request.Request(f"https://127.0.0.1:{port}/v1/runtime/acquire-task", bytes.fromhex(body), headers)
try:
    print(urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
try:
    print(pathlib.Path(f"/proc/{node}/environ").read_bytes())
except PermissionError:
    print("hidden")
"""
PYTHON = Path("/usr/bin/python3")  # which every user can run


class Host:
    """The parts of a federation on this machine, kept running as systemd would."""

    def __init__(self, folder: Path) -> None:
        self.kits, self.members = folder / "kits", dict[str, Member]()
        self.port, link_port = free_ports(2)
        text = f'[server]\nhost = "{HOST}"\nport = {self.port}\nlink-port = {link_port}\n'
        text += "".join(f'[[sites]]\nname = "{name}"\n' for name in "ab")
        (folder / "sites.toml").write_text(text)
        provision(folder / "sites.toml", self.kits)
        self.server = self.kits / "server"
        config = self.server / "nginx.conf"
        config.write_text("user root;\n" + config.read_text() if os.geteuid() == 0 else config.read_text())
        self.passphrase = (self.kits / "passphrase").read_bytes().strip()

    def start(self, machine: str, *words: str) -> None:
        name, kit = "-".join((machine, *words)), self.kits / machine
        path = os.pathsep.join([str(programs.bin_folder()), os.environ["PATH"]])
        member = Member(name, [str(kit / "start.sh"), *words], str(kit), str(self.kits / f"{name}.log"))
        self.members[name] = start(member, os.environ | {"PATH": path}, kit)

    def start_site(self, name: str) -> None:
        settings = self.kits / name / "site.toml"
        (port,) = free_ports(1)
        settings.write_text(settings.read_text().replace("port = 9094", f"port = {port}"))
        self.start(name)
        self.wait(lambda: self.online(name), 120)

    def online(self, name: str) -> bool:
        return any(one.what == name and one.good for one in examine_processes(self.server))

    def doctor(self, name: str) -> dict[str, bool]:
        return {one.what: one.good for one in examine(read_site(self.kits / name))}

    def wait(self, what: Callable[[], Any], seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"{member.name}:\n{tail(member)}" for member in self.members.values())
                raise AssertionError(f"not within {seconds} s\n{logs}")
            time.sleep(0.5)
        return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    if find_nginx() is None:
        pytest.skip("nginx is not installed")
    made = Host(tmp_path_factory.mktemp("year"))
    try:
        for part in PARTS:
            made.start("server", part)
        made.wait(lambda: find(made.members["server-register"]) is None, 120)
        for name in "ab":
            made.start_site(name)
        yield made
    finally:
        end([member for name, member in made.members.items() if not name.startswith("server")])
        end(made.members.values())


def test_doctor_and_status_see_what_the_server_sees(host: Host) -> None:
    assert all(host.doctor("a").values())
    assert all(one.good for one in examine_server(host.server))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not PYTHON.exists(), reason="needs a second user")
def test_another_user_gets_no_work_and_sees_no_secret(host: Host) -> None:
    body = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]).SerializeToString().hex()
    site = read_site(host.kits / "a")
    pid = find_superexecs()[f"{HOST}:{site.port}"]
    words = [str(PYTHON), "-c", THIEF, str(site.port), PROTOBUF_MEDIA_TYPE, body, str(pid)]
    done = subprocess.run(
        words, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.stdout.split() == ["401", "hidden"], done.stderr


def run_app(host: Host, app: Path, *settings: str) -> subprocess.Popen[bytes]:
    """Start an app as the page says, and return the process that follows it."""
    words = [str(host.server / "start.sh"), "run", str(app), "--run-config", " ".join(settings)]
    path = os.pathsep.join([str(programs.bin_folder()), os.environ["PATH"]])
    with (host.kits / "run.log").open("wb") as log:
        return subprocess.Popen(words, env=os.environ | {"PATH": path}, stdout=log, stderr=log)


def test_a_reply_that_is_too_large_is_not_stored(host: Host, tmp_path: Path) -> None:
    app = tmp_path / "toy-greedy"
    new_app(app, "numpy")
    client = app / "toy_greedy" / "client_app.py"
    client.write_text(client.read_text().replace("\napp = client_app(algorithm, start, local)\n", GREEDY))
    running = run_app(host, app, "agents=2", "rounds=2", "deadline=120.0", "resend=150.0", "evaluate-every=0")
    try:
        log = Path(host.members["server-superlink"].log)
        host.wait(lambda: "Refused." in log.read_text(), 300)
        seen = [" ".join(words_of(process)) for process in psutil.process_iter()]
        ours = [words for words in seen if str(host.port) in words or "/dev/fd/" in words]
        assert any("--token-file /dev/fd/" in words for words in ours)
        assert not any("--token " in words for words in ours)
        assert (host.server / "superlink.db").stat().st_size < 40_000_000
    finally:
        host.wait(lambda: running.poll() is not None, 300)


def test_a_client_comes_back_after_an_error_of_tls(host: Host, tmp_path: Path) -> None:
    """The proxy shows another authority's certificate for a while: Flower's own SuperNode would give up."""
    kept = {name: (host.server / name).read_bytes() for name in ("ca.crt", "server.pem", "server.key")}
    wrong = make_server_certificates(tmp_path, ["localhost", HOST])
    proxy = host.members["server-proxy"]
    try:
        for path in wrong[1:]:
            (host.server / path.name).write_bytes(path.read_bytes())
        end([proxy])
        host.start("server", "proxy")
        log = Path(host.members["a"].log)
        host.wait(lambda: "retrying" in log.read_text(), 60)
        host.wait(lambda: not host.online("a"), 120)
        assert not host.doctor("a")["certificate"]
    finally:
        for name, content in kept.items():
            (host.server / name).write_bytes(content)
        end([host.members["server-proxy"]])
        host.start("server", "proxy")
    host.wait(lambda: host.online("a") and host.online("b"), 120)
    assert all(host.doctor("a").values())


def test_a_client_is_added_and_removed_and_its_name_is_free_again(host: Host) -> None:
    said = add_site(host.server, "c", host.kits, host.passphrase)
    assert "The proxy knows it." in said
    assert read_site(host.kits / "c").config["partition-id"] == 2
    host.start_site("c")
    assert all(host.doctor("c").values())
    before = read_owners(host.server / "clients.json")["c"]
    assert f"c, node {before}, is no longer registered" in remove_site(host.server, "c")
    end([host.members.pop("c")])
    assert not host.doctor("c")["server"]
    shutil.move(host.kits / "c", host.kits / "old-c")
    add_site(host.server, "c", host.kits, host.passphrase)
    host.start_site("c")
    assert read_owners(host.server / "clients.json")["c"] != before
    assert host.online("a")
    remove_site(host.server, "c")
    end([host.members.pop("c")])


def test_a_new_certificate_needs_nothing_at_the_clients(host: Host) -> None:
    before = (host.server / "server.pem").read_bytes(), (host.server / "ca.crt").read_bytes()
    renew(host.server, host.passphrase)
    assert (host.server / "server.pem").read_bytes() != before[0]
    assert (host.server / "ca.crt").read_bytes() == before[1]
    for part in ("superlink", "proxy"):
        end([host.members[f"server-{part}"]])
        host.start("server", part)
    host.wait(lambda: programs.is_closed(host.port, host.server / "ca.crt"), 60)
    host.wait(lambda: host.online("a") and host.online("b"), 120)
    assert all(host.doctor("a").values())
