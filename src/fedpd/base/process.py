"""Settings of the process, made before fedpd computes: cores as devices, a cache of compiled programs, freed memory.

The versions that computed a run, which a reader needs to repeat it, belong to the process as well.
"""

import ctypes
import logging
import os
import platform
import sys
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

log = logging.getLogger(__name__)

VARIABLE = "FEDPD_CACHE"  # "off", or a folder
MOST_KEPT = 2**28  # bytes of compiled programs; if there are more, fedpd removes the oldest when it starts
WORTH_KEEPING = 0.1  # seconds of compilation from which a program is kept; reading it takes about 0.02
LARGE_BLOCK = 2**20  # bytes
M_MMAP_THRESHOLD = -3  # of mallopt in glibc
USUAL = 1.0  # JAX's own default for these seconds
# XLA's fusion emitters and LLVM's optimisations take most of the time before the first round. Measured in seconds of
# processor time for `solve` on 10 agents of 50 samples with 28 features: 9.1 with both, 3.2 without. There a round of
# FedPD then takes 0.14 ms in place of 0.05, so that 25,000 rounds would lose what the compilation saves.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


@cache
def use_compilation_cache(most: int = MOST_KEPT) -> None:
    """Let JAX keep compiled programs in the user's cache folder, unless the user has chosen otherwise.

    fedpd calls this when it computes for the first time; importing fedpd changes nothing. If the user has given JAX a
    folder, JAX keeps using it. FEDPD_CACHE=off turns the cache off, and FEDPD_CACHE=/a/folder moves it. If fedpd cannot
    write to the folder, JAX compiles as if there were no cache. It also compiles again if it cannot read an entry, for
    example because a process was killed while it wrote the entry.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder = (Path(chosen).expanduser() if chosen else _user_cache()) / "xla" / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"fedpd cannot write to {folder}")
        _tidy(folder, most)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        log.info("fedpd keeps no compiled programs: %s. Set %s to a folder that you can write to.", error, VARIABLE)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == USUAL:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")


def compiled_quickly(function: Callable[..., Any]) -> Any:
    """Return a function compiled by JAX without optimisations, for one that is called once or twice."""
    return jax.jit(function, compiler_options=QUICK if jax.default_backend() == "cpu" else None)


def _user_cache() -> Path:
    """Return fedpd's own folder among the caches of this user. For one folder, platformdirs is not worth its while."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "fedpd"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedpd"
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "fedpd" / "Cache"
    return Path.home() / ".cache" / "fedpd"


def _processor() -> str:
    """Return a name for this kind of processor.

    A program for a CPU may use instructions that another CPU lacks. If two such machines share a home folder, JAX does
    not tell their programs apart.
    """
    described = f"{platform.machine()} {platform.processor()}"
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(errors="replace").splitlines()
        described += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return f"{platform.machine()}-{sha256(described.encode()).hexdigest()[:12]}"


def _tidy(folder: Path, most: int) -> None:
    """Remove empty entries, and the oldest ones until the rest has at most `most` bytes.

    JAX's own limit (jax_compilation_cache_max_size) takes a lock and writes a file whenever a program is read.
    """
    entries = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda entry: entry[0].st_mtime)
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in entries:
        if stat.st_size == 0 or total > most:
            path.unlink(missing_ok=True)
            total -= stat.st_size


@cache
def use_cores() -> None:
    """Make every core of a CPU a JAX device, unless JAX has already started or the user has set the number.

    JAX fixes the number of devices when it computes for the first time. So fedpd calls this before its first
    computation. Importing fedpd changes nothing, and a program that used JAX before keeps its devices.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.values["jax_num_cpu_devices"] != -1:  # the user's own choice
        return
    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    except RuntimeError:  # JAX has started, so its devices cannot change
        if len(jax.devices()) < (os.cpu_count() or 1) and jax.default_backend() == "cpu":
            log.info(
                "JAX started before fedpd, so it uses %d of %d cores. Set JAX_NUM_CPU_DEVICES=%d to use all of them.",
                len(jax.devices()), os.cpu_count(), os.cpu_count(),
            )  # fmt: skip


def return_large_blocks() -> None:
    """Make this process return blocks of 1 MiB and more when it frees them; do nothing if the C library cannot.

    By default glibc keeps freed blocks of up to 32 MiB, in pieces that larger arrays cannot use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


PACKAGES = ("fedpd", "jax", "jaxlib", "numpy", "optax", "flax")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute, the machine, and the devices of JAX."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a folder, without being installed
            found[name] = "not installed"
    devices = jax.devices()
    kind = devices[0].device_kind
    return found | {"machine": f"{platform.system()} {platform.machine()}", "devices": f"{len(devices)} x {kind}"}
