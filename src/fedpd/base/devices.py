"""Make every core of a CPU a JAX device, so that agents can be sharded over the cores."""

import logging
import os
from functools import cache

import jax

log = logging.getLogger(__name__)


@cache
def use_cores() -> None:
    """Let every core of a CPU be a JAX device, if JAX has not started yet and the user has not chosen otherwise.

    JAX fixes the number of devices when it computes for the first time. So this runs when fedpd computes for the first
    time: importing fedpd changes nothing, and whoever used JAX before keeps the devices that it started with.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.values["jax_num_cpu_devices"] != -1:  # the user's own choice
        return
    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    except RuntimeError:  # JAX has started: its devices stay as they are
        if len(jax.devices()) < (os.cpu_count() or 1) and jax.default_backend() == "cpu":
            log.info(
                "JAX computed before fedpd did, so it uses %d of %d cores. Set JAX_NUM_CPU_DEVICES=%d to use all.",
                len(jax.devices()), os.cpu_count(), os.cpu_count(),
            )  # fmt: skip
