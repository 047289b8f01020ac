"""What is measured of a run: f and ||grad f||^2 at the mean of the agents' copies, and how far these are apart.

A run can record more, at the same point: its heterogeneity delta and smoothness L there, and how often it is right.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector

from fedpd.core import Algorithm, Array, Tree, in_blocks
from fedpd.core.agents import AXIS, BLOCK, Functions, Layout, Shard, each_agent, local_objective, zero_for_padding
from fedpd.core.statistics import with_own_statistics
from fedpd.theory.curvature import local_smoothness
from fedpd.theory.dissimilarity import gradient_dissimilarity

ACCURACY = ("train_accuracy", "test_accuracy", "test_accuracy_agents", "test_accuracy_worst", "test_loss")
# What can be recorded, and the columns it fills.
RECORDED: Mapping[str, tuple[str, ...]] = {
    "heterogeneity": ("heterogeneity",),  # max_i ||grad f_i - grad f||
    "smoothness": ("smoothness",),  # the largest |eigenvalue| of any Hessian of f_i, by ten power iterations
    "accuracy": ACCURACY,
}
COLUMNS = 2**16  # parameters of all copies that are compared at a time
WORST = 0.1  # the part of the agents whose mean accuracy is test_accuracy_worst


class Metrics(NamedTuple):
    """f and ||grad f||^2 at mean_i x_{0,i}, the consensus gap max_ij ||x_{0,i} - x_{0,j}||, and what is recorded."""

    loss: Array
    stationarity: Array
    consensus: Array
    recorded: Mapping[str, Array] = {}


def mean_model(algorithm: Algorithm, layout: Layout, shard: Shard, agents: Any) -> Vector:
    """mean_i x_{0,i}: where f is measured, and what a run returns."""

    def copy(one: tuple[Shard, Any]) -> tuple[Vector, None]:
        shard, agent = one
        return zero_for_padding(shard, algorithm.model(agent)), None

    return each_agent(copy, (shard, agents), layout)[0] / layout.agents


def mean_copy(algorithm: Algorithm, agents: Any, number: int) -> Tree:
    """mean_i x_{0,i} on the host, one agent after another; exactly their common model where all have the same."""

    def copy(i: int) -> Tree:
        return jax.tree.map(np.asarray, algorithm.model(jax.tree.map(lambda leaf: leaf[i], agents)).tree)

    first = copy(0)
    offset = jax.tree.map(np.zeros_like, first)
    for i in range(1, number):
        offset = jax.tree.map(lambda total, leaf, start: total + (leaf - start), offset, copy(i), first)
    return jax.tree.map(lambda start, total: np.asarray(start + total / number, start.dtype), first, offset)


def measure(
    algorithm: Algorithm,
    functions: Functions,
    layout: Layout,
    shard: Shard,
    agents: Any,
    skipped: Any,
    record: tuple[str, ...] = (),
) -> Metrics:
    x = mean_model(algorithm, layout, shard, agents)
    gap: Any = 0.0  # where nothing is ever skipped, everyone has just received the same model
    if algorithm.timing.drifts:
        gap = consensus_gap(algorithm, layout, agents)
    elif algorithm.timing.skips:
        zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
        gap = lax.cond(skipped, partial(consensus_gap, algorithm, layout, agents), lambda: zero)
    return measure_at(functions, layout, shard, x, gap, record)


def measure_at(
    functions: Functions, layout: Layout, shard: Shard, x: Vector, gap: Any, record: tuple[str, ...]
) -> Metrics:
    """What is measured at the mean model x of copies that are `gap` apart."""

    def value_and_gradient(one: Shard) -> tuple[tuple[Array, Vector], None]:
        return zero_for_padding(one, local_objective(functions, one).value_and_gradient(x)), None

    (value, gradient), _ = each_agent(value_and_gradient, shard, layout)
    gradient = gradient / layout.agents
    loss, stationarity, gap = (jnp.asarray(one, float) for one in (value / layout.agents, gradient @ gradient, gap))
    recorded: dict[str, Array] = {}
    for name in record:
        found = _RECORDERS[name](functions, layout, shard, x)
        recorded |= {column: jnp.asarray(one, float) for column, one in zip(RECORDED[name], found, strict=True)}
    return Metrics(loss, stationarity, gap, recorded)


def judge(functions: Functions, one: Shard, x: Vector) -> tuple[Array, ...]:
    """Of one agent at x: training samples that it gets right, and has; test samples, their loss, and their number."""
    correct, losses = functions.correct, functions.test_losses or functions.losses
    assert correct is not None  # accuracy is asked for only where there are tests
    model = with_own_statistics(functions, one, x)

    def sums_of(model: Vector, rows: Tree, inside: Array) -> tuple[Array, Array]:
        return jnp.sum(correct(model.tree, rows) * inside), jnp.sum(losses(model.tree, rows) * inside)

    tests = jnp.asarray(one.test_sizes)
    trained, _ = in_blocks(sums_of, model, one.data, one.sizes, BLOCK)
    right, loss = in_blocks(sums_of, model, one.test, tests, BLOCK)
    return trained, one.sizes.astype(float), right, loss, tests.astype(float)


def accuracy(functions: Functions, layout: Layout, shard: Shard, x: Vector) -> tuple[Array, ...]:
    """ACCURACY at x: over all training samples; over all test samples; the mean over agents of their own test accuracy,
    and over the worst tenth of them (agents without test samples left out); the mean loss over all test samples.
    """

    def of_agent(one: Shard) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
        sums = judge(functions, one, x)
        _, _, right, _, number = sums
        own = right / jnp.maximum(number, 1), number if one.real is None else jnp.where(one.real, number, 0)
        return zero_for_padding(one, sums), own

    (trained, samples, right, loss, number), each = each_agent(of_agent, shard, layout)
    everyone = each if layout.mesh is None else lax.all_gather(each, AXIS, tiled=True)
    accuracies, numbers = everyone
    tested = jnp.sum(numbers > 0)
    ordered = jnp.sort(jnp.where(numbers > 0, accuracies, jnp.inf))
    worst = jnp.arange(len(ordered)) < jnp.maximum(1, jnp.ceil(WORST * tested))

    def mean(which: Array) -> Array:
        return jnp.sum(jnp.where(which, ordered, 0)) / jnp.maximum(jnp.sum(which), 1)

    number = jnp.maximum(number, 1)
    return trained / samples, right / number, mean(jnp.isfinite(ordered)), mean(worst), loss / number


_RECORDERS: Mapping[str, Callable[[Functions, Layout, Shard, Vector], tuple[Array, ...]]] = {
    "heterogeneity": lambda *where: (gradient_dissimilarity(*where),),
    "smoothness": lambda *where: (local_smoothness(*where),),
    "accuracy": accuracy,
}


def consensus_gap(algorithm: Algorithm, layout: Layout, agents: Any) -> Array:
    """max_ij ||x_{0,i} - x_{0,j}||, from the differences to the first copy: equal copies give exactly 0.

    ||c_i||^2 + ||c_j||^2 - 2 <c_i, c_j>, c_i the difference of copy i to the first: since ||c_i|| is itself at most the
    maximum, the cancellation costs no more than a rounding of it. In blocks of columns: takes the memory of a block.
    """
    copies = jax.tree.leaves(jax.vmap(algorithm.model)(agents))
    parts = [_products(leaf.reshape(len(leaf), -1), layout) for leaf in copies]
    inner, own, everyone = (sum(part) for part in zip(*parts, strict=True))
    largest = jnp.max(own[:, None] + everyone - 2 * inner)
    return jnp.sqrt(jnp.maximum(largest if layout.mesh is None else lax.pmax(largest, AXIS), 0))


def _products(rows: Array, layout: Layout) -> tuple[Array, Array, Array]:
    """(n, N) inner products of this device's rows with all rows, (n,) and (N,) their squares; less the first row."""
    number, width = rows.shape
    block = min(width, COLUMNS)

    def add(q: Any, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first = jnp.minimum(q * block, width - block)  # the last block begins earlier, and leaves out what was counted
        own = jnp.where(first + jnp.arange(block) >= q * block, lax.dynamic_slice_in_dim(rows, first, block, 1), 0)
        everyone = own if layout.mesh is None else lax.all_gather(own, AXIS, tiled=True)
        own, everyone = own - everyone[:1], everyone - everyone[:1]
        more = own @ everyone.T, jnp.sum(own * own, axis=1), jnp.sum(everyone * everyone, axis=1)
        return jax.tree.map(jnp.add, sums, more)

    total = number if layout.mesh is None else number * layout.mesh.size
    zero = tuple(jnp.zeros(shape, rows.dtype) for shape in ((number, total), (number,), (total,)))
    return lax.fori_loop(0, -(-width // block), add, zero)
