"""A client of a federation on several machines: its SuperNode, started from the settings in its kit."""

import json
import os

from fedpd.flower.clients.site_policy import KEY as POLICY
from fedpd.flower.clients.store import FOLDER as STATE
from fedpd.flower.local import programs
from fedpd.flower.local.sites import Site
from fedpd.flower.warm.program import write_programs


def node_config(site: Site) -> dict[str, str | int | float | bool]:
    """Return the configuration of a client's node; `config` cannot change the kit's own entries."""
    rules = {} if site.policy is None else {POLICY: str(site.policy)}
    return {**site.config, **rules, "name": site.name, STATE: str(site.state)}


def supernode_arguments(site: Site) -> list[str]:
    """Return the arguments of the client's SuperNode."""
    entries = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config(site).items())
    return [
        *("--superlink", site.server),
        *("--root-certificates", str(site.authority)),
        *("--auth-supernode-private-key", str(site.key)),
        *("--host", programs.HOST, "--port", str(site.port)),
        *("--node-config", entries),
    ]


def run_client(site: Site) -> None:
    """Run the SuperNode of a client in this process until it is ended; only its owner can read the files it writes."""
    os.umask(0o077)
    for folder in (site.home, site.state):
        folder.mkdir(parents=True, exist_ok=True)
    write_programs(site.home / "bin")
    # Before Flower is imported, which reads FLWR_HOME.
    os.environ.update(programs.environment(site.home, is_node=True))
    from fedpd.flower.local.guard import run_supernode

    run_supernode(supernode_arguments(site), site.policy, site.name)
