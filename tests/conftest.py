"""Compilation is most of what these tests do: let XLA optimise less, and compile the same program once for all of them.

Both hold for the test workers and for the processes that tests start. Measured in seconds of CPU time, in one process:
- the conformance tests of three methods: 26 with XLA's fusion emitters, 14 without;
- then the conformance tests and the reductions of all: 100 if the cache has only programs that took 0.3 seconds to
  compile, 87 if it has all, and 43 if it has them from the last time;
- 108 conformance tests: 71 with Python's own thresholds for the collection of garbage, and 62 with those below, because
  JAX makes many objects that live long;
- 90 of them: 50 if XLA splits a program into parts that it compiles in parallel, and 45 if it does not;
- the import of fedpd's methods: 2.9 without bytecode, and 1.2 with it, in every process that tests start.
"""

import ctypes
import gc
import inspect
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about a busy machine than about fedpd.
settings.register_profile("fedpd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedpd")

gc.set_threshold(50_000, 20, 100)
FLAGS = {"--xla_cpu_use_fusion_emitters": "false", "--xla_cpu_parallel_codegen_split_count": "1"}
CACHE = Path(__file__).parents[1] / ".pytest_cache"
COMPILED = CACHE / "compiled"
LARGE = 2**30  # bytes of compiled programs that are kept

if sys.dont_write_bytecode:  # beside the sources: every process would compile fedpd, JAX and the tests again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(CACHE / "bytecode")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # otherwise a data set that does not exist is asked for six times in 24 s
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
for flag, value in FLAGS.items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={value}".strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers inherit it
    if COMPILED.exists() and sum(path.stat().st_size for path in COMPILED.iterdir()) > LARGE:
        shutil.rmtree(COMPILED)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

# One byte per failure of all workers; they inherit the name.
FAILURES = Path(
    os.environ.setdefault("FEDPD_TEST_FAILURES", f"{tempfile.gettempdir()}/fedpd-test-failures-{os.getpid()}")
)
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

MAPS, STATM = Path("/proc/self/maps"), Path("/proc/self/statm")
MOST = 30_000  # mapped regions of a process; Linux allows 65530, and XLA crashes where it gets no more
MOST_BYTES = 2 * 10**9  # of memory; a test adds up to 0.4 GB, and two workers then fit a laptop with 8 GB
TESTS = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="run only part K of N parts of the tests, K from 0 to N-1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with federations of real processes, which mostly wait: another worker computes meanwhile.

    The examples of docstrings run in an empty namespace, as a reader's copy of them does.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs = {"__name__": "__main__"}
    if part := config.getoption("part"):
        k, n = map(int, part.split("/"))
        others = [item for item in items if crc32(item.nodeid.encode()) % n != k]
        items[:] = [item for item in items if crc32(item.nodeid.encode()) % n == k]
        config.hook.pytest_deselected(items=others)
    items.sort(key=lambda item: item.get_closest_marker("smoke") is None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell the other workers that a test failed."""
    if IS_WORKER and report.failed:
        with FAILURES.open("ab") as file:
            file.write(b"!")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Stop this worker where -x or --maxfail ends the run: xdist lets it first run all tests that it has been given."""
    most = item.config.getoption("maxfail")
    if not (IS_WORKER and most and FAILURES.exists() and FAILURES.stat().st_size >= most):
        return None
    item.session.shouldstop = f"{most} failures"
    return True


def pytest_sessionfinish() -> None:
    if not IS_WORKER:
        FAILURES.unlink(missing_ok=True)


def pytest_collection_finish() -> None:
    """What was made so far, and is no program, stays until the end: garbage is not looked for in it any more."""
    forget_programs()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Nearly all memory that a worker gets is that of compiled programs: forget them before there are too many."""
    if not STATM.exists():
        return
    held = int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if held > MOST_BYTES or (next(TESTS) % 10 == 0 and MAPS.read_bytes().count(b"\n") > MOST):
        forget_programs()


def share_context() -> None:
    """Let the next programs share one context of MLIR: JAX makes one of 1 MB, in 3 ms, for each of thousands."""
    with suppress(ImportError, AttributeError):  # it is JAX's own function, which another version may not have
        mlir: Any = import_module("jax._src.interpreters.mlir")
        mlir.make_ir_context = cache(inspect.unwrap(mlir.make_ir_context))


def forget_programs() -> None:
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
        share_context()  # the old one holds the constants of all programs
        gc.collect()
        with suppress(OSError, AttributeError):  # glibc keeps freed memory until it is told not to
            ctypes.CDLL(None).malloc_trim(0)
