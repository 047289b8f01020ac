"""The largest reply of a run, which its ServerApp tells the SuperLink before it sends the first order.

The file is beside that of the clients' names (`FEDPD_CLIENTS`), which both processes know from their environment. This
module imports neither JAX nor Flower, so the SuperLink's process stays small.
"""

import json
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpd.base.atomic import read_file, replace_file

log = logging.getLogger(f"flwr.{__name__}")

OWNERS, FILE = "FEDPD_CLIENTS", "limits.json"
ROOM = 2**23  # bytes that every reply may have, e.g. for its names and for shares of keys
TIMES = 4  # masked entries have 8 bytes instead of 4, and a reply may repeat what was lost
RUNS = 100  # the newest runs in the file


def largest_reply(entries: int) -> int:
    """Return the bytes that a reply may have if its arrays hold so many entries."""
    return ROOM + TIMES * 8 * entries


def limits_file() -> Path | None:
    """Return the path of the file; None if the server has none."""
    owners = os.environ.get(OWNERS)
    return Path(owners).with_name(FILE) if owners else None


def declare_limit(run: int, size: int) -> None:
    """Write down that a reply of a run has at most so many bytes."""
    path = limits_file()
    if path is None:
        return
    known = {key: value for key, value in _read(path).items() if key != str(run)}
    kept = dict([*known.items()][-(RUNS - 1) :])
    with replace_file(path) as file:
        file.write(json.dumps(kept | {str(run): size}, indent=1).encode() + b"\n")


def read_limit(run: int) -> int | None:
    """Return the largest reply of a run in bytes; None: its ServerApp did not say."""
    path = limits_file()
    if path is None or not path.exists():
        return None
    return _parsed(path, path.stat().st_mtime_ns).get(str(run))


@lru_cache(maxsize=1)
def _parsed(path: Path, changed: int) -> dict[str, int]:
    return _read(path)


def _read(path: Path) -> dict[str, int]:
    """Return the file; nothing, with a warning, if it cannot be read: a run must not end for a missing limit."""
    try:
        found: Any = json.loads(read_file(path)) if path.exists() else {}
        return {str(run): int(size) for run, size in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s cannot be read (%s); the replies of its runs have no limit.", path, error)
        return {}
