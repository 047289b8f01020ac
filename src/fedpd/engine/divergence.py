"""Detect that a run diverged, and say what to try instead."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.core import Algorithm, Problem
from fedpd.engine.history import History

LARGE_PROBLEM = 1e9  # parameters times samples; for larger problems, the message about a divergence has no L
EXPLOSION = 1e12  # a loss or stationarity above this multiple of its start (or of 1, if larger) is a divergence


class Divergence(NamedTuple):
    """When a run diverged, and what to try instead."""

    round: int
    message: str


def is_healthy(start: History, metrics: Mapping[str, Any]) -> np.ndarray:
    """Return where all values are finite, and loss and stationarity are at most EXPLOSION times the start's (or 1)."""
    loss, stationarity = (max(1.0, abs(start[name][0])) for name in ("loss", "stationarity"))
    bounded = np.abs(metrics["loss"]) < EXPLOSION * loss
    bounded &= metrics["stationarity"] < EXPLOSION * stationarity
    return bounded & np.isfinite(metrics["consensus"])


def explain(algorithm: Algorithm, problem: Problem, number: int, stationarity: Any) -> Divergence:
    """Return the message about a run that diverged, with the step sizes to try."""
    L, source = problem.answer.smoothness, "known"
    if not L:  # for a large network, the estimate would take longer than the run
        small = problem.dimension * problem.samples < LARGE_PROBLEM
        L, source = theory.smoothness(problem) if small else 0.0, "estimated at the start"
    bound = f"; with L = {L:.3g} ({source}), below 1/L = {1 / L:.3g}" if L > 0 else ""
    return Divergence(
        int(number),
        f"{algorithm.description} diverged at round {number} (stationarity {stationarity:.3g}). "
        f"Try a smaller local step size{bound}. If the method adds a penalty 1/eta (FedProx: rho), try one below "
        "1/(L + 1/eta).",
    )
