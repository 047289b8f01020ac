"""A federation on this machine, for trials: a SuperLink and N SuperNodes, as on N+1 machines.

It works like a real one: it uses TLS, SuperNodes sign their messages with registered keys, and each SuperNode has its
own folder. All processes listen on 127.0.0.1 only. A separate SuperExec starts the ServerApp, so that a run survives a
crash of the SuperLink. The federation's folder contains:

    federation.json   the processes: names, commands, pids, start times
    certificates/     the authority, the SuperLink's certificate and key, a key pair for every SuperNode
    flwr/             the settings of `flwr run` (FLWR_HOME), and the SuperLink's apps
    node-0/ ...       a SuperNode's programs, apps and its agent's state, which remain after the processes end
    superlink.db      runs and messages, which remain after the SuperLink ends
    nginx.conf        the proxy between SuperNodes and SuperLink, if nginx is installed
    clients.json      the node that owns each client's name
    logs/             the output of the processes
"""

import json
import os
import secrets
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError, count, refuse
from fedpd.flower.carry.directory import OWNERS
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import (
    NodeKeys,
    ServerCertificates,
    make_node_keys,
    make_server_certificates,
    write_secret,
)
from fedpd.flower.local.programs import (
    CONNECTION,
    HOST,
    Member,
    end,
    find,
    find_superexecs,
    start,
    wait_until,
    work_address,
)
from fedpd.flower.local.proxy import find_nginx, proxy_command, proxy_config
from fedpd.flower.warm.program import write_programs

RECORD, PROXY, PAGE = "federation.json", "proxy", "dashboard"
START_SECONDS = 120.0  # time for a process to become ready; measured 3 to 8 s on two idle cores
LEASE_SECONDS = 120.0  # time for a killed SuperNode to come back; Flower's lease is 60 s
LEASE_POLL = 3.0
WITHOUT = {  # by process, what does not work without it
    "superlink": "clients and runs wait for it",
    "superexec": "no run can start, and `flwr run` waits without a word",
    "proxy": "clients cannot reach the SuperLink",
    "dashboard": "its page cannot be seen",
}


class Page(NamedTuple):
    """The address of a live page."""

    host: str = "127.0.0.1"
    port: int = 8050

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class LocalFederation(NamedTuple):
    """A federation on this machine, whether it is running or not.

    Attributes:
        folder: The folder with all its files.
        agents: The number of SuperNodes.
        port: The port of the SuperLink, for `flwr run`.
        gate: The port for SuperNodes: that of the proxy, or of the SuperLink if nginx is not installed.
        members: Its processes: the SuperLink, the SuperExec, the proxy, the SuperNodes and the dashboard.
    """

    folder: Path
    agents: int
    port: int
    gate: int
    members: tuple[Member, ...]

    @property
    def home(self) -> Path:
        """The FLWR_HOME of `flwr run` and other commands."""
        return self.folder / "flwr"

    @property
    def certificates(self) -> ServerCertificates:
        """The files of the SuperLink's certificate."""
        return ServerCertificates.within(self.folder / "certificates")

    @property
    def running(self) -> list[Member]:
        """The processes that run now."""
        return [member for member in self.members if find(member) is not None]

    @property
    def page(self) -> Page | None:
        """The address of the live page; None if there is none."""
        return next((address_of(member) for member in self.members if member.name == PAGE), None)


def up(folder: Path, agents: int, page: Page | None = None) -> LocalFederation:
    """Start a federation in a folder; if the folder already has one, start its processes that do not run.

    Args:
        folder: A new or empty folder, or the folder of a federation.
        agents: The number of SuperNodes.
        page: The address for a live page; None: no page, unless a running federation has one.

    Raises:
        FedpdError: If the folder has other contents, or a process did not start.
    """
    count("--agents", agents, "Give the number of SuperNodes, e.g. 4", bits=10)  # each is a process
    folder = folder.absolute()
    known = read(folder)
    _check_folder(folder, agents, known, page)
    try:
        federation = known if known is not None and known.running else _prepare(folder, agents)
        return _start(federation if page is None else _add_page(federation, page))
    except BaseException:
        if known is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def down(folder: Path) -> list[str]:
    """End the processes of the federation in this folder, and no others; return the names of the ended ones."""
    federation = read(folder.absolute())
    if federation is None:
        refuse("--dir", str(folder), "holds no federation", "Start one with fedpd up, or give its folder")
    return _end(federation.members)


