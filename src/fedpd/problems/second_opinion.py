"""A second opinion on a problem when it is built: the plain way beside the way of fedpd's compiled programs.

The plain way calls the user's functions on the samples of one agent and differentiates them with `jax.grad`: without
compilation, padding or blocks. fedpd compares the losses, the gradient, and the loss of a sample in two batches.

Measured in seconds of computing time with 64 samples: 0.8 s for the first linear model of a process and 0.1 s later,
5.5 s and 1.0 s for a CNN of 20,490 parameters. The first round of FedAvg took 1.6 s and 13.5 s, with its compilation.
So the check costs about half of the first round, or less. `check=False` turns it off.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import scope
from fedpd.base.process import compiled_quickly
from fedpd.core import Array, Losses, Noise, Problem, RandomLosses, Tree
from fedpd.core.agents import Functions, Shard, local_objective, one_agent
from fedpd.core.problem import Evaluation
from fedpd.problems.external import explain_callback

Outcome = tuple[Any, Tree]  # a value and a gradient
TINY = float(np.finfo(np.float32).tiny)


def tolerance_of(losses: Losses, model: Tree, rows: Tree) -> float:
    """Return the relative error that rounding may cause, by the lowest precision in which the losses compute."""
    used = set(re.findall(r"\b(bf16|f16|f32|f64)\[", str(jax.make_jaxpr(losses)(model, rows))))
    return 0.1 if used & {"bf16", "f16"} else 1e-3 if "f32" in used else 1e-7


def agree(found: Any, wanted: Any, tolerance: float) -> bool:
    """Return whether two arrays agree up to rounding; NaN agrees with NaN."""
    found, wanted = (np.asarray(one, np.float64) for one in (found, wanted))
    if found.shape != wanted.shape or (np.isfinite(found) != np.isfinite(wanted)).any():
        return False
    found, wanted = (one[np.isfinite(wanted)] for one in (found, wanted))
    size = max(float(np.abs(wanted).max(initial=0)), TINY)
    return float(np.abs(found - wanted).max(initial=0)) <= tolerance * size


def within(apart: float, off: float, size: Outcome, tolerance: float) -> bool:
    """Return whether a value and a gradient are off by no more than rounding, relative to another pair."""
    return apart <= tolerance * abs(float(size[0])) + TINY and off <= tolerance * norm(size[1]) + TINY


def distance(found: Tree, wanted: Tree) -> float:
    """Return the norm of the difference; infinite if a number is not finite."""
    distance = norm(jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), found, wanted))
    return distance if np.isfinite(distance) else np.inf


def norm(tree: Tree) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


ENOUGH = 32  # samples that show whether losses depend on their batch; fedpd takes the smallest agent with so many
MOST = 64  # samples of the agent that are used
SHIFT = 0.1  # relative distance from the start: at a start of zeros, many losses do not depend on their batch
OFF = "check=False turns this check off"


class Plain(NamedTuple):
    """The training losses of a problem, written without fedpd; None: there is no such form."""

    losses: Losses | None  # as `problem.losses`, without random layers
    random: RandomLosses | None = None  # as `problem.random`
    # Whether the losses of the problem itself are compiled. Modules of PyTorch are: one by one, their operations are
    # hundreds of programs, and PyTorch's own loss and gradient show whether it is right.
    compiled: bool = False


class Probe(NamedTuple):
    """The samples of one agent, and two models."""

    agent: int  # the agent's number
    rows: Tree  # its first samples, leaves (m, ...)
    size: int  # m
    start: Tree  # the start of the problem
    point: Tree  # a random model close to the start, or the start itself if the losses there are not finite
    tolerance: float  # the relative error that rounding may cause in the precision of the losses


def check_training(problem: Problem, plain: Plain | None = None) -> Problem:
    """Return the problem after the check of its losses. A loss that couples samples gets the block of a whole agent.

    Args:
        plain: Its training losses the plain way; None: those of the problem, not compiled.

    Raises:
        FedpdError: If the losses are not finite at the start, differ between two calls, change their arguments, or
            depend on their batch where fedpd forms other batches; or if the compiled loss or gradient differs.
    """
    with scope(problem.double), explain_callback():
        traced = problem.losses if plain is None or plain.losses is None else plain.losses
        is_compiled = plain is not None and plain.compiled
        losses = _compiled_losses(problem) if is_compiled else traced
        probe = _probe(problem, losses, traced)
        if traced is not problem.losses:
            tolerance = tolerance_of(problem.losses, probe.point, _batch(probe.rows))
            probe = probe._replace(tolerance=max(probe.tolerance, tolerance))
        if problem.statistics is None and _depends_on_batch(losses, probe):
            problem = _in_batches(problem, losses, probe)
        _check_gradient(problem, losses, probe, by_value=is_compiled)
        if plain is not None and plain.random is not None and problem.random is not None:
            _check_random(problem, plain.random, probe)
    return problem


def check_agent_loss(problem: Problem) -> Problem:
    """Return a problem of `from_agent_loss` after the check of its loss.

    Raises:
        FedpdError: If the loss is not finite at the start, differs between two calls, changes its arguments, or changes
            with padding; or if the compiled loss or gradient differs.
    """

    def plain(model: Tree, rows: Tree) -> Array:
        return problem.losses(model, (rows, jnp.ones(_length(rows), jnp.result_type(*jax.tree.leaves(model)))))

    def value(model: Tree, signs: Any = 1.0) -> Array:
        return scale * (plain(model, _batch(probe.rows)) + (0 if problem.penalty is None else problem.penalty(model)))

    with scope(problem.double):
        probe = _probe(problem, plain, plain)
        scale = float(problem.scale[probe.agent])
        _called(plain, probe.point, _batch(probe.rows))
        wanted = jax.value_and_grad(value)(probe.point)
        # A mean does not change if every sample is repeated as often, so the padding is less than all samples.
        alone, padded = (_compiled(problem, probe, block) for block in (probe.size, _longer(probe.size)))
        _compare(alone(probe.point), wanted, value, "the loss", probe)
        _check_mask(padded(probe.point), wanted, probe)
        _check_start(padded(probe.start), plain, probe)
    return problem


def _compiled_losses(problem: Problem) -> Losses:
    functions, frozen = Functions.of(problem).without_frozen()

    def losses(frozen: Tree, model: Tree, batch: Tree) -> Array:
        return functions.with_frozen(frozen).losses(model, batch)

    return partial(compiled_quickly(losses), frozen)


def _longer(size: int) -> int:
    """Return the length of a batch in which some of the samples are repeated, and others are not."""
    return size + size // 2 + 1


def _check_mask(found: Outcome, wanted: Outcome, probe: Probe) -> None:
    """Refuse a loss of an agent that changes when the agent's samples are padded."""
    off = distance(found[1], wanted[1])
    if within(abs(float(found[0] - wanted[0])), off, wanted, probe.tolerance):
        return
    share = off / max(norm(wanted[1]), TINY)
    numbers = f"{float(found[0]):.6g} with it, and its gradient is off by {share:.2g} of its norm"
    remedy = "The mask is 0 for padding: use it in every sum, mean and maximum over samples"
    rule = f"must not change with padding, but is {numbers}"
    refuse(f"loss of agent {probe.agent}", float(wanted[0]), rule, f"{remedy}. {OFF}")


