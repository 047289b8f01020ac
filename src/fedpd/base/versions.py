"""With what a run was computed: a result can only be repeated by those who know."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import jax

PACKAGES = ("fedpd", "jax", "jaxlib", "numpy", "optax", "flax")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute, the machine, and what JAX runs on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a folder, without being installed
            found[name] = "not installed"
    devices = jax.devices()
    kind = devices[0].device_kind
    return found | {"machine": f"{platform.system()} {platform.machine()}", "devices": f"{len(devices)} x {kind}"}