def read(folder: Path) -> LocalFederation | None:
    """Return the federation of a folder; None if there is none."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        members = tuple(Member(**member) for member in record["members"])
        return LocalFederation(folder, record["agents"], record["port"], record.get("gate", record["port"]), members)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        refuse("--dir", str(folder), f"its {RECORD} cannot be read ({error})", "Give another folder")


def _check_folder(folder: Path, agents: int, known: LocalFederation | None, page: Page | None) -> None:
    remedy = "Give another folder with --dir"
    if known is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            refuse("--dir", str(folder), "exists already and holds no federation", remedy)
        return
    if len(known.running) == len(known.members) and (page is None or known.page is not None):
        refuse("--dir", str(folder), "holds a federation that is running", "End it with fedpd down")
    if known.agents != agents:
        rule = f"the federation in {folder} has {known.agents} agents, with their keys and states"
        refuse("--agents", agents, rule, remedy)


def _prepare(folder: Path, agents: int) -> LocalFederation:
    """Create the folders, certificates, ports and commands, without starting processes."""
    for name in (".", "logs", "certificates", "flwr", *(f"node-{i}" for i in range(agents))):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = folder / "certificates" / "superexec.secret"
    federation = LocalFederation(folder, agents, 0, 0, ())
    for path in (*federation.certificates, secret):  # new at every start: all processes that use them start together
        path.unlink(missing_ok=True)
    certificates = make_server_certificates(folder / "certificates", ["localhost", HOST])
    write_secret(secret, secrets.token_bytes(32))
    link, gate, *ports = free_ports(agents + 2)
    commands = {
        "superlink": programs.superlink_command(link, certificates, secret, folder / "superlink.db"),
        "superexec": programs.superexec_command(link, certificates, secret),
    }
    if find_nginx() is None:
        gate = link
    else:
        config, user = folder / "nginx.conf", "root" if os.name == "posix" and os.geteuid() == 0 else ""
        (folder / "nginx-temporary").mkdir(mode=0o700, exist_ok=True)
        config.write_text(proxy_config(f"{HOST}:{gate}", f"{HOST}:{link}", certificates, user=user), encoding="utf-8")
        commands[PROXY] = proxy_command(folder, config)
    for i, port in enumerate(ports):
        state = {"partition-id": i, "num-partitions": agents, "fedpd-state": str(folder / f"node-{i}" / "state")}
        commands[f"supernode-{i}"] = programs.supernode_command(gate, port, certificates, _keys(folder, i), state)
    members = tuple(
        Member(name, command, str(folder / _home(name)), str(folder / "logs" / f"{name}.log"))
        for name, command in commands.items()
    )
    programs.write_settings(folder / "flwr", link, certificates)
    return federation._replace(port=link, gate=gate, members=members)


def _add_page(federation: LocalFederation, page: Page) -> LocalFederation:
    """Return the federation with a process that serves the live page; one that runs stays as it is."""
    if any(member.name == PAGE for member in federation.running):
        return federation
    check_free(page)
    others = (member for member in federation.members if member.name != PAGE)
    return federation._replace(members=(*others, page_member(federation.folder, federation.home, page)))


def page_member(folder: Path, home: Path, page: Page) -> Member:
    """Return the process that serves the page of the federation in a folder, not started."""
    command = [sys.executable, "-m", "fedpd.flower.local.dashboard", str(folder), page.host, str(page.port)]
    return Member(PAGE, command, str(home), str(folder / "logs" / f"{PAGE}.log"))


def address_of(member: Member) -> Page:
    """Return the address of the page that a process serves."""
    return Page(member.command[-2], int(member.command[-1]))


def check_free(page: Page) -> None:
    """Refuse an address at which no page can be served now."""
    family = socket.AF_INET6 if ":" in page.host else socket.AF_INET
    try:
        socket.create_server((page.host, page.port), family=family).close()
    except OSError as error:
        remedy = "Give another --dashboard-port or --dashboard-host"
        refuse("--dashboard", f"{page.host}:{page.port}", f"cannot be used ({error.strerror or error})", remedy)


def is_served(page: Page) -> bool:
    """Return whether the page answers."""
    try:
        with urllib.request.urlopen(f"{page.url}/live.js", timeout=1.0) as answer:
            return answer.status == 200
    except OSError:
        return False


def _home(name: str) -> str:
    """Return the folder with Flower's files of a process; SuperNodes must not share one."""
    return name.replace("supernode", "node") if name.startswith("supernode") else "flwr"


