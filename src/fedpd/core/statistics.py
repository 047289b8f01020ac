"""Batch statistics stay local: each agent computes them on its own training samples when it evaluates a model.

In training, a model with batch normalisation normalises every batch by that batch's own statistics. Its loss depends on
the parameters and the batch only. To evaluate single samples of agent i, fedpd computes statistics on the training
samples of agent i at the same model: the mean of the statistics over the batches of f_i, normalised as in training
("PreciseBN": Wu and Johnson, Rethinking "Batch" in BatchNorm, 2021). They are never sent, never averaged over agents,
and never stored.

A central test set belongs to no agent. The server evaluates it with the mean of the agents' statistics at the same
model, as a server that averages batch statistics does.
"""

from typing import Any

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.checks import FedpdError
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree, in_blocks
from fedpd.core.agents import BLOCK, Functions, Shard, arrays, map_agents


def with_own_statistics(functions: Functions, one: Shard, x: Vector) -> Vector:
    """Return x, or (x, the agent's statistics at x) if the model has statistics; evaluation needs both."""
    return x if functions.statistics is None else Vector((x.tree, own_statistics(functions, one, x)))


@explained
def local_statistics(problem: Problem, model: Tree) -> Tree:
    """Return every agent's statistics at a model, leaves (N, ...). To predict for agent i, normalise by row i.

    Args:
        problem: A problem whose model has batch normalisation.
        model: The model.

    Raises:
        FedpdError: If the problem's model has no batch statistics.
    """
    if problem.statistics is None:
        raise FedpdError(f"{problem.name}: its model has no batch statistics. Predict with the model alone.")
    functions = Functions.of(problem)
    with scope(problem.double):
        found = map_agents(lambda one: own_statistics(functions, one, Vector(model)), arrays(problem))
        return jax.tree.map(np.asarray, found)


def own_statistics(functions: Functions, one: Shard, x: Vector) -> Tree:
    """Return the mean of the statistics of an agent's batches."""
    measure, block = functions.statistics, functions.block or BLOCK
    assert measure is not None  # callers check that the model has statistics

    def of_batch(x: Vector, rows: Tree, inside: Array, q: Any) -> Tree:
        return measure(x.tree, rows)

    total = in_blocks(of_batch, x, one.data, one.sizes, block, one.offset)
    batches = -(-one.sizes // block)
    return jax.tree.map(lambda leaf: leaf / batches.astype(leaf.dtype), total)
