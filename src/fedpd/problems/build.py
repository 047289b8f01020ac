"""Build a problem from losses per sample, from one loss per agent, or from blocks of data that agents share."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError

from fedpd.base.arrays import as_array, owned, seal
from fedpd.base.checks import FedpdError, check_takes, count, refuse
from fedpd.base.identity import drop_stale_programs
from fedpd.base.precision import as_numpy, is_double, scope
from fedpd.base.typed import explained, first_line
from fedpd.core import UNKNOWN, Answer, Array, Losses, Penalty, Problem, Tree
from fedpd.core.problem import AgentLoss, LossOfAgent
from fedpd.core.rows import Load, merged_axes, stored
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged, check_finite, check_no_agent_is_empty
from fedpd.problems.second_opinion import check_agent_loss, check_training

Weights = Sequence[float] | np.ndarray | Literal["samples"] | None
MOST_PADDING = 2  # padded data of agents in a list may take this many times the memory of the samples
SMALL = 2**24  # bytes; smaller data are padded whatever it takes


@explained
def from_losses(
    losses: Losses,
    data: list[Tree] | Ragged | Lazy | Tree,
    start: Tree,
    *,
    penalty: Penalty | None = None,
    weights: Weights = None,
    block: int | None = None,
    answer: Answer = UNKNOWN,
    name: str = "problem",
    check: bool = True,
) -> Problem:
    """Return a problem with N agents from a loss function, their data and a starting model.

    Args:
        losses: (model, batch) -> (B,), the losses F(x; xi) of a batch with leaves (B, ...).
        data: A list with one pytree per agent, leaves (n_i, ...); the sizes n_i may differ. Or a pytree of arrays (N,
            n, ...), if all agents have n samples. Or `data.ragged(rows, sizes)`, for many agents. Or
            `data.lazy(load, sizes)`, for data larger than memory.
        start: The model x^0, any pytree of floating-point arrays.
        penalty: (model) -> scalar, the part of F that does not depend on a sample.
        weights: (N,) the w_i of f_i = w_i sum_{xi in D_i} F(x; xi). None: 1/|D_i|, which makes f_i a mean and f the
            plain mean of the agents. "samples": N/M for all agents, which makes f the mean over all M samples.
        block: The size of the batches that f_i consists of. Give it if a sample's loss depends on the other samples of
            its batch (contrastive losses), see `fedpd.Problem`. None: it does not; if it does and all agents have n
            samples, the block is n. For agents of different sizes see also `from_agent_loss`.
        answer: The known facts about the problem: a minimiser, L, delta.
        name: The name of the problem in tables and figures.
        check: Whether to compare one loss and one gradient of one agent with JAX without compilation and padding.

    Raises:
        FedpdError: If shapes do not fit, a number is not finite, `losses` fails for the start and the data, or fedpd
            would compute another loss than the plain one.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems
        >>> agents = [{"a": np.ones((n, 2)), "y": np.arange(float(n))} for n in (3, 5)]
        >>> problem = problems.from_losses(
        ...     lambda x, rows: (rows["a"] @ x - rows["y"]) ** 2, agents, start=np.zeros(2)
        ... )
        >>> problem.agents, problem.samples, problem.dimension
        (2, 8, 2)
    """
    if block is not None:
        count("block", block, "Give the samples per batch, e.g. 64, or None if losses do not depend on their batch")
    start = jax.tree.map(lambda leaf: as_array(leaf, "start", "Give the model as arrays of numbers"), start)
    held, double = _hold(data, start)
    start = jax.tree.map(lambda leaf: owned(as_numpy(leaf, double, "start")), start)
    if not jax.tree.leaves(start):
        refuse("start", start, "must hold at least one array", "Give the model to start from")
    if not sum(leaf.size for leaf in jax.tree.leaves(start)):
        refuse("start", start, "must hold at least one number", "Give the model to start from")
    for leaf in jax.tree.leaves(start):
        if not jnp.issubdtype(leaf.dtype, np.floating):
            raise FedpdError(f"start has a leaf of {leaf.dtype}: use floating-point numbers, float32 or float64.")
        if not np.isfinite(leaf).all():
            raise FedpdError("start holds NaN or infinity: models must be finite. Start from finite numbers.")
    problem = Problem(
        losses,
        penalty,
        held.data,
        held.sizes,
        scale_of(weights, held.sizes),
        start,
        double,
        answer,
        name,
        block=block,
        offsets=held.offsets,
        load=held.load,
    )
    drop_stale_programs(losses, penalty)
    _try(problem)
    return check_training(problem) if check else problem


class Held(NamedTuple):
    """The samples as a problem holds them; see `Problem` for the attributes."""

    data: Tree
    sizes: np.ndarray
    offsets: np.ndarray | None = None
    load: Load | None = None


def _hold(data: list[Tree] | Ragged | Lazy | Tree, start: Tree) -> tuple[Held, bool]:
    """Return the checked samples, and whether fedpd computes in float64."""
    if isinstance(data, Ragged | Lazy):
        double = is_double(data.sample, start)
        return held_by_agent(data, double), double
    data = jax.tree.map(lambda leaf: as_array(leaf, "data", "Give one array of numbers per agent in a list"), data)
    double, sizes = is_double(data, start), _sizes(data)
    if isinstance(data, list):
        _check_same_shapes(data)
        if pads(data[0], sizes):
            data = _pad(data, sizes)
        else:
            rows = jax.tree.map(lambda *leaves: seal(np.concatenate(leaves)), *data)
            return held_by_agent(Ragged(rows, sizes), double), double
    stacked = jax.tree.map(partial(_kept, double), data)
    flat = jax.tree.map(merged_axes, stacked)
    check_finite(flat, np.full(len(sizes), jax.tree.leaves(stacked)[0].shape[1]))
    return Held(stacked, sizes), double


def held_by_agent(data: Ragged | Lazy, double: bool, *, tests: bool = False) -> Held:
    """Return ragged or lazy data as a problem holds them, in its precision; agents may lack samples for `tests`."""
    if not tests:
        check_no_agent_is_empty(data.sizes)
    converted = data.map(partial(_converted, double))
    if isinstance(converted, Lazy):
        return Held(converted.sample, converted.sizes, None, converted.rows_of)
    check_finite(converted.rows, converted.sizes)
    rows, offsets = stored(converted.rows, converted.sizes)
    return Held(rows, converted.sizes, offsets)


def _converted(double: bool, rows: Tree) -> Tree:
    return jax.tree.map(partial(_kept, double), rows)


def _kept(double: bool, leaf: Any) -> np.ndarray:
    """Return an array of samples in the precision of the problem, which the user cannot change."""
    return owned(as_numpy(leaf, double, "data"))


def _sizes(data: list[Tree] | Tree) -> np.ndarray:
    """Return (N,) the numbers of samples."""
    if isinstance(data, list):
        if not data:
            raise FedpdError("data is empty: there must be at least one agent. Give one data set per agent.")
        for i, agent in enumerate(data):
            shapes = [leaf.shape for leaf in jax.tree.leaves(agent)]
            if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
                rule = "must be arrays with the same first axis, one row per sample"
                refuse(f"data of agent {i}", shapes, rule, "Give NumPy arrays, or a dict of them")
            if not shapes[0][0]:
                raise FedpdError(f"agent {i} has no samples: its f_i is not defined. Leave the agent out.")
        return np.array([len(jax.tree.leaves(agent)[0]) for agent in data], np.int32)
    shapes = [leaf.shape for leaf in jax.tree.leaves(data)]
    if not shapes or min(map(len, shapes)) < 2 or len({shape[:2] for shape in shapes}) > 1 or 0 in shapes[0][:2]:
        rule = "must be arrays with the same first two axes (N, n)"
        refuse("data", shapes, rule, "If agents differ in size, give a list with one entry per agent")
    return np.full(shapes[0][0], shapes[0][1], np.int32)


def _check_same_shapes(agents: list[Tree]) -> None:
    """Refuse agents whose samples differ in structure or shape."""
    structure: Any = jax.tree.structure(agents[0])
    for i, agent in enumerate(agents):
        if jax.tree.structure(agent) != structure:
            raise FedpdError(f"data of agent {i} has other keys than data of agent 0. Give all agents the same keys.")
        for leaf, first in zip(jax.tree.leaves(agent), jax.tree.leaves(agents[0]), strict=True):
            if leaf.shape[1:] != first.shape[1:]:
                rule = f"must be the shape of agent 0, {first.shape[1:]}"
                refuse(f"shape of the samples of agent {i}", leaf.shape[1:], rule, "Bring all samples to one shape")


def pads(samples: Tree, sizes: np.ndarray) -> bool:
    """Return whether to pad the agents' samples to the largest agent, because that wastes little memory.

    Args:
        samples: The samples of an agent that has some.
    """
    padded = len(sizes) * int(sizes.max())
    size = sum(leaf[0].nbytes for leaf in jax.tree.leaves(samples))
    return padded <= MOST_PADDING * int(sizes.sum()) or padded * size <= SMALL


def _pad(agents: list[Tree], sizes: np.ndarray) -> Tree:
    """Return arrays (N, n, ...): an agent with fewer samples repeats its own, so that padding is always valid data."""
    every = np.arange(sizes.max())

    def stack(*leaves: np.ndarray) -> np.ndarray:
        return seal(np.stack([leaf if len(leaf) == len(every) else leaf[every % len(leaf)] for leaf in leaves]))

    return jax.tree.map(stack, *agents)


def model_of_length(start: Any, length: int, dtype: np.dtype) -> np.ndarray:
    """Return the start of a model that is a vector: zeros if it is None; refuse one of another length."""
    if start is None:
        return np.zeros(length, dtype)
    array = as_array(start, "start", f"Give {length} numbers, one per feature")
    if array.shape != (length,):
        refuse("shape of start", array.shape, f"must be ({length},), one number per feature", "Leave it out for zeros")
    return array


def scale_of(weights: Weights, sizes: np.ndarray) -> np.ndarray:
    """Return (N,) w_i |D_i|."""
    if weights is None:
        return np.ones(len(sizes))
    remedy = 'Leave them out for w_i = 1/|D_i|, or give "samples" for the mean over all samples'
    if isinstance(weights, str):
        if weights != "samples":
            refuse("weights", weights, f'must be "samples" or {len(sizes)} positive numbers', remedy)
        return sizes / sizes.mean()
    weights = as_array(weights, "weights", remedy)
    if weights.shape != sizes.shape or not (weights > 0).all() or not np.isfinite(weights).all():
        refuse("weights", weights, f"must be {len(sizes)} positive numbers", remedy)
    return weights * sizes


def _try(problem: Problem) -> None:
    """Trace the user's functions once, to report a wrong shape here and not inside a compiled round."""
    rows, axes = int(problem.sizes.max()), 2 if problem.offsets is None and problem.load is None else 1
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[axes:]), leaf.dtype), problem.data)
    _check_result("losses", problem, (problem.start, batch), (rows,), "Return one loss per sample, not their mean")
    if problem.block is None:  # a shape that does not follow the batch may fit one size by chance
        twice = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2 * rows, *leaf.shape[1:]), leaf.dtype), batch)
        _check_result("losses", problem, (problem.start, twice), (2 * rows,), "Return one loss per sample")
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
            sentence = f"{name} cannot be called with arrays of the shapes {shapes} (model, batch): {first_line(error)}"
            remedy = "Check that it fits start and data"
            if isinstance(error, JAXTypeError):
                remedy = "Use jnp.where(condition, a, b) and jax.numpy, because JAX traces it"
            raise FedpdError(f"{sentence}. {remedy}.") from error
    if getattr(result, "shape", None) != shape or not jnp.issubdtype(result.dtype, np.floating):
        returned = f"{result.dtype}{list(result.shape)}" if hasattr(result, "shape") else type(result).__name__
        raise FedpdError(f"{name} returns {returned}: it must be floating-point with shape {shape}. {remedy}.")


