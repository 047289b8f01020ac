"""Measures how much the agents' gradients differ: delta of Assumption 5, B of Assumption 4 and G of Assumption 3."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector

from fedpd.base.checks import at_least, brief
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import AXIS, Functions, Layout, Shard, arrays, each_agent, local_objective, zero_for_padding
from fedpd.core.distances import largest_distance
from fedpd.theory.points import Places, Progress, check_finite, places


class Profile(NamedTuple):
    """The differences between the gradients at P points; every field is (P,).

    Attributes:
        pairwise: max_ij ||grad f_i - grad f_j||.
        centred: max_i ||grad f_i - grad f||.
        largest: max_i ||grad f_i||.
        squares: sum_i ||grad f_i||^2.
        stationarity: ||grad f||^2.
    """

    pairwise: np.ndarray
    centred: np.ndarray
    largest: np.ndarray
    squares: np.ndarray
    stationarity: np.ndarray

    def __repr__(self) -> str:
        return brief(self)


class Similarity(NamedTuple):
    """The largest values over the measured points, which are lower bounds of the paper's constants (for all x).

    The two delta of Assumption 5 are different numbers: pairwise <= 2 centred, and centred <= (N-1)/N pairwise.

    Attributes:
        pairwise: delta of Assumption 5 for pairs, max_ij ||grad f_i - grad f_j||.
        centred: delta of Assumption 5 for the mean, max_i ||grad f_i - grad f||.
        B: B of Assumption 4, sum_i ||grad f_i||^2 <= B^2 ||grad f||^2 where ||grad f||^2 > epsilon. It is at least
            sqrt(N), with equality only if all gradients are equal; None if no point has ||grad f||^2 > epsilon.
        G: G of Assumption 3, ||grad f_i|| <= G.
        points: The number of points.
        how: A sentence that says how the numbers were found.
    """

    pairwise: float
    centred: float
    B: float | None
    G: float
    points: int
    how: str


@explained
def similarity(
    problem: Problem,
    points: Iterable[Tree] | None = None,
    *,
    radius: float = 1.0,
    samples: int = 4,
    seed: int = 0,
    epsilon: float = 1e-6,
    progress: Progress | None = None,
) -> Similarity:
    """Return delta, B and G at the given models and at random models around them.

    `points`, `radius`, `samples`, `seed` and `progress` are as for `estimate_smoothness`.

    Args:
        problem: The problem.
        epsilon: B is the largest value over the points with ||grad f||^2 > epsilon.
    """
    at_least("epsilon", epsilon, 0, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    where = places(problem, points, radius, samples, seed)
    at = _profile(problem, where, progress)
    counts = at.stationarity > epsilon
    B = float(np.sqrt(np.max(at.squares[counts] / at.stationarity[counts]))) if counts.any() else None
    beyond = f"with ||grad f||^2 > {epsilon:g}"
    of_B = f"no B, because no point is {beyond}" if B is None else f"B over the {counts.sum()} {beyond}"
    how = f"largest values of the gradients of the {problem.agents} f_i {where.words}: lower bounds; {of_B}"
    pairwise, centred, G = (float(np.max(column)) for column in (at.pairwise, at.centred, at.largest))
    return Similarity(pairwise, centred, B, G, len(where.models), how)


@explained
def profile(problem: Problem, points: Iterable[Tree], *, progress: Progress | None = None) -> Profile:
    """Return the differences between the gradients at each of the given models, for example from a run.

    Args:
        problem: The problem.
        points: P models.
        progress: Called with (done, total) after each point.
    """
    return _profile(problem, places(problem, points, 1.0, 0, 0), progress)


def _profile(problem: Problem, where: Places, progress: Progress | None) -> Profile:
    """Return the profile at some places."""
    functions, rows = Functions.of(problem), []
    with scope(problem.double):
        shard = jax.device_put(arrays(problem))
        for i, model in enumerate(where.models):
            row = jax.device_get(_at(functions, shard, Vector(jax.device_put(model))))
            check_finite(row, "a gradient", i)
            rows.append(row)
            if progress is not None:
                progress(i + 1, len(where.models))
    return Profile(*np.asarray(rows, np.float64).T)


def start_gradients(problem: Problem) -> np.ndarray:
    """Return (N, d) the agents' gradients grad f_i at the start, one row of float64 per agent."""
    functions, layout = Functions.of(problem), Layout(problem.agents, parallel=False, mesh=None)
    with scope(problem.double):
        _, stacked = jax.jit(_gradients, static_argnums=(0, 1))(
            functions, layout, arrays(problem), Vector(jax.device_put(problem.start))
        )
        leaves = [np.asarray(leaf, np.float64).reshape(problem.agents, -1) for leaf in jax.tree.leaves(stacked)]
    return np.concatenate(leaves, axis=1)


@partial(jax.jit, static_argnames="functions")
def _at(functions: Functions, shard: Shard, x: Vector) -> tuple[Array, ...]:
    """Return a row of `Profile`, computed from all gradients at x (N d numbers).

    It compares the gradients by their differences c_i to the first one, so that equal gradients give exactly 0.
    """
    layout = Layout(len(shard.agent), parallel=False, mesh=None)
    total, gradients = _gradients(functions, layout, shard, x)
    mean = total / layout.agents
    flat = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(gradients)]
    offsets = [leaf - leaf[:1] for leaf in flat]
    squares = _squares(flat)
    centred = jnp.sqrt(jnp.max(_squares([leaf - leaf.mean(0) for leaf in offsets])))
    return largest_distance(gradients, layout), centred, jnp.sqrt(jnp.max(squares)), jnp.sum(squares), mean @ mean


def _squares(leaves: list[Array]) -> Array:
    """Return (N,) squared norms of the rows."""
    return sum((jnp.sum(leaf * leaf, axis=1) for leaf in leaves[1:]), jnp.sum(leaves[0] * leaves[0], axis=1))


def _gradients(functions: Functions, layout: Layout, shard: Shard, x: Vector) -> tuple[Vector, Vector]:
    """Return (sum_i grad f_i(x), the grad f_i(x) stacked)."""

    def gradient(one: Shard) -> tuple[Vector, Vector]:
        own = local_objective(functions, one).gradient(x)
        return zero_for_padding(one, own), own

    return each_agent(gradient, shard, layout)


def gradient_dissimilarity(functions: Functions, layout: Layout, shard: Shard, x: Vector) -> Array:
    """Return max_i ||grad f_i(x) - grad f(x)||, the centred delta at x.

    It is exact up to rounding of the largest ||grad f_i(x)||.

    It works under any layout, so that a run can record it. A padding agent repeats a gradient, which does not change
    the maximum.
    """
    total, gradients = _gradients(functions, layout, shard, x)
    mean = total / layout.agents

    def square(gradient: Vector) -> Array:
        difference = gradient - mean
        return difference @ difference

    largest = jnp.max(jax.vmap(square)(gradients))
    return jnp.sqrt(largest if layout.mesh is None else lax.pmax(largest, AXIS))
