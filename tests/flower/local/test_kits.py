"""A federation on three machines (network namespaces), made of its start-up kits alone: train, kill, recover.

Minutes, and root: `make test-faults`. From a client's machine, nothing but the fleet API can be reached.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fedpd
from fedpd.flower.local import programs
from fedpd.flower.local.new_app import new_app
from fedpd.flower.local.programs import Member, end, find, start, tail
from fedpd.flower.local.provision import provision
from fedpd.flower.local.proxy import find_nginx
from fedpd.flower.local.sites import app_hash
from tests.flower.deployment import equal, simulated

ADDRESS, PORT = "10.77.0.1", 8443
SITES = ("hospital-1", "hospital-2")
SETTINGS: dict[str, Any] = {"agents": 2, "rounds": 3, "iterations": 3, "evaluate-every": 0, "resend": 20.0}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def has_namespaces() -> bool:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"fedpd-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        ip("netns", "delete", name)
    return made


@pytest.fixture
def machines() -> Iterator[dict[str, str]]:
    """The namespaces of the server and the clients, by name, all on one bridge in the server's."""
    if find_nginx() is None or not has_namespaces():
        pytest.skip("needs root, ip netns and nginx")
    spaces = {name: f"fedpd-{os.getpid()}-{i}" for i, name in enumerate(("server", *SITES))}
    try:
        for space in spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", spaces["server"], "link", "add", "bridge", "type", "bridge")
        ip("-n", spaces["server"], "address", "add", f"{ADDRESS}/24", "dev", "bridge")
        ip("-n", spaces["server"], "link", "set", "bridge", "up")
        for i, site in enumerate(SITES):
            pair = ("link", "add", f"site{i}", "type", "veth", "peer", "name", "eth0", "netns", spaces[site])
            ip("-n", spaces["server"], *pair)
            ip("-n", spaces["server"], "link", "set", f"site{i}", "master", "bridge", "up")
            ip("-n", spaces[site], "address", "add", f"10.77.0.{i + 2}/24", "dev", "eth0")
            ip("-n", spaces[site], "link", "set", "eth0", "up")
        yield spaces
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


class Machines:
    """Starts the parts of a federation, each in its namespace, and starts them again as systemd would."""

    def __init__(self, spaces: dict[str, str], kits: Path) -> None:
        self.spaces, self.kits = spaces, kits
        self.members: dict[str, Member] = {}

    def command(self, machine: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[machine], *words]

    def start(self, machine: str, *words: str) -> None:
        name = "-".join((machine, *words))
        kit = self.kits / machine
        command = self.command(machine, str(kit / "start.sh"), *words)
        environment = os.environ | {"PATH": f"{programs.bin_folder()}{os.pathsep}{os.environ['PATH']}"}
        member = Member(name, command, str(kit), str(self.kits / f"{name}.log"))
        self.members[name] = start(member, environment, kit)

    def keep_running(self) -> None:
        for name, member in self.members.items():
            if find(member) is None and name != "server-register":
                machine, _, part = name.partition("-") if name.startswith("server") else (name, "", "")
                self.start(machine, *([part] if part else []))

    def wait(self, what: Callable[[], Any], seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"{member.name}:\n{tail(member)}" for member in self.members.values())
                raise AssertionError(f"not within {seconds} s\n{logs}")
            self.keep_running()
            time.sleep(1.0)
        return found

    def communications(self) -> int:
        found = (self.kits / "server" / "results" / "checkpoints").glob("round-*.safetensors")
        return max((int(path.stem.removeprefix("round-")) for path in found), default=0)


CLOSED = """
import pathlib, sys, urllib.error, urllib.request
from fedpd.flower.warm.supernode import tls_context
certificate = pathlib.Path("client.crt") if sys.argv[1] == "known" else None
context = tls_context(pathlib.Path("ca.crt"), certificate, pathlib.Path("client.key"))
for path in sys.argv[3:]:
    try:
        urllib.request.urlopen(sys.argv[2] + path, data=b"", timeout=5, context=context)
        print("open")
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print("none")
"""


def reach(machines: Machines, who: str, port: int, *paths: str) -> list[str]:
    """What a client's machine gets from these paths of the server, if it shows its certificate ("known") or none."""
    words = (sys.executable, "-c", CLOSED, who, f"https://{ADDRESS}:{port}", *paths)
    done = subprocess.run(
        machines.command(SITES[0], *words), cwd=machines.kits / SITES[0], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # flwr uses an old name of pathspec
def test_three_machines_from_their_kits(machines: dict[str, str], tmp_path: Path) -> None:
    app = tmp_path / "toy-deployed"
    new_app(app, "jax")
    plan = tmp_path / "sites.toml"
    pinned = f'policy = {{ apps = ["{app_hash(app)}"], methods = ["fedpd"] }}'
    sites = "\n".join(f'[[sites]]\nname = "{name}"' for name in SITES)
    plan.write_text(f'[server]\nhost = "{ADDRESS}"\n{sites}\n{pinned}\n')
    provision(plan, tmp_path / "kits")
    here = Machines(machines, tmp_path / "kits")
    try:
        for part in ("superlink", "superexec", "proxy", "register"):
            here.start("server", part)
        here.wait(lambda: find(here.members["server-register"]) is None, 120)
        for site in SITES:
            here.start(site)
        here.wait(lambda: all(programs.is_online(here.members[site]) for site in SITES), 120)
        closed = "/v1/control/list-runs", "/v1/runtime/get-nodes", "/health", "/", "/v1/fleet/register-node"
        assert reach(here, "known", PORT, *closed, "/v1/fleet/../control/list-runs") == ["403"] * 6
        assert reach(here, "unknown", PORT, *closed, "/v1/fleet/pull-messages") == ["400"] * 6
        assert reach(here, "known", 8000, "/v1/control/list-runs", "/v1/fleet/pull-messages") == ["none"] * 2
        words = " ".join(f"{key}={value!r}" for key, value in SETTINGS.items())
        run = (str(programs.bin_folder() / "flwr"), "run", str(app), programs.CONNECTION, "--run-config", words)
        environment = programs.environment(tmp_path / "kits" / "server" / "flwr")
        subprocess.run(here.command("server", *run), env=environment, check=True, capture_output=True, timeout=120)
        here.wait(lambda: here.communications() >= 1, 300)
        for process in (victim := psutil.Process(here.members[SITES[0]].pid)).children(recursive=True):
            process.kill()
        victim.kill()
        model = tmp_path / "kits" / "server" / "results" / "model.safetensors"
        here.wait(model.exists, 400)
        equal(fedpd.load_model(model), simulated(app, SETTINGS))
        modes = [path.stat().st_mode & 0o077 for path in (tmp_path / "kits" / "server" / "results").rglob("*.*")]
        assert modes
        assert not any(modes)
    finally:
        end([member for name, member in here.members.items() if not name.startswith("server")])
        end(here.members.values())
