"""A whole federation on this machine, for trying things out: a SuperLink and N SuperNodes, as on N+1 machines.

With all that a real one has: TLS, SuperNodes that sign what they send with keys that are registered, a folder of its
own for each. Everything listens on 127.0.0.1 only. In its folder:

    federation.json   who runs: names, pids, start times, ports
    certificates/     the authority, the SuperLink's certificate and key, a key pair for every SuperNode
    flwr/             the settings of `flwr run` (FLWR_HOME), and the SuperLink's apps
    node-0/ ...       a SuperNode's apps and its agent's state, which outlive the processes
    superlink.db      runs and messages, which outlive the SuperLink
    logs/             what they print
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.atomic import replace_file
from fedpd.checks import FedpdError, count, refuse
from fedpd.flower.certificates import NodeKeys, ServerCertificates, make_node_keys, make_server_certificates
from fedpd.flower.processes import Member, end, find, start, wait_until

HOST = "127.0.0.1"
CONNECTION = "fedpd"  # the federation's name in Flower's settings
RECORD = "federation.json"
START_SECONDS = 60.0  # for a process to be ready: measured 3 to 8 s on two cores
COMMAND_SECONDS = 60.0
ONLINE = "SuperNode ID:"  # a SuperNode's log says so once the SuperLink has let it in


class Federation(NamedTuple):
    """A federation that runs, or did."""

    folder: Path
    agents: int
    port: int  # the SuperLink's
    members: tuple[Member, ...]

    @property
    def home(self) -> Path:
        """FLWR_HOME for `flwr run` and its like."""
        return self.folder / "flwr"

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if find(member) is not None]


def up(folder: Path, agents: int) -> Federation:
    """Start a federation of so many agents; in a folder where one has run before, that one again."""
    count("--agents", agents, "Give the number of SuperNodes, e.g. 4")
    folder = folder.absolute()
    known = read(folder)
    _check_folder(folder, agents, known)
    try:
        return _start(folder, agents)
    except BaseException:
        if known is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def down(folder: Path) -> list[str]:
    """End the processes of the federation in this folder, and no others; the names of those that were running."""
    federation = read(folder.absolute())
    if federation is None:
        refuse("--dir", str(folder), "holds no federation", "Start one with fedpd up, or give the folder of one")
    return _end(federation.members)


def read(folder: Path) -> Federation | None:
    """The federation of a folder; None where there is none."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        members = tuple(Member(**member) for member in record["members"])
        return Federation(folder, record["agents"], record["port"], members)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
        refuse("--dir", str(folder), f"its {RECORD} cannot be read ({error})", "Give another folder")


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes are started with: own settings, no reports home, programs of this environment only."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{bin_folder()}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower starts its programs by name
        "PYTHONUNBUFFERED": "1",
    }


def bin_folder() -> Path:
    """Where Flower's programs are installed: beside this Python."""
    return Path(sys.executable).absolute().parent