def check_tests(problem: Problem) -> Problem:
    """Return the problem after a check that its test losses, accuracies and metrics do not depend on their batch.

    Raises:
        FedpdError: If one does: fedpd measures in batches of its own.
    """
    tests = problem.evaluation
    if tests is None or not tests.sizes.any():
        return problem
    agent = _small_agent(tests.sizes)
    with scope(problem.double), explain_callback():
        rows = _first_samples(tests, agent)
        model: Any = _near(problem.start)
        if problem.statistics is not None:
            model = (model, problem.statistics(model, _batch(rows)))
        measured: list[tuple[str, Losses]] = [("test_loss", tests.losses or problem.losses)]
        measured += [] if tests.correct is None else [("accuracy", tests.correct)]
        measured += [(name, metric.values) for name, metric in tests.metrics]
        for name, values in measured:
            probe = Probe(agent, rows, _length(rows), model, model, tolerance_of(values, model, rows))
            if _depends_on_batch(values, probe):
                rule = "depends on the other samples of its batch, and fedpd measures in batches of its own"
                remedy = "Compute it from run.model after the run, or leave the test samples out"
                raise FedpdError(f"the {name!r} of a test sample {rule}. {remedy}. {OFF}.")
    return problem


def _small_agent(sizes: np.ndarray) -> int:
    """Return the smallest agent with `ENOUGH` samples; the largest, if none has."""
    enough = sizes >= ENOUGH
    return int(np.argmin(np.where(enough, sizes, np.iinfo(sizes.dtype).max)) if enough.any() else np.argmax(sizes))


