"""Claim D.1: a bound for FedAvg with local GD, steps eta^{r,q} and bounded gradients, with a corrected proof.

With f_i L-smooth, ||grad f_i|| <= G, eta^{r,0} < 1/L and eta^{r,q} <= 1/(2(Q-1)L) for q >= 1, a round changes f by

    f(x^{r+1}) - f(x^r) <= -(eta^{r,0} (1 - L eta^{r,0}) + sum_{q>=1} eta^{r,q}/2) ||grad f(x^r)||^2
                           + (L^2 G^2/2) sum_{q>=1} eta^{r,q} (sum_{tau<q} eta^{r,tau})^2

The paper prints its last term without L^2 (docs/theory/fedavg.md has the proof and the other corrections).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import at_least, at_most, count, positive, refuse
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core.oracle import check_step, step_at

MOST_STEPS = 2**26  # local steps of a run, each with a step size


@explained
def fedavg_bound(
    step: float | Callable[[Any, Any], Any], *, rounds: int, iterations: int, L: float, G: float, gap: float
) -> float:
    """Return a bound of (1/T) sum_{r<T} ||grad f(x^r)||^2 for FedAvg with `oracles.gd(step, iterations)`, T = `rounds`.

        ( gap + (L^2 G^2/2) sum_{r<T} sum_{1<=q<Q} eta^{r,q} (sum_{tau<q} eta^{r,tau})^2 ) / (C_1 T)

    with C_1 = min_r eta^{r,0} (1 - L eta^{r,0}). It tends to 0 as T grows if eta^{r,0} is constant and every other
    eta^{r,q} tends to 0.

    Args:
        step: eta, or a function (r, q) -> eta^{r,q}.
        rounds: T.
        iterations: Q, the local steps per round.
        L: The smoothness of the f_i.
        G: An upper bound of ||grad f_i|| everywhere.
        gap: f(x^0) - inf f, or an upper bound of it.

    Raises:
        FedpdError: If a step is larger than Claim D.1 allows.
    """
    count("rounds", rounds, "Give T, the number of rounds")
    count("iterations", iterations, "Give Q, the number of local steps per round")
    at_most("rounds * iterations", rounds * iterations, MOST_STEPS, "Give fewer rounds or local steps")
    positive("L", L, "L is the smoothness of the f_i; theory.smoothness(problem) finds it")
    positive("G", G, "G bounds ||grad f_i|| everywhere")
    at_least("gap", gap, 0, "gap is f(x^0) - inf f, or an upper bound of it")
    steps = _steps(step, rounds, iterations)
    _check_steps(steps, L)
    first, later = steps[:, 0], steps[:, 1:]
    moved = np.cumsum(steps, axis=1)[
        :, :-1
    ]  # sum_{tau<q} eta^{r,tau} for q = 1..Q-1: ||x^r - x_i^{r,q}|| is G times it
    drift = L**2 * G**2 / 2 * np.sum(later * moved**2)
    return float((gap + drift) / (np.min(first * (1 - L * first)) * rounds))


def _steps(step: float | Callable[[Any, Any], Any], rounds: int, iterations: int) -> np.ndarray:
    """Return eta^{r,q}, (T, Q)."""
    with scope(True):
        r, q = jnp.arange(rounds)[:, None], jnp.arange(iterations)
        check_step(step)
        return np.broadcast_to(np.asarray(step_at(step, r, q), np.float64), (rounds, iterations))


def _check_steps(steps: np.ndarray, L: float) -> None:
    """Check that Claim D.1 allows these steps."""
    first, later = steps[:, 0], steps[:, 1:]
    if not (steps > 0).all():
        refuse("step", float(steps.min()), "must be positive in every round", "Give a step or a function of (r, q)")
    if first.max() >= 1 / L:
        refuse("step(r, 0)", float(first.max()), f"must be below 1/L = {1 / L:g}", "Use a smaller first local step")
    if later.size and later.max() > (limit := 1 / (2 * later.shape[1] * L)) * (1 + 1e-12):  # allow for rounding
        rule = f"must be at most 1/(2(Q-1)L) = {limit:g} for q >= 1"
        refuse("step(r, q)", float(later.max()), rule, "Use smaller local steps after the first")
