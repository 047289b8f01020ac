"""Any problem: the losses of a batch, an optional penalty, data by agent, a pytree model."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.checks import FedpdError, refuse
from fedpd.core import UNKNOWN, Answer, Losses, Penalty, Problem, Tree
from fedpd.precision import as_numpy, is_double, scope


def from_losses(
    losses: Losses,
    data: list[Tree] | Tree,
    start: Tree,
    *,
    penalty: Penalty | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    answer: Answer = UNKNOWN,
    name: str = "problem",
) -> Problem:
    """A problem of N agents from a loss, their data and a start.

    losses:  (model, batch) -> (B,), the losses F(x; xi) of a batch whose leaves are (B, ...).
    data:    a list with one pytree an agent, leaves (n_i, ...), of unequal sizes if need be; or a pytree of arrays
             (N, n, ...) where all agents have n samples.
    start:   the model x^0, any pytree of floating-point arrays.
    penalty: (model) -> scalar, what does not depend on a sample.
    weights: the w_i of f_i = w_i sum F; by default 1/|D_i|, so that f_i is a mean.
    """
    data, start = jax.tree.map(np.asarray, (data, start))
    double = is_double(data, start)
    sizes = _sizes(data)
    stacked = _pad(data, sizes) if isinstance(data, list) else data
    stacked = jax.tree.map(lambda leaf: as_numpy(leaf, double, "data"), stacked)
    _check_finite(stacked)
    start = jax.tree.map(lambda leaf: as_numpy(leaf, double, "start"), start)
    for leaf in jax.tree.leaves(start):
        if not jnp.issubdtype(leaf.dtype, np.floating):
            raise FedpdError(f"start has a leaf of {leaf.dtype}: models are floating-point. Give float32 or float64.")
    problem = Problem(losses, penalty, stacked, sizes, _scale(weights, sizes), start, double, answer, name)
    _try(problem)
    return problem


def _sizes(data: list[Tree] | Tree) -> np.ndarray:
    if isinstance(data, list):
        if not data:
            raise FedpdError("data holds no agents: there is nothing to optimise. Give one data set per agent.")
        return np.array([_size(agent, i) for i, agent in enumerate(data)], np.int32)
    shapes = [leaf.shape for leaf in jax.tree.leaves(data)]
    if not shapes or min(map(len, shapes)) < 2 or len({shape[:2] for shape in shapes}) > 1 or 0 in shapes[0][:2]:
        refuse("data", shapes, "arrays of all agents must share two first axes (N, n)", "Or give a list by agent")
    return np.full(shapes[0][0], shapes[0][1], np.int32)


def _size(agent: Tree, i: int) -> int:
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(agent)}
    if len(lengths) != 1 or None in lengths:
        refuse(f"data of agent {i}", lengths, "its arrays must have the same first axis", "One row per sample")
    (size,) = lengths
    if not size:
        raise FedpdError(f"agent {i} has no samples: its f_i is not defined. Leave the agent out.")
    return size


def _pad(agents: list[Tree], sizes: np.ndarray) -> Tree:
    """(N, n, ...): an agent with fewer samples repeats its own, so that padding is always valid data."""
    structures = {jax.tree.structure(agent) for agent in agents}
    if len(structures) > 1:
        refuse("data", structures, "all agents must have the same structure", "The same keys and arrays for each")
    every = np.arange(sizes.max())

    def stack(*leaves: np.ndarray) -> np.ndarray:
        shapes = {leaf.shape[1:] for leaf in leaves}
        if len(shapes) > 1:
            refuse("data", sorted(shapes), "samples must have one shape over all agents", "Bring them to one shape")
        return np.stack([leaf if len(leaf) == len(every) else leaf[every % len(leaf)] for leaf in leaves])

    return jax.tree.map(stack, *agents)


def _check_finite(stacked: Tree) -> None:
    for leaf in jax.tree.leaves(stacked):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            agent = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise FedpdError(f"data of agent {agent} holds NaN or infinity. Clean or drop those samples.")


def _scale(weights: Any, sizes: np.ndarray) -> np.ndarray:
    if weights is None:
        return np.ones(len(sizes))
    weights = np.asarray(weights, float)
    if weights.shape != sizes.shape or not (weights > 0).all() or not np.isfinite(weights).all():
        refuse("weights", weights, f"must be {len(sizes)} positive numbers", "Leave them out for w_i = 1/|D_i|")
    return weights * sizes


def _try(problem: Problem) -> None:
    """Trace the user's functions once, so that a wrong shape is answered here and not inside a compiled round."""
    with scope(problem.double):
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), problem.data)
        losses = jax.eval_shape(problem.losses, problem.start, batch)
        expected = (int(problem.sizes.max()),)
        if getattr(losses, "shape", None) != expected:
            refuse("losses", losses, f"must return one loss per sample, shape {expected}", "Do not sum or average")
        if problem.penalty is not None:
            penalty = jax.eval_shape(problem.penalty, problem.start)
            if getattr(penalty, "shape", None) != ():
                refuse("penalty", penalty, "must return a scalar", "Sum over the model's entries")
