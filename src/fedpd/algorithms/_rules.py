"""What the default rules of the methods share: Q = 8 local steps, full gradients at a step of 1/(L + penalty)."""

from typing import Any

from fedpd.core import Oracle
from fedpd.oracles import gd

Q = 8


def solver(L: float, penalty: Any) -> Oracle:
    """Return gradient descent with the step 1/(L + penalty) of an (L + penalty)-smooth local problem."""
    return gd(step=1 / (L + penalty), iterations=Q)