def _start(federation: LocalFederation) -> LocalFederation:
    """Start the processes that do not run; if one fails, end the started ones."""
    before = federation.running
    try:
        for i, member in enumerate(federation.members):
            if find(member) is None:
                federation = _start_one(federation, i)
            if i == 0:
                with ThreadPoolExecutor(max_workers=4) as pool:  # a `flwr` command takes seconds, mostly for imports
                    list(pool.map(partial(_register, federation), range(federation.agents)))
        for i, member in enumerate(federation.members):
            if member.name.startswith("supernode"):
                federation = _bring_online(federation, i)
    except BaseException:
        _end([member for member in federation.members if member not in before])
        raise
    return federation


def _bring_online(federation: LocalFederation, i: int) -> LocalFederation:
    """Wait until a SuperNode is online.

    The SuperLink rejects a killed SuperNode until the lease of its old process is over. The new process then ends, so
    this function starts it again.
    """
    until = time.monotonic() + LEASE_SECONDS
    while True:
        node = federation.members[i]
        try:
            wait_until(partial(programs.is_online, node), node, START_SECONDS, "online")
            return federation
        except FedpdError:
            if not programs.was_rejected(node) or time.monotonic() > until:
                raise
        time.sleep(LEASE_POLL)
        federation = _start_one(federation, i)


def _start_one(federation: LocalFederation, i: int) -> LocalFederation:
    """Start one process, and save its pid at once, so that a later error cannot lose it."""
    members = list(federation.members)
    home = Path(members[i].home)
    write_programs(home / "bin")
    environment = programs.environment(home, is_node=members[i].name.startswith("supernode"))
    environment |= {OWNERS: str(federation.folder / "clients.json")}
    members[i] = start(members[i], environment, federation.folder)
    federation = federation._replace(members=tuple(members))
    record = {
        "agents": federation.agents,
        "port": federation.port,
        "gate": federation.gate,
        "members": [member._asdict() for member in federation.members],
    }
    with replace_file(federation.folder / RECORD) as file:
        file.write(json.dumps(record, indent=1).encode())
    if i == 0:
        ready = partial(programs.is_healthy, federation.port, federation.certificates.authority)
        wait_until(ready, members[0], START_SECONDS, "ready")
    if members[i].name == PROXY:
        ready = partial(programs.is_closed, federation.gate, federation.certificates.authority)
        wait_until(ready, members[i], START_SECONDS, "ready")
    if members[i].name == PAGE:
        wait_until(partial(is_served, address_of(members[i])), members[i], START_SECONDS, "ready")
    return federation


def _end(members: Sequence[Member]) -> list[str]:
    """End SuperNodes first, so that they sign off at the SuperLink and can return at once, not after the 60 s lease."""
    nodes = [member for member in members if member.name.startswith("supernode")]
    return end(nodes) + end([member for member in members if member not in nodes])


def _keys(folder: Path, i: int) -> NodeKeys:
    return NodeKeys.within(folder / "certificates", f"node-{i}")


def _register(federation: LocalFederation, i: int) -> None:
    """Register the keys of SuperNode i at the SuperLink, which keeps them in its database."""
    keys = _keys(federation.folder, i)
    if not keys.private.exists():
        make_node_keys(keys.private.parent, keys.private.name)
        programs.flwr(federation.home, "supernode", "register", str(keys.public), CONNECTION)


def free_ports(number: int) -> list[int]:
    """Return different ports that no process listens on."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Status(NamedTuple):
    """The state of a federation.

    Attributes:
        lines: One line per process, and the remedies.
        good: Whether everything runs.
    """

    lines: list[str]
    good: bool


def describe(federation: LocalFederation) -> Status:
    """Return the state of a federation: its processes, and the SuperExec that some of them keep running."""
    running, superexecs = {member.name for member in federation.running}, find_superexecs()
    lines, idle = [], False
    for member in federation.members:
        harm, address = WITHOUT.get(member.name, "its client is absent"), work_address(member)
        if member.name not in running:
            lines += [f"{member.name}: does not run; {harm}", f"    Its log: {member.log}"]
        elif address is not None and address not in superexecs:
            idle = True
            lines += [f"{member.name}: its SuperExec has died and starts again; until then, {harm}"]
            lines += [f"    Its log: {member.log}"]
        else:
            lines.append(f"{member.name}: runs, process {member.pid}")
    if len(running) < len(federation.members):
        lines.append(f"Start it again: fedpd up --agents {federation.agents} --dir {federation.folder}")
    if idle:
        lines.append(f"If a SuperExec is not back after a minute: fedpd down --dir {federation.folder}, then fedpd up")
    return Status(lines, len(running) == len(federation.members) and not idle)
