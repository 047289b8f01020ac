"""Minimise a `Subproblem` by L-BFGS with full gradients, with secant pairs that are kept from solve to solve.

The pairs are those of f_i alone: s a step, y the change of grad f_i along it. A subproblem adds curvature*s to y, so
pairs of earlier rounds serve in later ones, whatever their linear terms and penalties. D. C. Liu, J. Nocedal: On the
limited memory BFGS method for large scale optimization, 1989; W. W. Hager, H. Zhang: A new conjugate gradient method
with guaranteed descent and an efficient line search, 2005, for the condition near the limit of rounding.

Each pass of the loop is one gradient at x + t d. The point is accepted if phi_i falls by at least DECREASE t <g, d>,
and t is shortened otherwise: phi_i never rises. Differences of phi_i are computed from differences of f_i, so that a
large constant does not hide them; where they are lost in rounding, the slopes at both ends tell the decrease. Far from
0, terms of size L ||x||^2 cancel in f_i, and its rounding is that of these terms.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.core.objective import Subproblem
from fedpd.core.vectors import Array, choose, empty_stack, in_precision_of, norm, push

DECREASE = 1e-4  # of what the slope promises
SHORTEST = 1e-12  # t, below which a direction is given up


class Secants(NamedTuple):
    """The state that L-BFGS keeps between solves, and what it saw in the last one."""

    steps: Vector  # s, a stack of steps, the newest first
    changes: Vector  # y, the changes of grad f_i along them
    products: Array  # (3, pairs), <s, s>, <s, y> and <y, y>; 0 where there is no pair yet
    value: Array  # f_i where the last solve ended
    lowest: Array  # the lowest curvature <s, y>/<s, s> of f_i in the last solve if that is negative, else 0


class _Search(NamedTuple):
    """A point, and the length t to try next; the direction follows from gradient and secants."""

    x: Vector
    value: Array  # f_i(x)
    gradient: Vector  # of phi_i
    length: Array
    norm: Array  # of the gradient of phi_i
    secants: Secants
    trials: Array


def no_secants(x: Vector, pairs: int) -> Secants:
    """Return the memory of a solver that has seen nothing yet."""
    zero = jnp.zeros((), float)
    return Secants(empty_stack(x, pairs), empty_stack(x, pairs), jnp.zeros((3, pairs)), zero, zero)


def steepest(known: Secants) -> Array:
    """Return the largest ||y||/||s|| of the pairs, an estimate of L_i; 0 without pairs."""
    ss, _, yy = known.products
    return jnp.sqrt(jnp.max(jnp.where(ss > 0, yy / jnp.where(ss > 0, ss, 1), 0)))


def rounding_of(value: Array, square: Array, L: Array) -> Array:
    """Return how much of f_i(x) may be rounding.

    Terms as large as L ||x||^2 may cancel in f_i: a quadratic function far from 0 loses more than the precision of f_i.

    Args:
        value: f_i(x).
        square: ||x||^2.
    """
    return jnp.finfo(value.dtype).eps * (100 * jnp.abs(value) + L.astype(value.dtype) * square)


def minimise(phi: Subproblem, x: Vector, known: Secants, tolerance: Any, trials: Any) -> tuple[Vector, Secants, Array]:
    """Lower phi_i from x until its gradient's norm is `tolerance` times that at x, or rounding is reached.

    Where the quadratic term is steeper than f_i, most of the gradient at x is its part, which one step removes. There
    the norm falls to `tolerance` times L_i/curvature of that at x: the error is relative to the change of grad f_i.

    Args:
        trials: The most gradients after that at x.

    Returns:
        The last point, the memory, and the number of gradients after that at x.
    """
    value, own = phi.f.value_and_gradient(x)
    gradient = phi.complete(own, x)
    size, eps = norm(gradient), jnp.finfo(value.dtype).eps
    inside = in_precision_of(x, steepest(known)) * norm(x)  # the size of terms that may cancel in grad f_i
    rounding = 4 * eps * (norm(own) + norm(phi.complete(0 * x, 0 * x)) + norm(phi.complete(0 * x, x)) + inside)
    goal = jnp.maximum(tolerance * _share(phi, known).astype(size.dtype) * size, rounding)
    known = known._replace(lowest=jnp.zeros((), float))
    first = _Search(x, value, gradient, jnp.ones((), value.dtype), size, known, jnp.int32(0))

    def onward(search: _Search) -> Array:
        return (search.norm > goal) & (search.trials < trials) & (search.length > SHORTEST)

    end = lax.while_loop(onward, lambda search: _try(phi, search), first)
    return end.x, end.secants._replace(value=end.value.astype(float)), end.trials


def _share(phi: Subproblem, known: Secants) -> Array:
    """Return min(1, L_i/curvature), with 1 where one of them is not known."""
    L = steepest(known)
    if phi.curvature is None:
        return jnp.ones_like(L)
    curvature = jnp.asarray(phi.curvature, L.dtype)
    return jnp.where((L > 0) & (curvature > L), L / jnp.where(curvature > 0, curvature, 1), 1)


def _try(phi: Subproblem, here: _Search) -> _Search:
    """Compute f_i and its gradient at x + t d; go there if phi_i falls enough, else shorten t."""
    t, d = here.length, _downhill(phi, here.gradient, here.secants)
    there = here.x + t * d
    value, own = phi.f.value_and_gradient(there)
    gradient = phi.complete(own, there)
    slope, end_slope = here.gradient @ d, gradient @ d
    tilt = phi.complete(0 * d, here.x) @ d + t / 2 * (phi.complete(0 * d, d) - phi.complete(0 * d, 0 * d)) @ d
    rise = value - here.value + t * tilt
    L = steepest(here.secants)
    noise = rounding_of(value, here.x @ here.x, L) + rounding_of(here.value, there @ there, L)
    by_slopes = (jnp.abs(rise) <= noise) & (slope + end_slope <= 2 * DECREASE * slope)
    accepted = jnp.isfinite(rise) & jnp.isfinite(end_slope) & ((rise <= DECREASE * t * slope) | by_slopes)

    lowest_point = -slope * t**2 / (2 * (rise - slope * t))  # of the parabola through what is known
    shorter = jnp.where(jnp.isfinite(lowest_point), jnp.clip(lowest_point, 0.1 * t, 0.5 * t), 0.1 * t)

    learned = _learn(phi, here, there, gradient)
    moved = _Search(there, value, gradient, jnp.ones_like(t), norm(gradient), learned, here.trials)
    chosen = choose(accepted, moved, here._replace(length=shorter))
    return chosen._replace(trials=here.trials + 1)


def _learn(phi: Subproblem, here: _Search, there: Vector, gradient: Vector) -> Secants:
    """Return the secants with the pair of the step to `there`."""
    s, known = there - here.x, here.secants
    added = phi.complete(0 * s, s) - phi.complete(0 * s, 0 * s)  # by the quadratic term
    y = gradient - here.gradient - added
    products = jnp.stack([jnp.asarray(a @ b, float) for a, b in ((s, s), (s, y), (y, y))])
    size = norm(here.gradient) + norm(phi.complete(0 * s, here.x)) + in_precision_of(s, steepest(known)) * norm(here.x)
    visible = jnp.sqrt(products[2]) > 1e4 * jnp.finfo(size.dtype).eps * size  # rounding may look like curvature
    curvature = jnp.where(visible & (products[0] > 0), products[1] / products[0], 0)
    return Secants(
        push(known.steps, s),
        push(known.changes, y),
        jnp.concatenate([products[:, None], known.products[:, :-1]], axis=1),
        known.value,
        jnp.minimum(known.lowest, curvature),
    )


def _downhill(phi: Subproblem, gradient: Vector, known: Secants) -> Vector:
    """Return the L-BFGS direction; steepest descent where that is no descent."""
    c = jnp.zeros((), float) if phi.curvature is None else jnp.asarray(phi.curvature, float)
    ss, sy, yy = known.products
    sy, yy = sy + c * ss, yy + 2 * c * sy + c**2 * ss
    usable = (sy > 10 * jnp.finfo(sy.dtype).eps * jnp.sqrt(ss * yy)) & (ss > 0)
    inverse = jnp.where(usable, 1 / jnp.where(usable, sy, 1), 0)
    newest = jnp.argmax(usable)
    cautious = 1 / (c if phi.curvature is not None else jnp.maximum(norm(gradient), 1))
    scale = jnp.where(usable[newest], sy[newest] / jnp.where(usable[newest], yy[newest], 1), cautious)

    def back(q: Vector, pair: Any) -> tuple[Vector, Array]:
        s, y, inverse = pair
        a = in_precision_of(s, inverse) * (s @ q)
        return q - a * (y + in_precision_of(s, c) * s), a

    def forth(q: Vector, pair: Any) -> tuple[Vector, None]:
        s, y, inverse, a = pair
        b = in_precision_of(s, inverse) * ((y + in_precision_of(s, c) * s) @ q)
        return q + (a - b) * s, None

    q, weights = lax.scan(back, gradient, (known.steps, known.changes, inverse))
    pairs = known.steps, known.changes, inverse, weights
    q, _ = lax.scan(forth, in_precision_of(q, scale) * q, pairs, reverse=True)
    slope = q @ gradient
    good = jnp.isfinite(slope) & (slope > 0)
    steepest = in_precision_of(gradient, cautious) * gradient
    return jax.tree.map(lambda a, b: -jnp.where(good, a, b), q, steepest)
