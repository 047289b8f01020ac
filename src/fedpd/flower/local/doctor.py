"""Checks of a client's machine and of the server's: each failure is a sentence with a remedy.

A SuperNode that the server turns away does not learn why. The checks of a client's machine find the reasons: the
server's name, its port, its certificate, the clock, whether it sees this client online, the versions, the disk, the
SuperExec, other users of the machine, and, with the app, its data. Those of the server's look at its files, its
processes and its clients.
"""

import importlib
import os
import socket
import ssl
import stat
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import flwr
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpd import __version__
from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.carry.protocol import DRY_STEP, PREFIX
from fedpd.flower.clients.client import LOCAL
from fedpd.flower.clients.site_policy import read_policy
from fedpd.flower.clients.store import free_bytes
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import AUTHORITY_KEY, end_of
from fedpd.flower.local.programs import HOST, find_superexecs
from fedpd.flower.local.provision import authority_end, nodes_of, read_server
from fedpd.flower.local.sites import ServerPlan, Site, node_config
from fedpd.flower.private import (
    VERSIONS,
    AcquireTaskRequest,
    ActivateNodeRequest,
    NodeAuthHttpInterceptor,
    ProtobufRequestContext,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    TaskIdentity,
    set_identity,
)
from fedpd.flower.warm.program import STATUS
from fedpd.flower.warm.supernode import AHEAD, BEHIND, tls_context

SECONDS = 10.0  # for each connection
ROOM = 10**9  # bytes that a client should have for its state and its apps
DAYS = 14  # before the certificate ends, the checks say so
FIRST = 1000  # the first id of a person's account; system accounts have smaller ones
NOBODY = 65534
CLOSED = ("nologin", "false", "sync")  # shells of accounts that cannot log in
SECRETS = ("server.key", AUTHORITY_KEY, "superexec.secret")


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        what: What was checked.
        found: What was found, or the problem and its remedy.
        good: Whether it is in order.
    """

    what: str
    found: str
    good: bool


def examine(site: Site) -> Iterator[Finding]:
    """Yield the findings of all checks of a client. After a failure, it leaves out the checks that need what failed."""
    for what, check in (
        ("versions", _versions),
        ("files", _files),
        ("policy", _policy),
        ("disk", _disk),
        ("SuperExec", _superexec),
        ("other users", _users),
    ):
        yield _run(what, check, site)
    for what, check in (
        ("name of the server", _name),
        ("port of the server", _port),
        ("certificate", _certificate),
        ("clock", _clock),
        ("server", _online),
    ):
        found = _run(what, check, site)
        yield found
        if not found.good:
            return


def _run(what: str, check: Callable[[Site], str], site: Site) -> Finding:
    return finding(what, lambda: check(site))


def finding(what: str, check: Callable[[], str]) -> Finding:
    """Return what a check found; a problem is its FedpdError."""
    try:
        return Finding(what, check(), True)
    except FedpdError as error:
        return Finding(what, str(error), False)


def versions() -> str:
    """Return the versions of fedpd and Flower.

    Raises:
        FedpdError: If fedpd does not run with this version of Flower.
    """
    if not flwr.__version__.startswith(VERSIONS):
        wanted = " or ".join(f"{version}x" for version in VERSIONS)
        raise FedpdError(f"flwr {flwr.__version__} is installed. Run install.sh of the kit again, for flwr {wanted}.")
    return f"fedpd {__version__}, flwr {flwr.__version__}"


def _versions(site: Site) -> str:
    return f"{versions()}; the server must have the same"


def _files(site: Site) -> str:
    for path in (site.key, site.authority, site.certificate):
        if path is not None and not path.is_file():
            raise FedpdError(f"{path} is missing. Copy it from the client's kit.")
    if stat.S_IMODE(site.key.stat().st_mode) & 0o077:
        raise FedpdError(f"{site.key} can be read by others. Run: chmod 600 {site.key}.")
    _private_key(site)
    return f"{site.key.name} and {site.authority.name} are in order"


def _private_key(site: Site) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(site.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
    except (OSError, ValueError, AssertionError):
        raise FedpdError(f"{site.key} is not a client's key. Copy it from the client's kit.") from None
    return key


def _policy(site: Site) -> str:
    rules = read_policy(site.policy)
    if rules.apps is None:
        return "no list of apps: this client runs every app that the server sends"
    return f"{len(rules.apps)} apps are listed in {site.policy}"


def _disk(site: Site) -> str:
    try:
        free = free_bytes(site.state)
    except OSError as error:
        raise FedpdError(
            f"{site.state} cannot be written ({error.strerror}). Make it writable for this user."
        ) from None
    if free < ROOM:
        raise FedpdError(
            f"{site.state} has {free / 1e9:.1f} GB left. Make room: a client keeps several models per run."
        )
    return f"{site.state} is writable, and {free / 1e9:.0f} GB are left"


def _runs(site: Site) -> bool:
    with socket.socket() as one:
        return one.connect_ex((HOST, site.port)) == 0


def _superexec(site: Site) -> str:
    """Check that a SuperNode that runs also has its SuperExec, without which it is online and answers no message."""
    if not _runs(site):
        return "not checked, because this client's SuperNode does not run"
    pid = find_superexecs().get(f"{HOST}:{site.port}")
    if pid is None:
        raise FedpdError(
            "this client's SuperNode runs without its SuperExec, so it answers no message. Wait a minute, because a "
            "SuperExec that died starts again; then restart the client."
        )
    return f"this client's SuperExec runs, process {pid}"


def _users(site: Site) -> str:
    """Check that other users of this machine cannot act as this client."""
    if not _runs(site):
        return "not checked, because this client's SuperNode does not run"
    if not _gives_work_to_anybody(site):
        return "no other user of this machine can act as this client"
    others = other_accounts()
    if not others:
        return "its SuperNode gives work to any user of this machine, but nobody else has an account"
    raise FedpdError(
        f"any user of this machine can act as this client, and {', '.join(others)} can log in: its SuperNode asks for "
        "no secret. Start it with fedpd client of this version."
    )


def _gives_work_to_anybody(site: Site) -> bool:
    """Return whether this client's SuperNode gives work to a program without its secret; it asks for none here."""
    for scheme in ("https", "http"):
        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        asking: Any = RuntimeHttpClient(f"{scheme}://{HOST}:{site.port}", interceptors=interceptors, verify=False)
        with asking as client:
            try:
                client.AcquireTask(AcquireTaskRequest())
                return True
            except httpx.HTTPStatusError as error:
                return error.response.status_code != httpx.codes.UNAUTHORIZED
            except httpx.HTTPError:
                continue
    return False


