"""Detect that a run diverged, and say what to try instead."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.errors import FedpdError
from fedpd.base.spec import Spec, Thing
from fedpd.core import Method, Problem
from fedpd.engine.measure.history import History
from fedpd.theory.curvature import known_smoothness

LARGE_PROBLEM = 2e8  # parameters times samples; for larger problems, the message about a divergence has no L
STEPS = ("step", "eta", "gamma", "rho", "alpha", "beta", "mu", "damping")  # settings by which steps become shorter
NO_STEP = (
    "It chooses its steps itself, so f may have no minimum: it may be unbounded below. Add a penalty, e.g. l2=0.01, or "
    "start from another model."
)
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


def explain(algorithm: Method, problem: Problem, number: int, stationarity: Any) -> Divergence:
    """Return the message about a run that diverged, with the step sizes to try if the method has any."""
    what = f"{algorithm.description} diverged at round {number} (stationarity {stationarity:.3g})."
    if not _has_step(algorithm.spec):
        return Divergence(int(number), f"{what} {NO_STEP}")
    found = _smoothness(problem)
    L = 0.0 if found is None else found.value
    bound = f"; with L = {L:.3g} ({found.kind}), below 1/L = {1 / L:.3g}" if found is not None and L > 0 else ""
    return Divergence(
        int(number),
        f"{what} Try a smaller local step size{bound}. If the method adds a penalty 1/eta (FedProx: rho), try one "
        "below 1/(L + 1/eta).",
    )


def _has_step(spec: Spec) -> bool:
    """Return whether a method, or a part of it such as its oracle, has a step size or a penalty that a user gives."""
    return any(
        _has_step(value) if isinstance(value, Spec) else isinstance(value, Thing) or (name in STEPS and value != "auto")
        for name, value in spec.settings
    )


def _smoothness(problem: Problem) -> theory.Smoothness | None:
    """Return L; None if it is unknown. For a large network, an estimate would take longer than the run."""
    if problem.answer.smoothness is None and problem.dimension * problem.samples >= LARGE_PROBLEM:
        return known_smoothness(problem)
    try:
        return theory.smoothness_constants(problem, average=False)
    except FedpdError:  # a Hessian at the start is not finite
        return None
