"""The paper's theory with corrections, computed for a problem: constants, rates, and how often to communicate.

- `constants`: L and delta as plain numbers
- `curvature`: L of each f_i, of f and of the samples, exact or estimated, and how it was found; the condition number of
  the mean Hessian, and how much the Hessians differ
- `dissimilarity`: delta of Assumption 5, B of Assumption 4 and G of Assumption 3, measured at given models; delta of
  the cost functions in the paper's Appendix A
- `printed`: Theorem 1 as printed, with C(p)
- `rates`: Theorem 1 as proved, for FedPD with Oracle I
- `variance_reduction`: Theorem 3, for FedPD with Oracle II
- `skipping`: not in the paper: the rate of corrected skipping on quadratics, and the settings in which it wins
- `fedavg`: Claim D.1, for FedAvg with diminishing steps
- `complexity`: Table 1
- `bounds`: upper bounds of f(x^0) - inf f, and of delta for all x
- `check`: the theorem that covers a run, its bound beside what was measured, and the assumptions that hold
"""

from importlib import import_module
from typing import Any

from fedpd.theory import complexity, conditions, printed, rates, skipping, variance_reduction
from fedpd.theory.conditions import max_eta
from fedpd.theory.constants import heterogeneity, objective, smoothness
from fedpd.theory.curvature import (
    Hessians,
    Smoothness,
    estimate_smoothness,
    exact_smoothness,
    hessians,
    smoothness_constants,
)
from fedpd.theory.dissimilarity import (
    DeltaBound,
    Profile,
    Similarity,
    delta_bound,
    linear_regression_delta,
    logistic_delta,
    profile,
    sigmoid_delta,
    similarity,
    tanh_delta,
)
from fedpd.theory.fedavg import fedavg_bound
from fedpd.theory.points import region
from fedpd.theory.printed import communication_factor, skip_probability

__all__ = [
    "DeltaBound",
    "Hessians",
    "Profile",
    "Similarity",
    "Smoothness",
    "TheoryCheck",
    "check",
    "communication_factor",
    "complexity",
    "conditions",
    "delta_bound",
    "estimate_smoothness",
    "exact_smoothness",
    "fedavg_bound",
    "hessians",
    "heterogeneity",
    "linear_regression_delta",
    "logistic_delta",
    "max_eta",
    "objective",
    "printed",
    "profile",
    "rates",
    "region",
    "sigmoid_delta",
    "similarity",
    "skip_probability",
    "skipping",
    "smoothness",
    "smoothness_constants",
    "tanh_delta",
    "variance_reduction",
]


def __getattr__(name: str) -> Any:
    """Import `check` when it is first used: it reads runs and draws figures, which layers above this one define."""
    if name not in ("check", "TheoryCheck"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fedpd.search.check"), name)
