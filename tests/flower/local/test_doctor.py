"""What `fedpd doctor` finds at a client: each problem alone, and the sentence for it."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import flwr
import pytest

from fedpd.flower.local import doctor
from fedpd.flower.local.certificates import ServerCertificates, make_server_certificates
from fedpd.flower.local.doctor import Finding, examine, examine_app
from fedpd.flower.local.federation import free_ports
from fedpd.flower.local.new_app import new_app
from fedpd.flower.local.provision import provision
from fedpd.flower.local.sites import Site, read_site
from fedpd.flower.warm.program import STATUS

HOST = "127.0.0.1"


class Gate(BaseHTTPRequestHandler):
    """A proxy whose clock and answers can be set."""

    ahead, status, said = 0.0, 200, b'{"node": null}'

    def do_GET(self) -> None:
        asked = self.path == STATUS
        if asked:
            assert self.headers["flwr-public-key"]
        self.answer(type(self).status if asked else 403, type(self).said if asked else b"")

    def answer(self, status: int, said: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(time() + type(self).ahead, usegmt=True))
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None: ...


def serve(certificates: ServerCertificates) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer((HOST, 0), Gate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A client's kit, and a proxy that answers it."""
    (tmp_path / "sites.toml").write_text(f'[server]\nhost = "{HOST}"\n[[sites]]\nname = "a"\n')
    provision(tmp_path / "sites.toml", tmp_path / "kits")
    server = tmp_path / "kits" / "server"
    gate = serve(ServerCertificates(server / "ca.crt", server / "server.pem", server / "server.key"))
    monkeypatch.setattr(Gate, "ahead", 0.0)
    monkeypatch.setattr(Gate, "status", 200)
    monkeypatch.setattr(Gate, "said", b'{"node": "7", "status": "offline"}')
    (port,) = free_ports(1)
    try:
        yield read_site(tmp_path / "kits" / "a")._replace(server=f"{HOST}:{gate.server_address[1]}", port=port)
    finally:
        gate.shutdown()
        gate.server_close()


def problem(site: Site) -> Finding:
    (found,) = (finding for finding in examine(site) if not finding.good)
    return found


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "does not accept this client's certificate"),
        (403, "does not know this client's certificate"),
        (401, "does not accept the signature"),
        (502, "its SuperLink does not"),
        (418, "answers 418"),
    ],
)
def test_a_client_that_the_server_does_not_admit(
    status: int, words: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "status", status)
    findings = list(examine(site))
    assert [finding.good for finding in findings] == [True] * 10 + [False]
    assert findings[-1].what == "server"
    assert words in findings[-1].found


@pytest.mark.parametrize(
    ("said", "runs", "words", "good"),
    [
        ({"node": None, "status": "unknown"}, False, "the server does not know this key", False),
        ({"node": "7", "status": "offline"}, False, "it knows this key as node 7", True),
        ({"node": "7", "status": "online"}, True, "it sees this client online, as node 7", True),
        ({"node": "7", "status": "offline"}, True, "runs, but the server does not see it online", False),
        ({"node": "7", "status": "online"}, False, "but its SuperNode does not run here", False),
    ],
)
def test_what_runs_here_is_compared_with_what_the_server_sees(
    said: dict[str, Any], runs: bool, words: str, good: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "said", json.dumps(said).encode())
    monkeypatch.setattr(doctor, "_runs", lambda _: runs)
    monkeypatch.setattr(doctor, "_superexec", lambda _: "")
    monkeypatch.setattr(doctor, "_users", lambda _: "")
    found = [*examine(site)][-1]
    assert (found.what, found.good) == ("server", good)
    assert words in found.found


