"""A file of the server with the node that owns each client's name: {"hospital-1": 1234, ...}.

`fedpd register` writes it for provisioned clients, and a run adds the names that it sees for the first time. Its path
is in the environment of the ServerApp (FEDPD_CLIENTS), not in the run's configuration, because the person who starts a
run must not be able to give a client's name to another node.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedpd.base.atomic import read_file, replace_file
from fedpd.base.checks import FedpdError

VARIABLE = "FEDPD_CLIENTS"


def owners_file() -> Path | None:
    """Return the path of the file; None if the server has none."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def read_owners(path: Path | None) -> dict[str, int]:
    """Return the node of every name in the file.

    Raises:
        FedpdError: If the file cannot be read. A run without it would accept any node under any name.
    """
    if path is None or not path.exists():
        return {}
    try:
        found = json.loads(read_file(path))
        if not isinstance(found, dict) or not all(isinstance(node, int) for node in found.values()):
            raise ValueError("it must map names to node ids")
    except (OSError, ValueError) as error:
        raise FedpdError(f"{path} cannot be read ({error}). Repair it, or write it anew with fedpd register.") from None
    return found


def save_owners(path: Path | None, owners: Mapping[str, int]) -> None:
    """Add names to the file. A name that is in the file keeps its node."""
    known = read_owners(path)
    if path is not None and not owners.keys() <= known.keys():
        with replace_file(path) as file:
            file.write(json.dumps({**owners, **known}, indent=1).encode() + b"\n")
