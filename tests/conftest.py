"""Compilation is most of what these tests do: let XLA optimise less, and compile the same program once for all of them.

Both hold for the test workers and for the processes that tests start. Seconds of CPU time on one core, for the
conformance suite and the reductions together: 190 with XLA's fusion emitters and a cache of programs that take 0.3
seconds, 100 without the emitters, 87 with a cache of all programs, and 43 where the cache has them from the last time.
"""

import os
import shutil
from itertools import count
from pathlib import Path

import pytest

FLAG = "--xla_cpu_use_fusion_emitters"
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
LARGE = 2**30  # bytes of compiled programs that are kept: those of ten to twenty versions of the code

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=false".strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers inherit it
    if COMPILED.exists() and sum(path.stat().st_size for path in COMPILED.iterdir()) > LARGE:
        shutil.rmtree(COMPILED)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

MAPS = Path("/proc/self/maps")
MOST = 30_000  # mapped regions of a process; Linux allows 65530, and XLA crashes where it gets no more
TESTS = count(1)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Compiled programs are mapped memory, and a worker keeps thousands: forget them before there are too many."""
    if next(TESTS) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        import jax  # after the environment is set

        jax.clear_caches()