def _probe(problem: Problem, losses: Losses, traced: Losses) -> Probe:
    agent = _small_agent(problem.sizes)
    rows = _first_samples(problem, agent)
    start, point = jax.tree.map(jnp.asarray, problem.start), _near(problem.start)
    if not _all_finite(losses(point, _batch(rows))):
        point = start
        _check_finite(agent, losses(start, _batch(rows)))
    return Probe(agent, rows, _length(rows), start, point, tolerance_of(traced, point, rows))


def _first_samples(held: Problem | Evaluation, agent: int) -> Tree:
    """Return the first training or test samples of an agent. Of samples in memory it copies none."""
    number = min(int(held.sizes[agent]), MOST)
    if held.load is not None:
        return jax.tree.map(lambda leaf: leaf[:number], held.load(np.array([agent])))
    if held.offsets is None:
        return jax.tree.map(lambda leaf: leaf[agent, :number], held.data)
    first = int(held.offsets[agent])
    return jax.tree.map(lambda leaf: leaf[first : first + number], held.data)


def _taken(rows: Tree, chosen: np.ndarray) -> Tree:
    """Return some rows as a batch; NumPy gathers them, because JAX would compile a program for it."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[chosen]), rows)


def _batch(rows: Tree) -> Tree:
    return jax.tree.map(jnp.asarray, rows)


def _length(rows: Tree) -> int:
    return len(jax.tree.leaves(rows)[0])


def _near(model: Tree) -> Tree:
    """Return a model at the distance of `SHIFT` times the size of its entries."""
    draw = np.random.default_rng(0).standard_normal

    def shifted(leaf: np.ndarray) -> Array:
        size = float(np.sqrt(np.mean(leaf**2))) if leaf.size else 0
        return jnp.asarray(leaf + SHIFT * (size or 1) * draw(leaf.shape), leaf.dtype)

    return jax.tree.map(shifted, model)


def _all_finite(tree: Tree) -> bool:
    return all(bool(np.isfinite(np.asarray(leaf, np.float64)).all()) for leaf in jax.tree.leaves(tree))


def _check_finite(agent: int, losses: Array) -> None:
    wrong = ~np.isfinite(np.asarray(losses, np.float64))
    if wrong.any():
        first = int(np.argmax(wrong))
        what = f"sample {first} of agent {agent}" if wrong.ndim else f"agent {agent}"
        rule = f"must be finite at the start, but {wrong.sum()} of {wrong.size} are not"
        remedy = f"Start from another model, or check the data and the logarithms and divisions of the loss. {OFF}"
        refuse(f"loss of {what}", float(jnp.ravel(losses)[first]), rule, remedy)


def _depends_on_batch(losses: Losses, probe: Probe) -> bool:
    """Return whether the losses of some samples change when other samples share their batch."""
    order = np.random.default_rng(0).permutation(probe.size)
    half = order[: -(-probe.size // 2)]
    part = half[np.arange(_longer(len(half))) % len(half)]  # without some samples, and with others twice
    whole, found = (_called(losses, probe.point, _taken(probe.rows, rows)) for rows in (np.arange(probe.size), part))
    if agree(found, whole[part], probe.tolerance):
        return False
    again = _called(losses, probe.point, _batch(probe.rows))
    if not agree(again, whole, probe.tolerance):
        _refuse_random(f"mean loss of agent {probe.agent}", [float(np.mean(one)) for one in (whole, again)])
    return True


def _refuse_random(what: str, values: list[float]) -> NoReturn:
    rule = "two calls with the same arguments must return the same"
    remedy = "Draw no random numbers in the loss: dropout belongs to a module for problems.network"
    refuse(what, values, rule, f"{remedy}. {OFF}")


def _called(losses: Losses, model: Tree, batch: Tree) -> np.ndarray:
    """Return losses(model, batch); refuse a function that changes its arguments."""
    before: Any = jax.tree.flatten((model, batch))
    found = np.asarray(losses(model, batch), np.float64)
    after: Any = jax.tree.flatten((model, batch))
    if before[1] != after[1] or any(old is not new for old, new in zip(before[0], after[0], strict=True)):
        rule = "changes its model or its batch, which fedpd uses again"
        raise FedpdError(f"losses {rule}. Work on a copy, e.g. batch = dict(batch). {OFF}.")
    return found


def _in_batches(problem: Problem, losses: Losses, probe: Probe) -> Problem:
    """Return a problem whose losses depend on their batch, if fedpd can form the batches that f_i consists of."""
    least, most = int(problem.sizes.min()), int(problem.sizes.max())
    rule = "the loss of a sample depends on the other samples of its batch"
    if problem.block is None and least == most:
        return replace(problem, block=most)
    remedy = "Use problems.from_agent_loss, where loss(model, samples, mask) is one value per agent"
    if problem.block is None:
        rule = f"{rule}, and padding would repeat samples of agents with {least} to {most}"
        refuse("losses", _name(losses), rule, f"{remedy}, or from_losses with block=. {OFF}")
    if least < problem.block:
        rule = f"must be at most {least}, the samples of the smallest agent, because {rule}"
        refuse("block", problem.block, rule, f"{remedy}. {OFF}")
    return problem


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _check_gradient(problem: Problem, losses: Losses, probe: Probe, *, by_value: bool) -> None:
    """Refuse a problem whose compiled loss or gradient differs from the plain one; `by_value`: whose loss does."""
    block = Functions.of(problem).block
    if block is not None and block >= problem.sizes.max():
        block = probe.size  # a block of all samples of an agent, of which there may be fewer here
    compiled = _compiled(problem, probe, block)
    batches = None if problem.block is None else block
    plain = partial(_plain, losses, problem.penalty, probe, batches, float(problem.scale[probe.agent]))
    found = compiled(probe.point)

    def value_alone(function: Callable[[Tree], Array]) -> Callable[[Tree], Outcome]:
        return lambda model: (function(model), found[1])

    differentiate = value_alone if by_value else jax.value_and_grad
    _compare(found, differentiate(plain)(probe.point), plain, _name(losses), probe, differentiate)
    _check_start(compiled(probe.start), losses, probe)


def _compiled(problem: Problem, probe: Probe, block: int | None) -> Callable[[Tree], Outcome]:
    """Return the value and the gradient of the agent's f_i, as compiled programs of fedpd compute them in blocks."""
    functions, frozen = Functions.of(problem)._replace(block=block).without_frozen()
    shard = _shard(problem, probe)

    @compiled_quickly
    def compiled(frozen: Tree, shard: Shard, model: Tree) -> Outcome:
        f = local_objective(functions.with_frozen(frozen), one_agent(shard, 0))
        value, slope = f.value_and_gradient(Vector(model))
        return value, slope.tree

    return lambda model: compiled(frozen, shard, model)


