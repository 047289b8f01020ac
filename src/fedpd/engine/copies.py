"""The agents' copies of the model, from the rows of the agents seen, if the newest broadcasts do not determine them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.core import Array
from fedpd.core.agents import Shard, local_objective, one_agent
from fedpd.core.distances import largest_distance_on_host
from fedpd.engine.kept import Kept
from fedpd.engine.plan import Settings
from fedpd.engine.present import NEVER, Newest, catch_up, returned
from fedpd.engine.rounds import Inputs, Template
from fedpd.engine.seen import SeenAgents


class Method(NamedTuple):
    """What is needed to read a row.

    Attributes:
        template: The method on the problem's functions.
        kept: Which leaves of an agent's state a row holds.
        shapes: The shapes of an agent's state.
    """

    template: Template
    kept: Kept
    shapes: Any


def mean_and_gap(
    method: Method, inputs: Inputs, newest: Newest, seen: SeenAgents, differ: bool
) -> tuple[Vector, float]:
    """Return the mean of the copies of all N agents, and their largest distance.

    Args:
        method: How to read a row.
        inputs: The arrays of the run, with the settings of one variant.
        newest: The newest broadcasts.
        seen: The rows.
        differ: Whether copies can differ now; if not, the distance is 0.
    """
    number = len(seen.slots)
    first = one_agent(inputs.shard._replace(real=None), 0)
    away = jax.device_get(_copy_of_absent(method.template, first, inputs.start, newest, inputs.settings))
    offset, found = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), away), []
    for rows, last in _blocks(seen):
        copies = _copies(method, newest, inputs.settings, rows, last)
        offset = jax.tree.map(lambda total, leaf, start: total + (leaf - start).sum(axis=0), offset, copies, away)
        found += [copies] if differ else []
    mean = jax.tree.map(lambda start, total: np.asarray(start + total / number, start.dtype), away, offset)
    if not differ:
        return mean, 0.0
    everyone = jax.tree.map(lambda start, *more: np.concatenate([start[None], *more]), away, *found)
    if seen.number == number:  # no agent was absent from the start
        everyone = jax.tree.map(lambda leaf: leaf[1:], everyone)
    return mean, largest_distance_on_host(everyone)


def _blocks(seen: SeenAgents) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    """Return the rows of all agents seen and their last rounds, in the order of the agents, in blocks of equal length.

    The last block is filled up with rows of nobody, which were NEVER present.
    """
    order = np.argsort(seen.agents)
    for first in range(0, seen.number, seen.length):
        some = order[first : first + seen.length]
        *rows, last = (np.zeros((seen.length, *shape.shape), shape.dtype) for shape in seen.shapes)
        seen.take(some, [*rows, last], np.arange(len(some)))
        yield tuple(rows), last


@partial(jax.jit, static_argnums=0)
def _copy_of_absent(template: Template, first: Shard, start: Vector, newest: Newest, settings: Settings) -> Vector:
    """Return the copy of the model of an agent that was never present; `first` has the arrays of any agent."""
    program = template.program(settings)
    agent = program.algorithm.init(local_objective(program.functions, first), start)
    return program.algorithm.model(catch_up(program, newest, jnp.int32(NEVER), agent))


def _copies(method: Method, newest: Newest, settings: Settings, rows: Any, last: np.ndarray) -> Vector:
    """Return the copies of the model of the agents with these rows, without rows of nobody, leaves (n, ...)."""
    leaves, structure = jax.tree.flatten(method.shapes)
    shapes = structure, tuple(leaves)
    found = jax.device_get(_compiled_copies(method.template, method.kept, shapes, newest, settings, rows, last))
    return jax.tree.map(lambda leaf: leaf[last != NEVER], found)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_copies(
    template: Template, kept: Kept, shapes: Any, newest: Newest, settings: Settings, rows: Any, last: Array
) -> Vector:
    program, (structure, leaves) = template.program(settings), shapes

    def copy(row: tuple[Array, ...], last: Array) -> Vector:
        agent = returned(program, kept, newest, row, jax.tree.unflatten(structure, leaves))
        return program.algorithm.model(catch_up(program, newest, last, agent))

    return jax.vmap(copy)(rows, last)
