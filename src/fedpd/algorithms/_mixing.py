"""The small decisions of FedPD-M (`_memory.py`): pure functions of numbers that the server has."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedpd.core import Array


class Rules(NamedTuple):
    """The constants of FedPD-M. Each has a value that switches its rule off, for the ablation table.

    Attributes:
        aim: eta grows where this times ||m||/(a sqrt(G)) is above 1, and shrinks where it is below.
        change: The largest factor by which eta changes in a round; 1 leaves it as it is. In round k it is at most
            1 + 100/(1 + k)^1.1 as well, so that changes are summable.
        longest: The longest server step s, in units of eta; 1 takes s = eta.
        bend: The weight of what is not quadratic, in nu; 0 leaves it out.
        uphill: The negative curvature along a mixed step, times s, from which on the step is not taken; infinite takes
            any, and minus infinity none: nothing is mixed.
        convex: The largest eta times the negative curvature of an f_i; infinite: any.
        budget: What all steps beyond Algorithm 2 may sum up to; infinite: anything. `affordable` has its unit.
        informed: The duals of the start in units of minus the gradients; 0 begins as Algorithm 2 does.
        falling: Rows are mixed only if the newest one's residual is at most this times the least of all; infinite: any.
    """

    aim: float = 0.3
    change: float = 10.0
    longest: float = 1e3
    bend: float = 6.0
    uphill: float = 0.1
    convex: float = 0.3
    budget: float = 1e6
    informed: float = 1.0
    falling: float = float("inf")


def mixing_weights(A: Array, valid: Array) -> Array:
    """Return the c that minimises c'Ac subject to sum c = 1, with 0 where there is no row.

    A is scaled to a diagonal of 1 and n times the precision is added to it, which is what its entries are known to.
    """
    info = jnp.finfo(A.dtype)
    diagonal = jnp.where(valid, jnp.maximum(jnp.diag(A), info.tiny), 1)
    least = jnp.min(jnp.where(valid, diagonal, jnp.inf))
    scaled = jnp.where(valid, jnp.sqrt(least / diagonal), 0)  # in [0, 1], so that nothing overflows
    root = jnp.sqrt(diagonal)
    B = jnp.where(valid[:, None] & valid, A / root / root[:, None], 0)
    identity = jnp.eye(len(A), dtype=A.dtype)
    B = jnp.where(identity > 0, 1 + 10 * info.eps * len(A), B)
    c = scaled * solve_positive(B, scaled)
    return c / jnp.sum(c)


def solve_positive(B: Array, b: Array) -> Array:
    """Return B^-1 b for a symmetric positive definite B, by Gauss-Jordan elimination.

    Not by LAPACK: where agents are sharded over the cores of a CPU and there are many seeds, a batch of its calls waits
    for threads that wait for it.
    """

    def eliminate(k: Array, rows: Array) -> Array:
        pivot = rows[k] / rows[k, k]
        return (rows - jnp.outer(rows[:, k], pivot)).at[k].set(pivot)

    return lax.fori_loop(0, len(b), eliminate, jnp.concatenate([B, b[:, None]], axis=1))[:, -1]


def curvature_along(change: Array, turned: Array, length: Array) -> Array:
    """Return the mean curvature of the f_i along a mixed step; 0 where it is lost in rounding.

    Args:
        change: c minus the weight of the newest row alone; its sum is 0.
        turned: The matrix of mean_i <X_k - X_l, lambda_k - lambda_l>.
        length: The mean square of the agents' steps.
    """
    bent = change @ turned @ change / 2  # = -mean_i <dX_i, dlambda_i>, since the weights sum to 0
    rounding = 1e3 * jnp.finfo(bent.dtype).eps * (jnp.abs(change) @ jnp.abs(turned) @ jnp.abs(change))
    return jnp.where(jnp.abs(bent) > rounding, bent / jnp.maximum(length, jnp.finfo(bent.dtype).tiny), 0)


def server_step(step: Array, eta: Array, before: Array, between: Array, after: Array, longest: float) -> Array:
    """Return s of the next round: a Barzilai-Borwein length, at least eta.

    The last step p = s m^ changed the mean dual by -q = m - m^. Where <p, q> > 0, s = ||p||/||q||. Where it is not, the
    mean of the f_i is not convex along p, or other changes hide it: twice the last step.

    Args:
        step: The last s.
        eta: The penalty's.
        before: <m^, m^>.
        between: <m^, m>.
        after: <m, m>.
        longest: The longest s in units of eta.
    """
    moved = jnp.maximum(before - 2 * between + after, jnp.finfo(before.dtype).tiny)
    length = jnp.where(before > between, step * jnp.sqrt(before / moved), 2 * step)
    return jnp.clip(length, eta, longest * eta)


def affordable(beyond: Array, unit: Array, steps: Array, budget: float) -> Array:
    """Return whether a step may go so far beyond Algorithm 2's: at most `budget` units, ever fewer as steps are taken.

    Args:
        beyond: How far, in the norm (||x||^2/eta + eta ||lambda||^2)^(1/2).
        unit: eta^(1/2) ||m|| at the start.
        steps: How many such steps were taken.
        budget: The constant.
    """
    return beyond <= budget * unit / (1 + steps.astype(beyond.dtype)) ** 1.1


def balanced(eta: Array, dual: Array, consensus: Array, rows: Array, rules: Rules) -> Array:
    """Return eta times sqrt(aim ||m||/(a sqrt(G))), by at most a factor `change`: a larger eta lets agents differ more.

    Args:
        eta: The last eta.
        dual: ||m||^2 of the newest row.
        consensus: a^2 G of the newest row.
        rows: k, how many rows there have been.
        rules: The constants.
    """
    ratio = jnp.sqrt(dual / jnp.maximum(consensus, jnp.finfo(dual.dtype).tiny))
    most = jnp.minimum(rules.change, 1 + 100 / (1.0 + rows) ** 1.1)
    return eta * jnp.clip(jnp.sqrt(rules.aim * ratio), 1 / most, most)
