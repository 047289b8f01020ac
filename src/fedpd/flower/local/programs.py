"""Flower's programs: commands, environment, settings, checks that they are ready, and which SuperExecs run.

`start` and `end` are for processes that continue after the command that started them. They end by their pid and start
time: after a crash or a restart of the machine, a pid alone may belong to another process.
"""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fedpd.base.checks import FedpdError
from fedpd.flower.local.certificates import NodeKeys, ServerCertificates
from fedpd.flower.warm import program
from fedpd.flower.warm.program import bin_folder as bin_folder
from fedpd.flower.warm.supervisor import SUPEREXEC

HOST = "127.0.0.1"
CONNECTION = "fedpd"  # the federation's name in Flower's settings
COMMAND_SECONDS = 120.0
ONLINE = "SuperNode ID:"  # a SuperNode logs this when the SuperLink has accepted it
TASK_POLL = "0.2"  # seconds between two checks of a SuperExec for work; Flower's default is 1
REJECTED = "Failed to activate SuperNode"
ADDRESS = "--runtime-api-address"  # the option with the address from which a SuperExec gets its work
TAIL = 15  # lines of a log in an error message
GRACE = 10.0  # seconds that a process has to end by itself before it is killed
POLL = 0.1
CLOCK_STEP = 2.0  # seconds by which a start time may change when the system's clock is set

_STARTED: list[subprocess.Popen[bytes]] = []  # the child processes, whose exit codes this process must read


class Member(NamedTuple):
    """A process of a federation.

    Attributes:
        name: Its name in messages and logs.
        command: The command that starts it.
        home: Its FLWR_HOME.
        log: The file with its output.
        pid: Its process id; 0: it has not been started.
        started: Its start time as the system reports it.
    """

    name: str
    command: list[str]
    home: str
    log: str
    pid: int = 0
    started: float = 0.0


def start(member: Member, environment: Mapping[str, str], folder: Path) -> Member:
    """Start a process in this folder and in its own session, so that Ctrl-C here does not end it."""
    with Path(member.log).open("wb") as file:
        process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            umask=0o077 if os.name == "posix" else -1,  # databases, states and results are their owner's alone
        )
    _STARTED.append(process)
    try:
        started = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:  # it has ended already, and `wait_until` will report it
        started = 0.0
    return member._replace(pid=process.pid, started=started)


def find(member: Member) -> psutil.Process | None:
    """Return the process if it still runs, else None."""
    if not member.pid:
        return None
    try:
        process = psutil.Process(member.pid)
        same = abs(process.create_time() - member.started) < CLOCK_STEP
    except psutil.NoSuchProcess:
        return None
    return process if same and _runs(process) else None


def wait_until(ready: Callable[[], bool], member: Member, seconds: float, what: str) -> None:
    """Wait until `ready()`.

    Raises:
        FedpdError: If the process ended before, or took too long; the message shows the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if find(member) is None:
            raise FedpdError(f"{member.name} ended before it was {what}. Its log ends:\n{tail(member)}")
        if time.monotonic() > deadline:
            raise FedpdError(f"{member.name} was not {what} within {seconds:g} s. Its log ends:\n{tail(member)}")
        time.sleep(POLL)


def tail(member: Member) -> str:
    """Return the last lines of a process's log."""
    lines = Path(member.log).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-TAIL:]) or "    (nothing)"


def end(members: Iterable[Member], grace: float = GRACE) -> list[str]:
    """End these processes and their children; return the names of the processes that were still running."""
    running = [(member, process) for member in members if (process := find(member)) is not None]
    heads = [process for _, process in running]
    children = [child for process in heads for child in _children(process)]
    remaining = _signal_and_wait(psutil.Process.terminate, heads, grace)
    remaining += _signal_and_wait(psutil.Process.terminate, children, grace)  # most have ended with their parents
    _signal_and_wait(psutil.Process.kill, remaining, grace)
    return [member.name for member, _ in running]


def _signal_and_wait(
    signal: Callable[[psutil.Process], None], processes: list[psutil.Process], grace: float
) -> list[psutil.Process]:
    """Send a signal, wait, and return the processes that still run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signal(process)
    deadline = time.monotonic() + grace
    while (processes := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(POLL)
    return processes


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs.

    The system may list an ended process until its parent reads its exit code, so this function reads it if this process
    is the parent. The system also lists a process as ended when only its first thread has ended; its parent gets the
    exit code after the last thread.
    """
    if any(held.poll() is None and held.pid == process.pid for held in _STARTED):
        return True
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Return what a process of `start` has started, also what a child that has died has left in its session."""
    try:
        own = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return own + [one for one in psutil.process_iter() if _session(one) == process.pid and one not in (process, *own)]


def _session(process: psutil.Process) -> int:
    """Return the number of a process's session, which is the pid of the process that began it; 0: unknown."""
    with suppress(OSError, AttributeError):  # it has ended; this system has no sessions
        return os.getsid(process.pid)
    return 0