def _check_start(found: Outcome, losses: Losses, probe: Probe) -> None:
    """Refuse a problem whose loss or gradient is not finite at the start."""
    if _all_finite(found):
        return
    _check_finite(probe.agent, losses(probe.start, _batch(probe.rows)))
    what = "gradient" if _all_finite(found[0]) else "penalty"
    rule = f"{what} of agent {probe.agent} at the start is not finite, so no step is possible"
    raise FedpdError(f"the {rule}. Start from another model, or rewrite the loss, e.g. without a root at 0. {OFF}.")


def _shard(problem: Problem, probe: Probe) -> Shard:
    """Return the arrays of the agent with its first samples only, in the layout of the problem."""
    dtype = np.float64 if problem.double else np.float32
    scale = np.asarray(problem.scale[[probe.agent]], dtype)
    sizes, agent = np.array([probe.size], np.int32), np.array([probe.agent], np.int32)
    rows = _batch(probe.rows)
    if problem.offsets is not None or problem.load is not None:
        return Shard(rows, sizes, scale, None, agent, offset=np.zeros(1, np.int32))
    if probe.size == problem.sizes.max() or probe.size < problem.sizes[probe.agent]:
        return Shard(jax.tree.map(lambda leaf: leaf[None], rows), sizes, scale, None, agent)
    every = np.arange(min(_longer(probe.size), int(problem.sizes.max())))  # padded, like the agent in the problem
    mask = ((every < probe.size) / probe.size).astype(dtype)
    return Shard(jax.tree.map(lambda leaf: leaf[every % probe.size][None], rows), sizes, scale, mask[None], agent)