def flwr(federation: Federation, *arguments: str) -> Any:
    """The answer of a `flwr` command to this federation."""
    command = [str(bin_folder() / "flwr"), *arguments, CONNECTION, "--format", "json"]
    done = subprocess.run(
        command, env=environment(federation.home), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    with suppress(ValueError):
        answer = json.loads(done.stdout[done.stdout.index("{") :])
        if done.returncode == 0 and answer.get("success", True):
            return answer
    said = (done.stdout + done.stderr).strip()
    raise FedpdError(f"flwr {' '.join(arguments)} failed: {said}. See the logs in {federation.folder / 'logs'}.")


def _check_folder(folder: Path, agents: int, known: Federation | None) -> None:
    remedy = "Give another folder with --dir"
    if known is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            refuse("--dir", str(folder), "is there already and holds no federation", remedy)
        return
    if known.running:
        names = ", ".join(member.name for member in known.running)
        refuse("--dir", str(folder), f"holds a federation that is running ({names})", "End it with fedpd down")
    if known.agents != agents:
        rule = f"the federation in {folder} has {known.agents} agents, whose keys and states are there"
        refuse("--agents", agents, rule, remedy)


def _start(folder: Path, agents: int) -> Federation:
    for name in (".", "logs", "certificates", "flwr", *(f"node-{i}" for i in range(agents))):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    certificates = _server_certificates(folder)
    ports = _free_ports(agents + 1)
    federation = Federation(folder, agents, ports[0], ())
    _write_settings(federation, certificates)
    try:
        federation = _add(federation, "superlink", _superlink(federation, certificates), federation.home)
        link = federation.members[0]
        wait_until(lambda: _healthy(federation.port, certificates.authority), link, START_SECONDS, "ready")
        with ThreadPoolExecutor(max_workers=4) as pool:  # a `flwr` command takes three seconds, most of it imports
            keys = list(pool.map(partial(_registered_keys, federation), range(agents)))
        for i in range(agents):
            command = _supernode(federation, certificates, keys[i], i, ports[1 + i])
            federation = _add(federation, f"supernode-{i}", command, folder / f"node-{i}")
        for node in federation.members[1:]:
            wait_until(partial(_says, Path(node.log), ONLINE), node, START_SECONDS, "online")
    except BaseException:
        _end(federation.members)
        raise
    return federation


def _add(federation: Federation, name: str, command: list[str], home: Path) -> Federation:
    """Start one more process, and write down who it is before anything else can go wrong."""
    log = federation.folder / "logs" / f"{name}.log"
    log.unlink(missing_ok=True)
    member = start(name, command, log, environment(home), federation.folder)
    federation = federation._replace(members=(*federation.members, member))
    record = {
        "agents": federation.agents,
        "port": federation.port,
        "members": [member._asdict() for member in federation.members],
    }
    with replace_file(federation.folder / RECORD) as file:
        file.write(json.dumps(record, indent=1).encode())
    return federation


def _end(members: Sequence[Member]) -> list[str]:
    """SuperNodes first: one that says goodbye to the SuperLink can come back at once, else after its lease of 60 s."""
    return end(members[1:]) + end(members[:1])


def _superlink(federation: Federation, certificates: ServerCertificates) -> list[str]:
    return [
        str(bin_folder() / "flower-superlink"),
        *("--host", HOST, "--port", str(federation.port)),
        *_server_side(certificates),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--database", str(federation.folder / "superlink.db")),
    ]


def _supernode(
    federation: Federation, certificates: ServerCertificates, keys: NodeKeys, i: int, port: int
) -> list[str]:
    state = federation.folder / f"node-{i}" / "state"
    return [
        str(bin_folder() / "flower-supernode"),
        *("--superlink", f"{HOST}:{federation.port}"),
        *("--root-certificates", str(certificates.authority)),
        *("--auth-supernode-private-key", str(keys.private)),
        *("--host", HOST, "--port", str(port)),
        *_server_side(certificates),  # for what it starts itself, which talks to it over this port
        *("--node-config", f"partition-id={i} num-partitions={federation.agents} fedpd-state={json.dumps(str(state))}"),
    ]


def _server_side(certificates: ServerCertificates) -> list[str]:
    authority, certificate, key = map(str, certificates)
    return ["--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key]


def _server_certificates(folder: Path) -> ServerCertificates:
    """Made anew at every start: they are short-lived, and only processes started together have to agree on them."""
    for name in ("ca.crt", "server.pem", "server.key"):
        (folder / "certificates" / name).unlink(missing_ok=True)
    return make_server_certificates(folder / "certificates", ["localhost", HOST])


def _registered_keys(federation: Federation, i: int) -> NodeKeys:
    """The keys of SuperNode i, which the SuperLink knows: it keeps them in its database from start to start."""
    folder = federation.folder / "certificates"
    keys = NodeKeys(folder / f"node-{i}", folder / f"node-{i}.pub")
    if not keys.private.exists():
        make_node_keys(folder, f"node-{i}")
        flwr(federation, "supernode", "register", str(keys.public))
    return keys


def _write_settings(federation: Federation, certificates: ServerCertificates) -> None:
    """Where `flwr run APP` finds this federation."""
    (federation.home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{HOST}:{federation.port}"\n'
        f"root-certificates = {json.dumps(str(certificates.authority))}\n",
        encoding="utf-8",
    )


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on: all are held at once, so that they differ."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(encoding="utf-8", errors="replace")


def _healthy(port: int, authority: Path) -> bool:
    """Whether the SuperLink answers, with a certificate of this federation's."""
    try:
        context = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(f"https://{HOST}:{port}/health", timeout=1.0, context=context) as answer:
            return answer.status == 200
    except OSError:
        return False
