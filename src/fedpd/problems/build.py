"""Build a problem from a loss function, the data of each agent, a starting model and an optional penalty."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, check_not_masked, count, refuse
from fedpd.base.precision import as_numpy, is_double, scope
from fedpd.base.typed import explained
from fedpd.core import UNKNOWN, Answer, Losses, Penalty, Problem, Tree


@explained
def from_losses(
    losses: Losses,
    data: list[Tree] | Tree,
    start: Tree,
    *,
    penalty: Penalty | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    block: int | None = None,
    answer: Answer = UNKNOWN,
    name: str = "problem",
) -> Problem:
    """Return a problem with N agents from a loss function, their data and a starting model.

    Args:
        losses: (model, batch) -> (B,), the losses F(x; xi) of a batch with leaves (B, ...).
        data: A list with one pytree per agent, leaves (n_i, ...); the sizes n_i may differ. Or a pytree of arrays (N,
            n, ...), if all agents have n samples.
        start: The model x^0, any pytree of floating-point arrays.
        penalty: (model) -> scalar, the part of F that does not depend on a sample.
        weights: (N,) the w_i of f_i = w_i sum_{xi in D_i} F(x; xi); None: 1/|D_i|, which makes f_i a mean.
        block: The size of the batches that f_i consists of. Give it if a sample's loss depends on the other samples of
            its batch (contrastive losses, batch normalisation), see `fedpd.Problem`. None: it does not.
        answer: The known facts about the problem: a minimiser, L, delta.
        name: The name of the problem in tables and figures.

    Raises:
        FedpdError: If shapes do not fit, a number is not finite, or `losses` fails for the start and the data.

    Examples:
        >>> agents = [{"a": np.ones((n, 2)), "y": np.arange(float(n))} for n in (3, 5)]
        >>> problem = from_losses(lambda x, rows: (rows["a"] @ x - rows["y"]) ** 2, agents, start=np.zeros(2))
        >>> problem.agents, problem.samples, problem.dimension
        (2, 8, 2)
    """
    if block is not None:
        count("block", block, "Give the samples per batch, e.g. 64, or None if losses do not depend on their batch")
    for leaf in jax.tree.leaves((data, start)):
        check_not_masked("data", leaf)
    data, start = jax.tree.map(np.asarray, (data, start))
    double = is_double(data, start)
    sizes = _sizes(data)
    stacked = _pad(data, sizes) if isinstance(data, list) else data
    stacked = jax.tree.map(lambda leaf: as_numpy(leaf, double, "data"), stacked)
    _check_finite(stacked)
    start = jax.tree.map(lambda leaf: as_numpy(leaf, double, "start"), start)
    if not jax.tree.leaves(start):
        refuse("start", start, "must hold at least one array", "Give the model to start from")
    for leaf in jax.tree.leaves(start):
        if not jnp.issubdtype(leaf.dtype, np.floating):
            raise FedpdError(f"start has a leaf of {leaf.dtype}: use floating-point numbers, float32 or float64.")
        if not np.isfinite(leaf).all():
            raise FedpdError("start holds NaN or infinity: models must be finite. Start from finite numbers.")
    problem = Problem(losses, penalty, stacked, sizes, _scale(weights, sizes), start, double, answer, name, block=block)
    _try(problem)
    return problem


def _sizes(data: list[Tree] | Tree) -> np.ndarray:
    """Return (N,) the numbers of samples."""
    if isinstance(data, list):
        if not data:
            raise FedpdError("data is empty: there must be at least one agent. Give one data set per agent.")
        return np.array([_size(agent, i) for i, agent in enumerate(data)], np.int32)
    shapes = [leaf.shape for leaf in jax.tree.leaves(data)]
    if not shapes or min(map(len, shapes)) < 2 or len({shape[:2] for shape in shapes}) > 1 or 0 in shapes[0][:2]:
        rule = "must be arrays with the same first two axes (N, n)"
        refuse("data", shapes, rule, "If agents differ in size, give a list with one entry per agent")
    return np.full(shapes[0][0], shapes[0][1], np.int32)


def _size(agent: Tree, i: int) -> int:
    """Return the number of samples of agent i."""
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(agent)}
    if len(lengths) != 1 or None in lengths:
        shapes = [leaf.shape for leaf in jax.tree.leaves(agent)]
        rule = "must be arrays with the same first axis, one row per sample"
        refuse(f"data of agent {i}", shapes, rule, "Give NumPy arrays, or a dict of them")
    (size,) = lengths
    if not size:
        raise FedpdError(f"agent {i} has no samples: its f_i is not defined. Leave the agent out.")
    return size


def _pad(agents: list[Tree], sizes: np.ndarray) -> Tree:
    """Return arrays (N, n, ...): an agent with fewer samples repeats its own, so that padding is always valid data."""
    structure: Any = jax.tree.structure(agents[0])
    for i, agent in enumerate(agents):
        if jax.tree.structure(agent) != structure:
            raise FedpdError(f"data of agent {i} has other keys than data of agent 0. Give all agents the same keys.")
    every = np.arange(sizes.max())

    def stack(*leaves: np.ndarray) -> np.ndarray:
        for i, leaf in enumerate(leaves):
            if leaf.shape[1:] != leaves[0].shape[1:]:
                rule = f"must be the shape of agent 0, {leaves[0].shape[1:]}"
                refuse(f"shape of the samples of agent {i}", leaf.shape[1:], rule, "Bring all samples to one shape")
        return np.stack([leaf if len(leaf) == len(every) else leaf[every % len(leaf)] for leaf in leaves])

    return jax.tree.map(stack, *agents)


def _check_finite(stacked: Tree) -> None:
    """Refuse data with NaN or infinity."""
    for leaf in jax.tree.leaves(stacked):
        if jnp.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
            agent = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise FedpdError(f"data of agent {agent} holds NaN or infinity. Clean or drop those samples.")


def _scale(weights: Any, sizes: np.ndarray) -> np.ndarray:
    """Return (N,) w_i |D_i|."""
    if weights is None:
        return np.ones(len(sizes))
    try:
        weights = np.asarray(weights, float)
    except (TypeError, ValueError):
        refuse("weights", weights, "must be numbers", "Leave them out for w_i = 1/|D_i|")
    if weights.shape != sizes.shape or not (weights > 0).all() or not np.isfinite(weights).all():
        refuse("weights", weights, f"must be {len(sizes)} positive numbers", "Leave them out for w_i = 1/|D_i|")
    return weights * sizes


def _try(problem: Problem) -> None:
    """Trace the user's functions once, to report a wrong shape here and not inside a compiled round."""
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), problem.data)
    rows = int(problem.sizes.max())
    _check_result("losses", problem, (problem.start, batch), (rows,), "Return one loss per sample, not their mean")
    if problem.penalty is not None:
        _check_result("penalty", problem, (problem.start,), (), "Return a scalar, e.g. a sum over the model's entries")


def _check_result(
    name: str, problem: Problem, arguments: tuple[Tree, ...], shape: tuple[int, ...], remedy: str
) -> None:
    """Check that a function of the user can be called and returns the right shape."""
    shapes = jax.tree.map(np.shape, arguments)
    with scope(problem.double):
        try:
            result = jax.eval_shape(getattr(problem, name), *arguments)
        except Exception as error:
            sentence = f"{name} cannot be called with arrays of the shapes {shapes} (model, batch): {error}"
            raise FedpdError(f"{sentence} Check that it fits start and data.") from error
    if getattr(result, "shape", None) != shape or not jnp.issubdtype(result.dtype, np.floating):
        returned = f"{result.dtype}{list(result.shape)}" if hasattr(result, "shape") else type(result).__name__
        raise FedpdError(f"{name} returns {returned}: it must be floating-point with shape {shape}. {remedy}.")
