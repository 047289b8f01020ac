"""Whether two ways to compute the same number agree up to rounding."""

import re
from typing import Any

import jax
import numpy as np

from fedpd.core import Losses, Tree

Outcome = tuple[Any, Tree]  # a value and a gradient
TINY = float(np.finfo(np.float32).tiny)


def tolerance_of(losses: Losses, model: Tree, rows: Tree) -> float:
    """Return the relative error that rounding may cause, by the lowest precision in which the losses compute."""
    used = set(re.findall(r"\b(bf16|f16|f32|f64)\[", str(jax.make_jaxpr(losses)(model, rows))))
    return 0.1 if used & {"bf16", "f16"} else 1e-3 if "f32" in used else 1e-7


def agree(found: Any, wanted: Any, tolerance: float) -> bool:
    """Return whether two arrays agree up to rounding; NaN agrees with NaN."""
    found, wanted = (np.asarray(one, np.float64) for one in (found, wanted))
    if found.shape != wanted.shape or (np.isfinite(found) != np.isfinite(wanted)).any():
        return False
    found, wanted = (one[np.isfinite(wanted)] for one in (found, wanted))
    size = max(float(np.abs(wanted).max(initial=0)), TINY)
    return float(np.abs(found - wanted).max(initial=0)) <= tolerance * size


def within(apart: float, off: float, size: Outcome, tolerance: float) -> bool:
    """Return whether a value and a gradient are off by no more than rounding, relative to another pair."""
    return apart <= tolerance * abs(float(size[0])) + TINY and off <= tolerance * norm(size[1]) + TINY


def distance(found: Tree, wanted: Tree) -> float:
    """Return the norm of the difference; infinite if a number is not finite."""
    distance = norm(jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), found, wanted))
    return distance if np.isfinite(distance) else np.inf


def norm(tree: Tree) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))
