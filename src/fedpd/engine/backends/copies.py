"""The agents' copies of the model, from the rows of the agents seen, if the newest broadcasts do not determine them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.core import Array, Method
from fedpd.core.agents import Shard, local_objective
from fedpd.core.distances import largest_distance_on_host
from fedpd.engine.backends.agent_rows import AgentRows
from fedpd.engine.backends.cohort_rounds import NEVER, Newest, catch_up, returned
from fedpd.engine.backends.liveness import Liveness
from fedpd.engine.loop import Inputs, Template

BLOCK = 1024  # rows to read at a time


class ReadRow(NamedTuple):
    """What it takes to read a row.

    Attributes:
        template: The program.
        liveness: Which leaves of an agent's state a row holds.
        shapes: The shapes of an agent's state.
        first: The arrays of the first agent, on the host. An agent that was never present has the copy that this agent
            would have.
    """

    template: Template
    liveness: Liveness
    shapes: Any
    first: Shard


def mean_and_gap(
    reading: ReadRow, inputs: Inputs, newest: Newest, seen: AgentRows, differ: bool, agree: bool
) -> tuple[Vector, float]:
    """Return the mean of the copies of all N agents, and their largest distance.

    Args:
        reading: How to read a row.
        inputs: The arrays of the run, with the method of one variant.
        newest: The newest broadcasts.
        seen: The rows.
        differ: Whether copies can differ now; if not, the distance is 0.
        agree: Whether copies are equal after a communication, so that only agents that worked since the newest one have
            copies of their own.
    """
    number = len(seen.slots)
    away = jax.device_get(_copy_of_absent(reading.template, reading.first, inputs, newest))
    offset, found = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), away), []
    own = seen.since(int(np.max(newest.rounds)) if agree else NEVER)
    for rows, last in _blocks(seen, own):
        copies = _copies(reading, newest, inputs.method, rows, last)
        offset = jax.tree.map(lambda total, leaf, start: total + (leaf - start).sum(axis=0), offset, copies, away)
        found += [copies] if differ else []
    mean = jax.tree.map(lambda start, total: np.asarray(start + total / number, start.dtype), away, offset)
    if not found:
        return mean, 0.0
    everyone = jax.tree.map(lambda start, *more: np.concatenate([start[None], *more]), away, *found)
    if len(own) == number:  # all agents have copies of their own
        everyone = jax.tree.map(lambda leaf: leaf[1:], everyone)
    return mean, largest_distance_on_host(everyone)


def _blocks(seen: AgentRows, agents: np.ndarray) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    """Return the rows of some agents and their last rounds, in blocks of equal length.

    The last block is filled up with rows of nobody, which were NEVER present.
    """
    length = min(seen.length, BLOCK)
    for first in range(0, len(agents), length):
        some = seen.in_order(agents[first : first + length])
        filled = [np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)]) for leaf in some]
        yield tuple(filled[:-1]), filled[-1]


@partial(jax.jit, static_argnums=0)
def _copy_of_absent(template: Template, first: Shard, inputs: Inputs, newest: Newest) -> Vector:
    """Return the copy of the model of an agent that was never present; `first` has the arrays of any agent."""
    program = template.program(inputs.method, inputs.frozen)
    agent = program.algorithm.init(local_objective(program.functions, first), inputs.start)
    return program.algorithm.model(catch_up(program, newest, jnp.int32(NEVER), agent))


def _copies(reading: ReadRow, newest: Newest, method: Method, rows: Any, last: np.ndarray) -> Vector:
    """Return the copies of the model of the agents with these rows, without rows of nobody, leaves (n, ...)."""
    leaves, structure = jax.tree.flatten(reading.shapes)
    shapes = structure, tuple(leaves)
    found = jax.device_get(_compiled_copies(reading.template, reading.liveness, shapes, newest, method, rows, last))
    return jax.tree.map(lambda leaf: leaf[last != NEVER], found)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_copies(
    template: Template, liveness: Liveness, shapes: Any, newest: Newest, method: Method, rows: Any, last: Array
) -> Vector:
    program, (structure, leaves) = template.program(method, None), shapes

    def copy(row: tuple[Array, ...], last: Array) -> Vector:
        agent = returned(program, liveness, newest, row, jax.tree.unflatten(structure, leaves))
        return program.algorithm.model(catch_up(program, newest, last, agent))

    return jax.vmap(copy)(rows, last)