def _plain(
    losses: Losses, penalty: Any, probe: Probe, block: int | None, scale: float, model: Tree, signs: Any = 1.0
) -> Array:
    """Return f_i of the samples as `Problem` defines it; `signs` are factors of the losses."""
    if block is None:
        found = losses(model, _batch(probe.rows))
    else:
        batches = [_taken(probe.rows, np.arange(q, q + block) % probe.size) for q in range(0, probe.size, block)]
        found = jnp.concatenate([losses(model, batch) for batch in batches])[: probe.size]
    return scale * (jnp.mean(signs * found) + (0 if penalty is None else penalty(model)))


def _compare(
    found: Outcome,
    wanted: Outcome,
    plain: Callable[..., Array],
    name: str,
    probe: Probe,
    differentiate: Callable[..., Callable[[Tree], Outcome]] = jax.value_and_grad,
) -> None:
    """Refuse if the compiled value and gradient differ from the plain ones by more than rounding.

    Args:
        plain: (model, signs) -> the plain value, with factors of the losses.
        differentiate: Returns the value and the gradient of a function.
    """
    apart, off = abs(float(found[0] - wanted[0])), distance(found[1], wanted[1])
    if within(apart, off, wanted, probe.tolerance):
        return
    # The terms of a mean may cancel, and rounding is relative to the terms: with random signs they do not cancel.
    signs = jnp.asarray(np.random.default_rng(1).choice([-1.0, 1.0], probe.size) * np.sqrt(probe.size))
    if within(apart, off, differentiate(partial(plain, signs=signs))(probe.point), probe.tolerance):
        return
    again = float(plain(probe.point))
    if not agree(again, wanted[0], probe.tolerance):
        _refuse_random(f"loss of agent {probe.agent}", [float(wanted[0]), again])
    share = off / max(norm(wanted[1]), TINY)
    numbers = f"f_i = {float(found[0]):.6g} for {float(wanted[0]):.6g}, and a gradient off by {share:.2g} of its norm"
    rule = f"{name}, compiled by fedpd, gives {numbers}, against JAX without compilation and padding"
    remedy = "The loss must depend on its arguments only, and must not change anything"
    raise FedpdError(f"agent {probe.agent}: {rule}. {remedy}. {OFF}.")


def _check_random(problem: Problem, plain: RandomLosses, probe: Probe) -> None:
    """Refuse a problem whose stochastic gradient differs from the plain one with the same random numbers."""
    key = jax.random.key(0, impl="threefry2x32")
    functions, frozen = Functions.of(problem).without_frozen()

    @compiled_quickly
    def compiled(frozen: Tree, shard: Shard, model: Tree) -> Tree:
        bound = functions.with_frozen(frozen)
        assert bound.random is not None
        f = local_objective(bound, one_agent(shard, 0))._replace(noise=Noise(bound.random, key))
        return f.stochastic_gradient(Vector(model), probe.rows).tree

    def drawn(model: Tree, batch: Tree) -> Array:
        return plain(model, batch, jax.random.fold_in(key, 0))

    own = partial(_plain, drawn, problem.penalty, probe, None, float(problem.scale[probe.agent]))
    slope = compiled(frozen, _shard(problem, probe), probe.point)
    value, wanted = jax.value_and_grad(own)(probe.point)
    _compare((value, slope), (value, wanted), own, "the loss with random layers", probe)
