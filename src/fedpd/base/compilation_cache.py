"""Compiled programs are kept in the user's cache folder, so that a second process need not compile them again."""

import logging
import os
import platform
import sys
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path

import jax

log = logging.getLogger(__name__)

VARIABLE = "FEDPD_CACHE"  # "off", or a folder
LARGEST = 2**28  # bytes of compiled programs; the oldest are removed when fedpd starts with more
WORTH_KEEPING = 0.1  # seconds: reading a program back takes about 0.02
USUAL = 1.0  # JAX's own default for that


@cache
def use_compilation_cache() -> None:
    """Let JAX keep compiled programs in the user's cache folder, unless the user has chosen otherwise.

    This runs when fedpd computes for the first time: importing fedpd changes nothing. Whoever has given JAX a folder
    keeps it. FEDPD_CACHE=off turns the cache off, FEDPD_CACHE=/a/folder moves it. A folder that cannot be written to is
    no error: programs are then compiled as if there were no cache. So it is with an entry that cannot be read, because
    a process was killed while it wrote it.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder = (Path(chosen).expanduser() if chosen else _user_cache()) / "xla" / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} cannot be written to")
        _tidy(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        log.info("Compiled programs are not kept: %s. Set %s to a folder that can be written to.", error, VARIABLE)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == USUAL:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def _user_cache() -> Path:
    """Return fedpd's own folder among the caches of this user."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "fedpd"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedpd"
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "fedpd" / "Cache"
    return Path.home() / ".cache" / "fedpd"


def _processor() -> str:
    """Return a name for this kind of processor.

    A program for the CPU holds instructions of the CPU that compiled it, which another one with the same home folder
    may not have; and JAX does not tell them apart.
    """
    described = f"{platform.machine()} {platform.processor()}"
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(errors="replace").splitlines()
        described += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return f"{platform.machine()}-{sha256(described.encode()).hexdigest()[:12]}"


def _tidy(folder: Path) -> None:
    """Remove empty entries, and the oldest ones if all together are larger than LARGEST."""
    entries = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda entry: entry[0].st_mtime)
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in entries:
        if stat.st_size == 0 or total > LARGEST:
            path.unlink(missing_ok=True)
            total -= stat.st_size
