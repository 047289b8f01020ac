"""Batch statistics stay local: each agent measures on its own samples what a model normalises by in evaluation.

In training, a model with batch normalisation normalises every batch by that batch's own statistics: its loss is a
function of parameters and batch, and nothing else is kept. To evaluate agent i's samples one by one, the statistics are
those of agent i's training samples at that very model: their mean over the batches that f_i is made of, normalised as
in training ("PreciseBN": Wu and Johnson, Rethinking "Batch" in BatchNorm, 2021). They are never sent, never averaged
over agents, and never stored.
"""

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.checks import FedpdError
from fedpd.base.precision import scope
from fedpd.core import Array, Problem, Tree, in_blocks
from fedpd.core.agents import BLOCK, Functions, Shard, arrays


def with_own_statistics(functions: Functions, one: Shard, x: Vector) -> Vector:
    """Return x, or (x, the agent's statistics at x) if the model has some: what its samples are evaluated with."""
    return x if functions.statistics is None else Vector((x.tree, _own(functions, one, x)))


def local_statistics(problem: Problem, model: Tree) -> Tree:
    """Return every agent's statistics at a model, leaves (N, ...): to predict for agent i, normalise by row i.

    Args:
        problem: A problem whose model has batch normalisation.
        model: The model.

    Raises:
        FedpdError: If the problem's model normalises by no statistics.
    """
    if problem.statistics is None:
        raise FedpdError(f"{problem.name}: its model normalises by no statistics. Predict with the model alone.")
    functions = Functions.of(problem)
    with scope(problem.double):
        found = jax.lax.map(lambda one: _own(functions, one, Vector(model)), arrays(problem))
        return jax.tree.map(np.asarray, found)


def _own(functions: Functions, one: Shard, x: Vector) -> Tree:
    """Return the mean of the statistics of an agent's batches."""
    measure, block = functions.statistics, functions.block or BLOCK
    assert measure is not None  # asked for only where there are statistics

    def of_batch(x: Vector, rows: Tree, inside: Array) -> Tree:
        return measure(x.tree, rows)

    total = in_blocks(of_batch, x, one.data, one.sizes, block)
    batches = -(-one.sizes // block)
    return jax.tree.map(lambda leaf: leaf / batches.astype(leaf.dtype), total)
