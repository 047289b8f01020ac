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
        mixes: Whether older rows are mixed with the newest, 1 or 0.
        convex: The largest eta times the negative curvature of an f_i; infinite: any.
        budget: What all steps beyond Algorithm 2 may sum up to, in units of eta^(1/2) ||m|| of the start; infinite:
            anything. When it is spent, all further rounds are those of Algorithm 2.
        patience: The rounds without progress after which the server descends where an f_i is not convex; infinite:
            never.
        informed: The duals of the start in units of minus the gradients; 0 begins as Algorithm 2 does.
    """

    aim: float = 0.2
    change: float = 10.0
    longest: float = 1e3
    bend: float = 10.0
    mixes: float = 1.0
    convex: float = 0.3
    budget: float = 1e9
    patience: float = 20.0
    informed: float = 1.0


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