@explained
def from_agent_loss(
    loss: LossOfAgent,
    data: list[Tree] | Ragged | Lazy | Tree,
    start: Tree,
    *,
    penalty: Penalty | None = None,
    weights: Weights = None,
    answer: Answer = UNKNOWN,
    name: str = "problem",
    check: bool = True,
) -> Problem:
    """Return a problem with one loss per agent, which may couple the agent's samples: f_i(x) = w_i (loss_i + penalty).

    Use it for a Cox partial likelihood, a ranking loss or a contrastive loss. If the loss of a sample does not depend
    on the other samples, use `from_losses`.

    A full gradient is exact for agents of all sizes. A stochastic gradient of an oracle with batches of B samples is
    that of loss(model, the B samples, mask of ones). In general its expectation is not the gradient of f_i.

    Args:
        loss: (model, samples with leaves (n, ...), mask (n,)) -> scalar. The mask is 1 for samples and 0 for padding,
            which repeats samples: multiply by it, or use jnp.where, in every sum over samples.
        data: As for `from_losses`.
        start: The model x^0, any pytree of floating-point arrays.
        penalty: (model) -> scalar, a part of f_i that does not depend on the samples.
        weights: (N,) the w_i. None: 1, which makes f the plain mean of the agents. "samples": N |D_i| / M, which makes
            f = sum_i |D_i|/M loss_i.
        answer: The known facts about the problem: a minimiser, L, delta.
        name: The name of the problem in tables and figures.
        check: Whether to check once that padding does not change the loss, and that the compiled loss and gradient of
            an agent equal those of JAX without compilation and padding.

    Raises:
        FedpdError: If shapes do not fit, a number is not finite, or padding changes the loss.

    Examples:
        The Cox partial likelihood: samples with features a, time t, and d = 1 for an event or 0 for a censored time.

        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from fedpd import problems
        >>> def cox(x, samples, mask):
        ...     score, t, d = samples["a"] @ x, samples["t"], samples["d"] * mask
        ...     at_risk = (t[None, :] >= t[:, None]) * mask[None, :]
        ...     return jnp.sum(d * (jnp.log(at_risk @ jnp.exp(score)) - score)) / jnp.sum(d)
        >>> rng = np.random.default_rng(0)
        >>> hospitals = [
        ...     {"a": rng.normal(size=(n, 2)), "t": rng.random(n), "d": np.ones(n)} for n in (3, 5)
        ... ]
        >>> problem = problems.from_agent_loss(cox, hospitals, start=np.zeros(2))
        >>> problem.agents, problem.samples
        (2, 8)
    """
    check_takes("loss", loss, 3, "Write it as a function of (model, samples, mask)")

    def one_per_sample(model: Tree, batch: Tree) -> Array:
        """Return the form that `from_losses` checks."""
        rows = len(jax.tree.leaves(batch)[0])
        mask = jnp.ones(rows, jnp.result_type(*jax.tree.leaves(model)))
        found = loss(model, batch, mask)
        if np.shape(found):
            refuse("shape of the loss", np.shape(found), "must be (), one number per agent", "Sum over the samples")
        return jnp.full(rows, found)

    held = from_losses(one_per_sample, data, start, penalty=penalty, answer=answer, name=name, check=False)
    scale = scale_of(weights, held.sizes if isinstance(weights, str) else np.ones_like(held.sizes))
    problem = replace(held, losses=AgentLoss(loss), scale=scale, block=int(held.sizes.max()))
    return check_agent_loss(problem) if check else problem


