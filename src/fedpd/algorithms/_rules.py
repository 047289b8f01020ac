"""The common part of the methods' default rules: Q = 8 local steps with full gradients and step 1/(L + penalty)."""

from typing import Any

from fedpd.core import Oracle
from fedpd.oracles import gd

Q = 8


def solver(L: float, penalty: Any) -> Oracle:
    """Return gradient descent with step 1/(L + penalty), for a local problem that is (L + penalty)-smooth."""
    return gd(step=1 / (L + penalty), iterations=Q)