def environment(home: Path, *, is_node: bool = False) -> dict[str, str]:
    """Return the environment of Flower's processes: own settings, no telemetry, only programs of this installation.

    Flower starts its programs by name. The first folder of PATH has the `flwr-clientapp` of `fedpd.flower.warm`. JAX
    keeps its compiled programs on disk for the next process.

    Args:
        home: The FLWR_HOME of the processes.
        is_node: Whether they belong to a SuperNode, whose SuperExec gets work in every communication.
    """
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(home / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    } | ({"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": TASK_POLL} if is_node else {})
    own = [str(home / "bin"), str(bin_folder())]
    others = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder not in own]
    path = os.pathsep.join([*own, *others])  # the same when this process starts again
    return (
        defaults
        | os.environ
        | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
        }
    )


def superlink_command(port: int, certificates: ServerCertificates, secret: Path, database: Path) -> list[str]:
    """Return the command of a SuperLink."""
    return [
        *program.superlink_command(),
        *("--host", HOST, "--port", str(port)),
        *server_options(certificates),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--database", str(database)),
    ]


def superexec_command(port: int, certificates: ServerCertificates, secret: Path) -> list[str]:
    """Return the command of a SuperExec, which starts the ServerApps of a SuperLink and starts again when it dies."""
    return [
        *program.superexec_command(),
        *(ADDRESS, f"{HOST}:{port}"),
        *("--root-certificates", str(certificates.authority)),
        *("--superexec-auth-secret-file", str(secret)),
    ]


def supernode_command(
    link: int, port: int, certificates: ServerCertificates, keys: NodeKeys, config: Mapping[str, Any]
) -> list[str]:
    """Return the command of a SuperNode of the SuperLink at port `link`; its ClientApps connect to it at `port`."""
    return [
        *(sys.executable, "-m", "fedpd.flower.warm.supernode"),
        *server_options(certificates),
        *supernode_options(f"{HOST}:{link}", certificates.authority, keys.private, port, config),
    ]


def supernode_options(superlink: str, authority: Path, key: Path, port: int, config: Mapping[str, Any]) -> list[str]:
    """Return the options of a SuperNode; `config` is the configuration of its node."""
    return [
        *("--superlink", superlink),
        *("--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", HOST, "--port", str(port)),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())),
    ]


def server_options(certificates: ServerCertificates) -> list[str]:
    """Return the options of a Flower program that others reach by TLS."""
    authority, certificate, key = map(str, certificates)
    return ["--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key]


def write_settings(home: Path, port: int, certificates: ServerCertificates) -> None:
    """Write the settings with which `flwr run APP` finds the federation."""
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{HOST}:{port}"\n'
        f"root-certificates = {json.dumps(str(certificates.authority))}\n",
        encoding="utf-8",
    )


def flwr(home: Path, *arguments: str) -> Any:
    """Return the output of a `flwr` command, in which paths are absolute.

    It runs in `home`: Flower looks for an app with the name of the federation in the current folder, which the user of
    a kit may not even read.

    Raises:
        FedpdError: If the command failed.
    """
    command = [str(bin_folder() / "flwr"), *arguments, "--format", "json"]
    own = environment(home)
    own.pop("FORCE_COLOR", None)  # which Jupyter sets: colours would stand in the JSON
    done = subprocess.run(
        command, cwd=home, env=own, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    with suppress(ValueError):
        answer = json.loads(done.stdout[done.stdout.index("{") :])
        if done.returncode == 0 and answer.get("success", True):
            return answer
    raise FedpdError(f"flwr {' '.join(arguments)} failed: {(done.stdout + done.stderr).strip()}")


def is_healthy(port: int, authority: Path) -> bool:
    """Return whether the SuperLink answers with a certificate of this federation."""
    return _health(port, authority) == 200


def is_closed(port: int, authority: Path) -> bool:
    """Return whether the proxy answers, with a certificate of this federation, and refuses what clients do not need."""
    return _health(port, authority) in (400, 403)  # 400: a kit's proxy, which asks for a client's certificate


def _health(port: int, authority: Path) -> int | None:
    """Return the status with which a SuperLink or a proxy answers; None if it does not, or with another certificate."""
    try:
        context = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(f"https://{HOST}:{port}/health", timeout=1.0, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def is_online(node: Member) -> bool:
    """Return whether the SuperLink has accepted a SuperNode."""
    return _log_contains(node, ONLINE)


def was_rejected(node: Member) -> bool:
    """Return whether the SuperLink rejected a SuperNode: its key is unknown, or the lease of its old process holds."""
    return _log_contains(node, REJECTED)


def _log_contains(member: Member, words: str) -> bool:
    return words in Path(member.log).read_text(encoding="utf-8", errors="replace")


def find_superexecs() -> dict[str, int]:
    """Return the pid of each SuperExec that runs, by the address from which it gets its work."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if SUPEREXEC in words and ADDRESS in words[:-1]:
                found[words[words.index(ADDRESS) + 1]] = process.pid
    return found


def work_address(member: Member) -> str | None:
    """Return the address from which the SuperExec of a process gets its work; None: the process has no SuperExec."""
    option = {"superexec": ADDRESS, "supernode": "--port"}.get(member.name.partition("-")[0])
    if option is None or option not in member.command:
        return None
    value = member.command[member.command.index(option) + 1]
    return f"{HOST}:{value}" if option == "--port" else value