@explained
def share_blocks(problem: Problem, copies: int) -> Problem:
    """Return the problem in which agent i also holds the data of agents i+1, ..., i+copies (cyclically).

    Each f_i becomes the mean over all samples that agent i holds, so f changes if agents differ in size.

    Args:
        problem: The problem.
        copies: The number of other agents whose data each agent holds, 0 to N - 1.
    """
    count("copies", copies, "Give the number of other agents whose data each agent holds, e.g. 1", least=0)
    if copies >= problem.agents:
        refuse("copies", copies, f"must be below {problem.agents}, the number of agents", "N - 1 shares all data")
    if isinstance(problem.losses, AgentLoss):
        refuse("problem", problem.name, "has one loss per agent", "Use a problem with one loss per sample")
    if not (problem.scale == 1).all():
        rule = "has weights, and f_i would lose them: it becomes the mean over all samples that agent i holds"
        refuse("problem", problem.name, rule, "Build it without weights=")
    held = problem.in_memory()
    groups = (np.arange(held.agents)[:, None] + np.arange(copies + 1)) % held.agents  # (N, copies + 1)
    rows = held.rows_of(groups.reshape(-1))[0]
    sizes = held.sizes[groups].sum(axis=1)
    blocks = np.split(np.arange(int(sizes.sum())), np.cumsum(sizes)[:-1])
    own = [jax.tree.map(lambda leaf, block=block: leaf[block], rows) for block in blocks]
    shared = from_losses(problem.losses, own, problem.start, penalty=problem.penalty, name=problem.name, check=False)
    return replace(
        shared,
        answer=Answer(smoothness=problem.answer.smoothness),
        evaluation=problem.evaluation,
        block=problem.block,
        statistics=problem.statistics,
        random=problem.random,
        judge=problem.judge,
    )
