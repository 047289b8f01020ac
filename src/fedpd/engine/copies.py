"""The copies of the model that agents have in a run in which agents are absent."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.core import Array
from fedpd.core.agents import Shard, local_objective
from fedpd.engine.kept import Kept
from fedpd.engine.plan import Settings
from fedpd.engine.present import NEVER, Newest, catch_up, returned
from fedpd.engine.rounds import Template


@partial(jax.jit, static_argnums=0)
def copy_of_absent(template: Template, first: Shard, start: Vector, newest: Newest, settings: Settings) -> Vector:
    """Return the copy of the model of an agent that was never present; `first` has the arrays of any agent."""
    program = template.program(settings)
    agent = program.algorithm.init(local_objective(program.functions, first), start)
    return program.algorithm.model(catch_up(program, newest, jnp.int32(NEVER), agent))


def copies_of(
    template: Template, kept: Kept, shapes: Any, newest: Newest, settings: Settings, rows: Any, last: Array
) -> Vector:
    """Return the copies of the model of agents with these rows, leaves (rows, ...)."""
    leaves, structure = jax.tree.flatten(shapes)
    return _copies_compiled(template, kept, (structure, tuple(leaves)), newest, settings, rows, last)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _copies_compiled(
    template: Template, kept: Kept, shapes: Any, newest: Newest, settings: Settings, rows: Any, last: Array
) -> Vector:
    program, (structure, leaves) = template.program(settings), shapes

    def copy(row: tuple[Array, ...], last: Array) -> Vector:
        agent = returned(program, kept, newest, row, jax.tree.unflatten(structure, leaves))
        return program.algorithm.model(catch_up(program, newest, last, agent))

    return jax.vmap(copy)(rows, last)
