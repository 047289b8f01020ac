"""The libraries that take part: pinned versions, and the ways in which each can use this machine's cores."""

import os
from typing import NamedTuple

CORES = os.cpu_count() or 1
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}


class Way(NamedTuple):
    """How a library is started. All ways are timed, because one way does not suit every library."""

    label: str
    variables: dict[str, str]
    launcher: tuple[str, ...] = ()  # Python's arguments ahead of `-m benchmarks.peers.play`


class Peer(NamedTuple):
    name: str
    module: str  # of this package
    distribution: str  # whose version is shown
    ways: tuple[Way, ...]
    installs: tuple[tuple[str, ...], ...] = ()  # requirements, one pip command each; none: it is in fedpd's environment


def _threads(number: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(number)}


ONE, ALL = Way("1 thread", _threads(1)), Way(f"{CORES} threads", _threads(CORES))

FEDPD = Peer("fedpd", "ours", "fedpd", (Way("", {}),))
PEERS = (
    Peer("PyTorch, a loop over agents", "torch", "torch", (ONE, ALL)),
    Peer(
        "FedJAX",
        "fedjax",
        "fedjax",
        (
            Way("jit", {}),
            Way(f"pmap, {CORES} devices", {"XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}"}),
        ),
        (("fedjax==0.0.16", "jax==0.5.3", "jaxlib==0.5.3"),),  # it calls jax.tree_map, which jax 0.6 took away
    ),
    Peer(
        "pfl-research",
        "pfl",
        "pfl",
        (
            ONE,
            ALL,
            Way(f"{CORES} processes", _threads(1), ("-m", "torch.distributed.run", f"--nproc_per_node={CORES}")),
        ),
        (("torch==2.13.0",), ("pfl[pytorch]==0.6.0",)),
    ),
    Peer("Flower's simulation", "flower", "flwr", (Way(f"{CORES} clients at a time", QUIET),)),
)
