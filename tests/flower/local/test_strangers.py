"""A kit's proxy, under attack: strangers reach no Python, and clients still get answers."""

import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedpd.flower.local import programs, provision
from fedpd.flower.local.certificates import new_authority, sign_client
from fedpd.flower.local.federation import free_ports
from fedpd.flower.local.programs import Member, end, start, wait_until
from fedpd.flower.local.provision import describe_sites, read_server
from fedpd.flower.local.proxy import OBJECT, SMALL, proxy_command
from fedpd.flower.warm.supernode import tls_context

HOST = "127.0.0.1"
ATTACKERS = 511


class Link(BaseHTTPRequestHandler):
    """A server in the place of a SuperLink, which counts what reaches it."""

    requests, received = 0, 0

    def do_POST(self) -> None:
        length = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        type(self).requests += 1
        type(self).received += length
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Gate(NamedTuple):
    """A kit's proxy that runs."""

    kits: Path
    port: int

    def context(self, name: str = "a", certificate: Path | None = None) -> ssl.SSLContext:
        site = self.kits / name
        return tls_context(site / "ca.crt", certificate or site / "client.crt", site / "client.key")

    def ask(self, context: ssl.SSLContext, path: str = "pull-messages", body: Any = b"") -> int:
        request = urllib.request.Request(f"https://{HOST}:{self.port}/v1/fleet/{path}", data=body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as found:
                return found.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("strangers")
    port, link_port = free_ports(2)
    text = f'[server]\nhost = "{HOST}"\nport = {port}\nlink-port = {link_port}\n'
    text += "".join(f'[[sites]]\nname = "{name}"\n' for name in "ab")
    (folder / "sites.toml").write_text(text)
    provision.provision(folder / "sites.toml", folder / "kits")
    server = folder / "kits" / "server"
    link = ThreadingHTTPServer((HOST, link_port), Link)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    link.socket = context.wrap_socket(link.socket, server_side=True)
    threading.Thread(target=link.serve_forever, args=(0.01,), daemon=True).start()
    (server / "nginx-temporary").mkdir()
    config = server / "nginx.conf"
    if os.geteuid() == 0:
        config.write_text("user root;\n" + config.read_text())
    try:
        command = proxy_command(server, config)
    except FileNotFoundError:
        pytest.skip("nginx is not installed")
    member = start(Member("proxy", command, str(server), str(folder / "proxy.log")), os.environ, server)
    try:
        wait_until(lambda: programs.is_closed(port, server / "ca.crt"), member, 30, "ready")
        yield Gate(folder / "kits", port)
    finally:
        end([member])
        link.shutdown()
        link.server_close()


@pytest.fixture(autouse=True)
def _nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "requests", 0)
    monkeypatch.setattr(Link, "received", 0)


def unknown(gate: Gate) -> ssl.SSLContext:
    """The context of a stranger, who has no certificate."""
    return ssl.create_default_context(cafile=gate.kits / "a" / "ca.crt")


def test_a_client_is_let_in_and_nobody_else(gate: Gate, tmp_path: Path) -> None:
    assert gate.ask(gate.context()) == 200
    assert gate.ask(unknown(gate)) == 400
    own = load_ssh_private_key((gate.kits / "a" / "client.key").read_bytes(), None)
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    sign_client(new_authority(), "a", own.public_key(), tmp_path / "forged.crt")
    assert gate.ask(gate.context(certificate=tmp_path / "forged.crt")) == 400
    assert Link.requests == 1


def test_a_path_with_a_line_break_is_refused(gate: Gate) -> None:
    assert gate.ask(gate.context(), "pull-messages%0a") == 403
    assert gate.ask(gate.context(), "push-object%0a") == 403
    assert Link.requests == 0


def test_bodies_are_bounded_and_a_strangers_body_is_not_read(gate: Gate) -> None:
    assert gate.ask(gate.context(), "push-object", bytes(OBJECT)) == 200
    assert Link.received == OBJECT
    for path, size in (("push-object", OBJECT + 1), ("push-messages", SMALL + 1)):
        assert refused(gate, gate.context(), path, size) == 413
    assert refused(gate, unknown(gate), "push-object", 1_500_000_000) == 400
    assert (Link.requests, Link.received) == (1, OBJECT)


def refused(gate: Gate, context: ssl.SSLContext, path: str, size: int) -> int:
    """Announce a body, send its first bytes, and return the status of the answer."""
    with (
        socket.create_connection((HOST, gate.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        head = f"POST /v1/fleet/{path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n\r\n"
        secured.sendall(head.encode() + bytes(1000))
        return int(secured.recv(100).split()[1])


@pytest.mark.slow
def test_a_client_gets_an_answer_while_strangers_send_slowly(gate: Gate) -> None:
    """511 bodies and 511 headers, each left unfinished."""
    head = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100000\r\n".encode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def attack(i: int) -> socket.socket:
        held = context.wrap_socket(socket.create_connection((HOST, gate.port), timeout=20))
        held.sendall(head if i % 2 else head + b"\r\n1")
        return held

    with ThreadPoolExecutor(max_workers=32) as pool:
        held = list(pool.map(attack, range(2 * ATTACKERS)))
    try:
        assert [gate.ask(gate.context(name)) for name in ("a", "b", "a")] == [200] * 3
        assert Link.requests == 3
    finally:
        for one in held:
            one.close()


def test_a_client_that_sends_slowly_occupies_no_python(gate: Gate) -> None:
    """The proxy passes a body on when it has all of it."""
    head = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100000\r\n\r\n".encode()
    with gate.context().wrap_socket(socket.create_connection((HOST, gate.port)), server_hostname=HOST) as held:
        held.sendall(head + bytes(10))
        assert gate.ask(gate.context("b")) == 200
        assert Link.requests == 1


def test_a_removed_client_stays_outside(gate: Gate) -> None:
    server = gate.kits / "server"
    plan, sites = read_server(server)
    describe_sites(server, plan, [site for site in sites if site.name != "b"])
    assert provision._reload(server) == "The proxy knows it."
    context = gate.context("b")
    until, refusals = time.monotonic() + 20, 0
    while refusals < 5 and time.monotonic() < until:  # nginx's old workers may answer for a moment
        refusals = refusals + 1 if gate.ask(context) == 403 else 0
        time.sleep(0.05)
    assert refusals == 5
    assert gate.ask(gate.context("a")) == 200
    describe_sites(server, plan, sites)
    provision._reload(server)
