"""Detect that a run diverged, and say what to try instead."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.core import Algorithm, Problem
from fedpd.engine.history import History

LARGE_PROBLEM = 1e9  # parameters times samples, beyond which L is not estimated to advise on a divergence
EXPLOSION = 1e12  # growth of loss or stationarity beyond the larger of 1 and the start's that counts as divergence


class Divergence(NamedTuple):
    """When a run diverged, and what to try instead."""

    round: int
    message: str


def is_healthy(start: History, metrics: Mapping[str, Any]) -> np.ndarray:
    """Return where values are finite, and neither loss nor stationarity beyond EXPLOSION times the start's (or 1)."""
    loss, stationarity = (max(1.0, abs(start[name][0])) for name in ("loss", "stationarity"))
    bounded = np.abs(metrics["loss"]) < EXPLOSION * loss
    bounded &= metrics["stationarity"] < EXPLOSION * stationarity
    return bounded & np.isfinite(metrics["consensus"])


def explain(algorithm: Algorithm, problem: Problem, number: int, stationarity: Any) -> Divergence:
    """Return what to say of a run that diverged: its step against 1/L."""
    L, source = problem.answer.smoothness, "known"
    if not L:  # of a large network it would take longer than the run did
        small = problem.dimension * problem.samples < LARGE_PROBLEM
        L, source = theory.smoothness(problem) if small else 0.0, "estimated at the start"
    bound = f"; with L = {L:.3g} ({source}), below 1/L = {1 / L:.3g}" if L > 0 else ""
    return Divergence(
        int(number),
        f"{algorithm.description} diverged at round {number} (stationarity {stationarity:.3g}). "
        f"Try a smaller local step{bound}, and where the method adds a penalty 1/eta (FedProx: rho), below "
        "1/(L + 1/eta).",
    )