def test_a_supernode_that_gives_work_to_anybody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user of a machine reaches 127.0.0.1, and an empty request for work gets an empty answer, or 401."""

    class Runtime(BaseHTTPRequestHandler):
        status = 200

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(type(self).status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((HOST, site.port), Runtime) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(doctor, "find_superexecs", lambda: {f"{HOST}:{site.port}": 7})
        monkeypatch.setattr(doctor, "other_accounts", lambda: ["ada", "emmy"])
        monkeypatch.setattr(Gate, "said", b'{"node": "7", "status": "online"}')
        assert "any user of this machine can act as this client, and ada, emmy can log in" in problem(site).found
        monkeypatch.setattr(Runtime, "status", 401)
        assert all(finding.good for finding in examine(site))
        server.shutdown()


def test_a_supernode_without_its_superexec(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_users", lambda _: "")
    with socket.create_server((HOST, site.port)):
        said = [finding.found for finding in examine(site) if not finding.good]
        assert "runs without its SuperExec, so it answers no message" in said[0]
        assert "runs, but the server does not see it online" in said[1]
        monkeypatch.setattr(doctor, "find_superexecs", lambda: {f"{HOST}:{site.port}": 7})
        monkeypatch.setattr(doctor, "_users", lambda _: "")
        found = {finding.what: finding for finding in examine(site)}
    assert found["SuperExec"] == Finding("SuperExec", "this client's SuperExec runs, process 7", True)


@pytest.mark.parametrize(("ahead", "side"), [(-10.0, "ahead of"), (400.0, "behind")])
def test_a_clock_that_is_wrong(ahead: float, side: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "ahead", ahead)
    found = problem(site)
    assert found.what == "clock"
    assert f" s {side} the server's, which rejects it" in found.found
    assert abs(float(found.found.split(" is ")[1].split()[0]) - abs(ahead)) <= 2


def test_a_server_that_is_not_there(site: Site) -> None:
    assert "no.such.host.invalid has no address" in problem(site._replace(server="no.such.host.invalid:1")).found
    (port,) = free_ports(1)
    assert (
        f"{HOST}:{port} does not answer (Connection refused)" in problem(site._replace(server=f"{HOST}:{port}")).found
    )


def test_a_certificate_that_is_wrong(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    other = make_server_certificates(tmp_path / "other", [HOST])
    found = problem(site._replace(authority=other.authority))
    assert found.what == "certificate"
    assert f"the certificate of {HOST} is refused" in found.found
    monkeypatch.setattr(doctor, "DAYS", 1000)  # all checks are functions of a site, and nothing else
    assert "ends in 36" in problem(site).found


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        (lambda site: site.key.unlink(), "files", "is missing"),
        (lambda site: site.key.chmod(0o644), "files", "can be read by others. Run: chmod 600"),
        (lambda site: site.key.write_bytes(b"x"), "files", "is not a client's key"),
        (lambda site: site.policy.write_text("secret = true"), "policy", "there is no such rule"),
        (lambda site: site.state.write_text("a file"), "disk", "cannot be written"),
    ],
)
def test_files_that_are_wrong(change: Any, what: str, words: str, site: Site) -> None:
    change(site)
    found = next(finding for finding in examine(site) if not finding.good)
    assert found.what == what
    assert words in found.found


def test_other_problems(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOM", 10**18)
    assert "GB left. Make room" in next(finding for finding in examine(site) if not finding.good).found
    monkeypatch.setattr(flwr, "__version__", "1.40.0")
    assert "flwr 1.40.0 is installed" in next(finding for finding in examine(site) if not finding.good).found


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # flwr uses an old name of pathspec
def test_the_data_and_one_step_of_an_app(site: Site, tmp_path: Path) -> None:
    new_app(tmp_path / "sound-app", "jax")
    good = list(examine_app(site, tmp_path / "sound-app"))
    assert [finding.good for finding in good] == [True, True]
    assert good[1].found.startswith("200 samples; the first local step took ")
    assert site.policy is not None
    site.policy.write_text(f'apps = ["{"0" * 64}"]')
    new_app(tmp_path / "broken-app", "jax")
    data = tmp_path / "broken-app" / "broken_app" / "data.py"
    data.write_text(data.read_text().replace("return centres[classes] +", "return np.nan * centres[classes] +"))
    listed, step = examine_app(site, tmp_path / "broken-app")
    assert "client 'a' does not run this app" in listed.found
    assert "data of client 'a' holds NaN or infinity" in step.found
    assert all("pyproject.toml" in finding.found for finding in examine_app(site, tmp_path))