def _address(site: Site) -> tuple[str, int]:
    host, _, port = site.server.rpartition(":")
    return host.strip("[]"), int(port)


def _name(site: Site) -> str:
    host, port = _address(site)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise FedpdError(f"{host} has no address ({error.strerror}). Check DNS, or add it to /etc/hosts.") from None
    return f"{host} is {found[0][4][0]}"


def _port(site: Site) -> str:
    try:
        socket.create_connection(_address(site), timeout=SECONDS).close()
    except OSError as error:
        remedy = "Check that its proxy runs, and that no firewall is between"
        raise FedpdError(f"{site.server} does not answer ({error.strerror or 'no answer'}). {remedy}.") from None
    return f"{site.server} answers"


def _certificate(site: Site) -> str:
    host, port = _address(site)
    try:
        context = _context(site)
        with (
            socket.create_connection((host, port), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            ends = ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"]))
    except ssl.SSLCertVerificationError as error:
        remedy = "Copy ca.crt from the server's operator again; the names of a certificate are in sites.toml"
        raise FedpdError(f"the certificate of {host} is refused ({error.verify_message}). {remedy}.") from None
    except OSError as error:
        raise FedpdError(f"{site.server} does not speak TLS ({error}). Give the port of the proxy.") from None
    left = (ends - time.time()) / 86400
    if left < DAYS:
        raise FedpdError(f"the certificate of {host} ends in {left:.0f} days. Ask its operator to run fedpd renew.")
    return f"it is valid for {left:.0f} days"


def _clock(site: Site) -> str:
    context = _context(site)
    try:
        with urllib.request.urlopen(f"https://{site.server}/", timeout=SECONDS, context=context) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:  # the proxy refuses the path, and its answer has a date
        with error:
            date = error.headers["Date"]
    except OSError as error:
        raise FedpdError(f"{site.server} did not answer ({error}). Try again.") from None
    try:
        ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (TypeError, ValueError):
        raise FedpdError(f"{site.server} sends no date, so it is not the proxy of a kit. Check the port.") from None
    if not -BEHIND < ahead < AHEAD:
        side = "ahead of" if ahead > 0 else "behind"
        raise FedpdError(
            f"this clock is {abs(ahead):.0f} s {side} the server's, which rejects it. Set it, e.g. by NTP."
        )
    return f"it differs from the server's by {abs(ahead):.0f} s"


def _context(site: Site) -> ssl.SSLContext:
    try:
        return tls_context(site.authority, site.certificate, site.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        remedy = "Copy client.crt and client.key from the client's kit again"
        raise FedpdError(f"the client's certificate and key do not fit ({error}). {remedy}.") from None


def _online(site: Site) -> str:
    """Ask the server how it sees this client, and compare it with what runs here."""
    found = _ask(site)
    node, online, runs = found.get("node"), found.get("status") == "online", _runs(site)
    if node is None:
        raise FedpdError("the server does not know this key. Ask its operator to run: ./start.sh register.")
    if runs and not online:
        raise FedpdError(
            "this client's SuperNode runs, but the server does not see it online. Wait a minute; if that does not "
            f"help, look at its log and restart it: systemctl restart fedpd-{site.name}."
        )
    if online and not runs:
        raise FedpdError(
            "the server sees this client online, but its SuperNode does not run here. It ended less than 60 s ago, or "
            "another machine uses its key. Wait a minute."
        )
    return f"it sees this client online, as node {node}" if online else f"it knows this key as node {node}"


def _ask(site: Site) -> dict[str, Any]:
    """Return what the server says about this client."""
    key = _private_key(site)
    sign = NodeAuthHttpInterceptor(key, key.public_key())
    with httpx.Client(verify=_context(site), timeout=SECONDS) as client:
        request = client.build_request("GET", f"https://{site.server}{STATUS}")
        context = ProtobufRequestContext("", ActivateNodeRequest(), request)
        try:
            answer = sign.intercept(context, lambda signed: client.send(signed.request))
        except httpx.HTTPError as error:
            raise FedpdError(f"the server did not answer ({error}). Try again.") from None
    reasons = {
        400: "the proxy does not accept this client's certificate. Copy client.crt from the kit, as site.toml names it",
        401: "the server does not accept the signature of this key. Copy client.key from the kit again",
        403: "the server does not know this client's certificate. Ask its operator: the kit may have been replaced",
        404: "the server runs another version of fedpd. Install the same one at both sides",
        502: "the server's proxy runs, but its SuperLink does not. Ask the operator to start it",
    }
    status = answer.status_code
    if status == httpx.codes.OK:
        return answer.json()
    raise FedpdError(f"{reasons.get(status, f'the server answers {status}. Ask its operator')}.")


def examine_app(site: Site, app: Path) -> Iterator[Finding]:
    """Yield the findings of the checks that need the app: its hash, its data, and one local step."""
    from fedpd.flower.local.sites import app_hash, check_hash

    def listed(site: Site) -> str:
        found = app_hash(app)
        check_hash(read_policy(site.policy), found, site.name)
        return f"this client runs it: {found}"

    yield _run("app", listed, site)
    yield _run("data and one step", lambda site: _try_one_step(site, app), site)


def _try_one_step(site: Site, app: Path) -> str:
    """Read the client's data with an app and do one local step; return what was found. Nothing is sent or saved.

    Raises:
        FedpdError: If the app cannot be loaded, or the data or the step have a problem.
    """
    client, config = _load_app(app)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    context = Context(1, 1, node_config(site) | {LOCAL: True}, RecordDict(), config)
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, DRY_STEP)
    set_identity(message, "dry-step")
    began = time.monotonic()
    reply: Any = client(message, context).content.config_records["config"]
    if problem := reply[PREFIX + "problem"]:
        raise FedpdError(str(problem))
    return f"{reply[PREFIX + 'samples']} samples; the first local step took {time.monotonic() - began:.1f} s"


def _load_app(app: Path) -> tuple[ClientApp, dict[str, str | int | float | bool]]:
    """Return the ClientApp of an app's folder, and the configuration of its runs."""
    try:
        settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        module, _, name = settings["components"]["clientapp"].partition(":")
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse("--app", str(app), f"is not a Flower app ({error})", "Give the folder with its pyproject.toml")
    sys.path.insert(0, str(app.absolute()))
    try:
        loaded = getattr(importlib.import_module(module), name)
    except Exception as error:  # the app's own code
        raise FedpdError(
            f"the app cannot be imported ({type(error).__name__}: {error}). Install what it needs."
        ) from None
    finally:
        sys.path.remove(str(app.absolute()))
    return loaded, settings.get("config", {})


def other_accounts() -> list[str]:
    """Return the names of accounts that can log in, other than root and the one of this process."""
    try:
        import pwd
    except ImportError:  # this system has no such list
        return []
    return sorted(
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid >= FIRST
        and account.pw_uid not in (NOBODY, os.geteuid())
        and not account.pw_shell.endswith(CLOSED)
    )


def examine_server(kit: Path) -> Iterator[Finding]:
    """Yield the findings of all checks of a server's kit."""
    read_server(kit)  # a mistake shows at once
    yield finding("versions", lambda: f"{versions()}; the clients must have the same")
    yield finding("files", lambda: _server_files(kit))
    yield finding("certificate", lambda: _server_certificate(kit))
    yield finding("disk", lambda: _server_disk(kit))
    yield finding("other users", _server_users)
    yield from examine_processes(kit)


def examine_processes(kit: Path) -> Iterator[Finding]:
    """Yield which parts of the server run, and whether each client is online."""
    server, sites = read_server(kit)
    yield finding("SuperLink", lambda: _superlink(kit, server))
    yield finding("SuperExec", lambda: _server_superexec(server))
    yield finding("proxy", lambda: _proxy(kit, server))
    try:
        nodes = nodes_of(kit, server)
        owners = read_owners(kit / "clients.json")
    except FedpdError as error:
        yield Finding("clients", str(error), False)
        return
    for site in sites:
        yield client_finding(site.name, owners.get(site.name), nodes)


def client_finding(name: str, node: int | None, nodes: dict[str, str]) -> Finding:
    """Return whether a client is online, by its node and the status of all nodes."""
    status = nodes.get(str(node))
    if status == "online":
        return Finding(name, f"online, node {node}", True)
    if node is None or status is None:
        return Finding(name, "its key is not registered. Run: ./start.sh register.", False)
    remedy = f"At its machine: fedpd doctor, and systemctl status fedpd-{name}"
    never = "it has never been online" if status == "registered" else "offline"
    return Finding(name, f"{never}, node {node}. {remedy}.", False)


def _server_files(kit: Path) -> str:
    for name in SECRETS:
        path = kit / name
        if not path.is_file() and name != AUTHORITY_KEY:  # whose owner may keep it elsewhere
            raise FedpdError(f"{path} is missing. Copy it from the server's kit.")
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise FedpdError(f"{path} can be read by others. Run: chmod 600 {path}.")
    return "the secrets are their owner's alone"


def _server_certificate(kit: Path) -> str:
    left = (end_of(kit / "server.pem").timestamp() - time.time()) / 86400
    if left < DAYS:
        raise FedpdError(f"the certificate ends in {left:.0f} days. Run: fedpd renew {kit}.")
    return f"it is valid for {left:.0f} days, the authority until {authority_end(kit)}"


def _server_disk(kit: Path) -> str:
    free = free_bytes(kit)
    if free < ROOM:
        raise FedpdError(f"{kit} has {free / 1e9:.1f} GB left. Make room: the SuperLink's database holds messages.")
    return f"{free / 1e9:.0f} GB are left"


def _server_users() -> str:
    others = other_accounts()
    if not others:
        return "nobody else has an account on this machine"
    return f"{', '.join(others)} can log in on this machine, and whoever can log in here can start runs on all clients"


def _superlink(kit: Path, server: ServerPlan) -> str:
    if not programs.is_healthy(server.link_port, kit / "ca.crt"):
        raise FedpdError(f"none answers at {HOST}:{server.link_port}. Run: systemctl start fedpd-superlink.")
    return f"answers at {HOST}:{server.link_port}"


def _server_superexec(server: ServerPlan) -> str:
    pid = find_superexecs().get(f"{HOST}:{server.link_port}")
    if pid is None:
        raise FedpdError("none runs, so no run can start. Run: systemctl start fedpd-superexec.")
    return f"runs, process {pid}"


def _proxy(kit: Path, server: ServerPlan) -> str:
    if not programs.is_closed(server.port, kit / "ca.crt"):
        raise FedpdError(f"none answers at port {server.port}. Run: systemctl start fedpd-proxy.")
    return f"answers at port {server.port}, and lets only known clients in"
