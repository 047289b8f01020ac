"""FedPD-M where mixing stalls: L-BFGS at the server, with a line search on f.

Mixing lowers ||grad f||, which may have a local minimum that is no stationary point where f is not convex. There, if
the residual of the newest row has not halved in `patience` rounds, the server takes over for good: it goes back to the
row with the smallest residual and descends from there as `lbfgs.py` does. Agents do what they always do, with a small
eta: then their models nearly agree with v, m is nearly -grad f(xbar), and

    F = mean_i (f_i(w) + <Lambda_i, w - v>) - <m, xbar - v>

is f(xbar) up to the square of the agents' differences. Agents send its first term, one number. A point is refused where
agents are not near v: F says nothing there. Agents go on from the row of the last accepted point. A search that only
finds points above its start is given up, and the next point is accepted whatever its value.
"""

from typing import NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.algorithms._server_steps import choose
from fedpd.algorithms.lbfgs import Server as Search
from fedpd.algorithms.lbfgs import first_trial, next_trial
from fedpd.core import Array

CLOSE = 1e-2  # eta of a descent, in units of the first eta or of 1/negative curvature
NEAR = 0.3  # how far agents may be from v, relative to the step to it
GROWTH = 10.0  # of a step, relative to the last: where curvature changes its sign, L-BFGS may propose any length
SHORTEST = 1e-4  # length of a trial, below which a search is given up


class Descent(NamedTuple):
    """The server's record of a stall, and its search."""

    search: Search  # L-BFGS
    least: Array  # the square of the residual at the last progress
    waited: Array  # the rounds since then
    on: Array  # whether the server descends
    base: Array  # the place of the row of the last accepted point


def no_descent(x: Vector, memory: int) -> Descent:
    """Return the state at the start, with room for `memory` secant pairs."""
    return Descent(first_trial(x, memory), jnp.full((), jnp.inf), jnp.int32(0), jnp.bool_(False), jnp.int32(0))


def notice_stall(descent: Descent, residual: Array, convex: Array, patience: float) -> tuple[Descent, Array]:
    """Return the state after a round, and whether a descent begins now.

    Args:
        descent: The state before.
        residual: The square of the newest row's residual.
        convex: Whether no f_i showed negative curvature.
    """
    fell = residual < descent.least / 4
    waited = jnp.where(fell, 0, descent.waited + 1)
    begins = ~descent.on & ~convex & (waited > patience)
    least = jnp.where(fell, residual, descent.least)
    return descent._replace(least=least, waited=waited, on=descent.on | begins), begins


def descend(
    search: Search, tried: Vector, value: Array, dual: Vector, apart: Array, step: Array
) -> tuple[Search, Array]:
    """Return the search with its next trial, and whether it has accepted the last one.

    Args:
        search: The search before.
        tried: xbar.
        value: F there.
        dual: m there, nearly minus the gradient.
        apart: mean_i ||w - v||^2.
        step: The step size while there is no pair.
    """
    search = choose(search.trial.length < SHORTEST, first_trial(tried, len(search.pairs.inverse)), search)
    trial = search.trial
    reach = jnp.asarray(trial.direction @ trial.direction, apart.dtype) * trial.length**2
    far = jnp.isfinite(trial.value) & ~(apart <= NEAR**2 * reach)
    value = jnp.where(far, jnp.inf, value)
    accepted = trial.is_enough(value, trial.value)
    search = next_trial(search, tried, value, -1.0 * dual, step)
    last, new = tried - trial.x, search.trial.direction
    share = jnp.sqrt(GROWTH**2 * (last @ last) / jnp.maximum(new @ new, jnp.finfo(apart.dtype).tiny))
    share = jnp.where(accepted & jnp.isfinite(trial.value), jnp.minimum(1, share), 1)
    return search._replace(trial=search.trial._replace(direction=share * new)), accepted


def small_eta(first: Array, lowest: Array) -> Array:
    """Return the eta of a descent.

    Args:
        first: The eta of the start.
        lowest: The negative curvature of the f_i.
    """
    return CLOSE * jnp.minimum(first, 1 / jnp.maximum(lowest, jnp.finfo(lowest.dtype).tiny))
