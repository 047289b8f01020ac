"""Compilation is most of what these tests do: let XLA optimise less, and compile the same program once for all of them.

Both hold for the test workers and for the processes that tests start. Measured on one core with the conformance suite:
110 seconds of CPU time with XLA's fusion emitters, 60 without, and the same numbers to rounding.
"""

import os
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if "xla_cpu_use_fusion_emitters" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()
# Workers inherit the folder that the first process has made, and only that one removes it.
OWNER = "JAX_COMPILATION_CACHE_DIR" not in os.environ
if OWNER:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fedpd-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

MAPS = Path("/proc/self/maps")
MOST = 30_000  # mapped regions of a process; Linux allows 65530, and XLA crashes where it gets no more
TESTS = count(1)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Compiled programs are mapped memory, and a worker keeps thousands: forget them before there are too many."""
    if next(TESTS) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        import jax  # after the environment is set

        jax.clear_caches()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if OWNER:
        shutil.rmtree(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]), ignore_errors=True)
