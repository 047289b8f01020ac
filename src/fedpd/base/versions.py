"""The versions that computed a run, which a reader needs to repeat it."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import jax

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
