"""Make every core of a CPU a JAX device, so that agents can be sharded over the cores."""

import logging
import os
from functools import cache

import jax

log = logging.getLogger(__name__)


@cache
def use_cores() -> None:
    """Make every core of a CPU a JAX device, unless JAX has already started or the user has set the number.

    JAX fixes the number of devices when it computes for the first time. So fedpd calls this before its first
    computation. Importing fedpd changes nothing, and a program that used JAX before keeps its devices.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.values["jax_num_cpu_devices"] != -1:  # the user's own choice
        return
    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    except RuntimeError:  # JAX has started, so its devices cannot change
        if len(jax.devices()) < (os.cpu_count() or 1) and jax.default_backend() == "cpu":
            log.info(
                "JAX started before fedpd, so it uses %d of %d cores. Set JAX_NUM_CPU_DEVICES=%d to use all of them.",
                len(jax.devices()), os.cpu_count(), os.cpu_count(),
            )  # fmt: skip
