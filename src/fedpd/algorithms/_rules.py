"""The common parts of the methods' default rules: Q = 8 local steps, with full gradients and step 1/(L + penalty), or
as FedAvg."""

from typing import Any

from fedpd.core import Oracle
from fedpd.oracles import gd, sgd
from fedpd.schedules import inverse_sqrt
from fedpd.theory.conditions import max_eta

Q = 8


def solver(L: float, penalty: Any) -> Oracle:
    """Return gradient descent with step 1/(L + penalty), for a local problem that is (L + penalty)-smooth."""
    return gd(step=1 / (L + penalty), iterations=Q)


def fedavg_steps(L: float, scale: Any) -> Oracle:
    """Return the local steps of FedAvg: the first step is that of Khaled et al., later ones are smaller."""
    return sgd(step=inverse_sqrt(scale / (4 * L * Q), Q), iterations=Q)


def eta_above_theorem_1(eta: float, L: float) -> str | None:
    """Return a sentence if eta is too large for Theorem 1, as the paper's own eta = 4 is, else None; L: of the f_i."""
    bound = max_eta(L) if L > 0 else float("inf")
    if eta < bound:
        return None
    return (
        f"eta = {eta:.3g} is above (sqrt(5)-1)/(4L) = {bound:.3g} (L = {L:.3g}), so Theorem 1 does not cover this run. "
        "It may converge faster, or it may diverge."
    )
