"""Make an environment for each library, once: they need other versions of JAX and NumPy than fedpd does."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.roster import Peer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-peers"


class NotInstalledError(Exception):
    """Says why a library could not be installed."""


def python_of(peer: Peer) -> str:
    """Return the Python that has the library; make an environment if it is not in fedpd's own."""
    if not peer.installs:
        return sys.executable
    home = FOLDER / peer.module
    python, done = home / "bin" / "python", home / "installed"
    wanted = repr(peer.installs)
    if not (done.exists() and done.read_text() == wanted):
        _command(sys.executable, "-m", "venv", "--clear", str(home))
        for requirements in peer.installs:
            _command(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        done.write_text(wanted)
    return str(python)


def version(python: str, distribution: str) -> str:
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return _command(python, "-c", code).strip()


def _command(*arguments: str) -> str:
    ended = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT)
    if ended.returncode:
        raise NotInstalledError(reason(ended.stderr))
    return ended.stdout


def reason(stderr: str) -> str:
    """Return the last line that mentions an error, or else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
