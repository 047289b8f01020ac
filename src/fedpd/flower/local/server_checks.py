"""Checks of a server's machine: its files, its processes, its clients. Each failure is a sentence with a remedy."""

import stat
import time
from collections.abc import Iterator
from pathlib import Path

from fedpd.base.checks import FedpdError
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.clients.store import free_bytes
from fedpd.flower.local import programs
from fedpd.flower.local.accounts import other_accounts
from fedpd.flower.local.certificates import AUTHORITY_KEY, end_of
from fedpd.flower.local.doctor import DAYS, ROOM, Finding, finding, versions
from fedpd.flower.local.membership import authority_end, nodes_of, read_server
from fedpd.flower.local.programs import HOST, find_superexecs
from fedpd.flower.local.sites import ServerPlan

SECRETS = ("server.key", AUTHORITY_KEY, "superexec.secret")


def examine_server(kit: Path) -> Iterator[Finding]:
    """Yield the findings of all checks of a server's kit."""
    read_server(kit)  # a mistake shows at once
    yield finding("versions", lambda: f"{versions()}; the clients must have the same")
    yield finding("files", lambda: _files(kit))
    yield finding("certificate", lambda: _certificate(kit))
    yield finding("disk", lambda: _disk(kit))
    yield finding("other users", _users)
    yield from examine_processes(kit)


def examine_processes(kit: Path) -> Iterator[Finding]:
    """Yield which parts of the server run, and whether each client is online."""
    server, sites = read_server(kit)
    yield finding("SuperLink", lambda: _superlink(kit, server))
    yield finding("SuperExec", lambda: _superexec(server))
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


def _files(kit: Path) -> str:
    for name in SECRETS:
        path = kit / name
        if not path.is_file() and name != AUTHORITY_KEY:  # whose owner may keep it elsewhere
            raise FedpdError(f"{path} is missing. Copy it from the server's kit.")
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise FedpdError(f"{path} can be read by others. Run: chmod 600 {path}.")
    return "the secrets are their owner's alone"


def _certificate(kit: Path) -> str:
    left = (end_of(kit / "server.pem").timestamp() - time.time()) / 86400
    if left < DAYS:
        raise FedpdError(f"the certificate ends in {left:.0f} days. Run: fedpd renew {kit}.")
    return f"it is valid for {left:.0f} days, the authority until {authority_end(kit)}"


def _disk(kit: Path) -> str:
    free = free_bytes(kit)
    if free < ROOM:
        raise FedpdError(f"{kit} has {free / 1e9:.1f} GB left. Make room: the SuperLink's database holds messages.")
    return f"{free / 1e9:.0f} GB are left"


def _users() -> str:
    others = other_accounts()
    if not others:
        return "nobody else has an account on this machine"
    return f"{', '.join(others)} can log in on this machine, and whoever can log in here can start runs on all clients"


def _superlink(kit: Path, server: ServerPlan) -> str:
    if not programs.is_healthy(server.link_port, kit / "ca.crt"):
        raise FedpdError(f"none answers at {HOST}:{server.link_port}. Run: systemctl start fedpd-superlink.")
    return f"answers at {HOST}:{server.link_port}"


def _superexec(server: ServerPlan) -> str:
    pid = find_superexecs().get(f"{HOST}:{server.link_port}")
    if pid is None:
        raise FedpdError("none runs, so no run can start. Run: systemctl start fedpd-superexec.")
    return f"runs, process {pid}"


def _proxy(kit: Path, server: ServerPlan) -> str:
    if not programs.is_closed(server.port, kit / "ca.crt"):
        raise FedpdError(f"none answers at port {server.port}. Run: systemctl start fedpd-proxy.")
    return f"answers at port {server.port}, and lets only known clients in"
