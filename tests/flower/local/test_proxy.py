"""The proxy passes on what registered clients need, and nothing else."""

import os
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedpd.flower.local import programs
from fedpd.flower.local.certificates import ServerCertificates, make_server_certificates
from fedpd.flower.local.federation import free_ports
from fedpd.flower.local.programs import Member, end, start, wait_until
from fedpd.flower.local.proxy import FLEET, find_nginx, proxy_command, proxy_config

HOST = "127.0.0.1"


def test_the_configuration_names_every_path_that_is_open() -> None:
    files = ServerCertificates(Path("ca.crt"), Path("server.pem"), Path("server.key"))
    text = proxy_config("0.0.0.0:8443", "127.0.0.1:8000", files)
    assert text.count("proxy_pass ") == 3
    assert f'location ~ "^/v1/fleet/({"|".join(FLEET)})\\z" {{' in text
    assert "location = /v1/fleet/push-object {" in text
    assert "location = /v1/fedpd/node {" in text
    assert "register-node" not in text
    assert 'location / {\n            return 403 "' in text
    assert "listen 0.0.0.0:8443 ssl;" in text
    assert "server 127.0.0.1:8000;" in text
    assert "proxy_ssl_verify on;" in text


class Link(BaseHTTPRequestHandler):
    """A server in the place of a SuperLink: it answers every request with the path and the length of its body."""

    def do_POST(self) -> None:
        length = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {length}".encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, ssl.SSLContext]]:
    if find_nginx() is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("proxy")
    certificates = make_server_certificates(folder, ["localhost", HOST])
    link = ThreadingHTTPServer((HOST, 0), Link)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    link.socket = context.wrap_socket(link.socket, server_side=True)
    threading.Thread(target=link.serve_forever, args=(0.01,), daemon=True).start()
    (port,) = free_ports(1)
    (folder / "nginx-temporary").mkdir()
    config = folder / "nginx.conf"
    user = "root" if os.geteuid() == 0 else ""
    config.write_text(proxy_config(f"{HOST}:{port}", f"{HOST}:{link.server_address[1]}", certificates, user=user))
    command = proxy_command(folder, config)
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    member = start(Member("proxy", command, str(folder), str(folder / "proxy.log")), os.environ, folder)
    try:
        wait_until(lambda: programs.is_closed(port, certificates.authority), member, 30, "ready")
        yield port, ssl.create_default_context(cafile=certificates.authority)
    finally:
        end([member])
        link.shutdown()
        link.server_close()


def answer(gate: tuple[int, ssl.SSLContext], path: str, body: bytes = b"", method: str = "POST") -> tuple[int, str]:
    request = urllib.request.Request(f"https://{HOST}:{gate[0]}{path}", data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=gate[1]) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_message_as_large_as_a_model_is_passed_on(gate: tuple[int, ssl.SSLContext]) -> None:
    assert answer(gate, "/v1/fleet/pull-messages") == (200, "/v1/fleet/pull-messages 0")
    assert answer(gate, "/v1/fleet/push-object", bytes(5_000_000)) == (200, "/v1/fleet/push-object 5000000")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/docs",
        "/openapi.json",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet//v1/control/start-run",
        "/V1/FLEET/pull-messages",
        "/v1/fleet/pull-messages/",
    ],
)
def test_everything_else_is_refused(path: str, gate: tuple[int, ssl.SSLContext]) -> None:
    assert answer(gate, path) == (403, "Only the fleet API for registered clients is open here.\n")


def test_a_path_that_only_becomes_the_fleet_api_is_passed_on_in_its_plain_form(
    gate: tuple[int, ssl.SSLContext],
) -> None:
    assert answer(gate, "/v1/control/../fleet/get-run") == (200, "/v1/fleet/get-run 0")
    assert answer(gate, "/v1/fleet/get-run", method="GET")[0] == 403
