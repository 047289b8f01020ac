"""Bring samples of lazy data to the device: those of a chunk's agents, loaded while the chunk before it computes."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import refuse
from fedpd.core import Problem, Tree, Vector
from fedpd.core.agents import AGENTS, Functions, Layout, Shard, bare_arrays
from fedpd.core.problem import WithFrozen
from fedpd.core.rows import first_rows, rows_by_device
from fedpd.engine.loop import Inputs, Template
from fedpd.engine.measure.columns import CENTRAL, STATISTICS, Column
from fedpd.engine.measure.metrics import Metrics, agent_measures, measure_central, measure_parts, merge_parts
from fedpd.engine.participation import participants
from fedpd.engine.plan import Plan, put_on_devices

Drawn = Mapping[int, np.ndarray]  # the agents of each round by seed, (rounds, C); N where nobody is

ROWS_BYTES = 2**26  # of the samples of a chunk or of a block of agents; at least one round or agent
GROWTH = 1.5  # spare rows, so that later chunks fit without another compilation


def most_rounds(problem: Problem, columns: int) -> int | float:
    """Return how many rounds of `columns` agents a chunk has at most, because of their samples."""
    if not problem.lazy:
        return float("inf")
    return max(1, int(ROWS_BYTES // max(1, _bytes_per_agent(problem) * columns)))


def check_measurable(problem: Problem, columns: Iterable[Column], sampled: bool) -> None:
    """Refuse a column that takes several passes over all agents, if their samples are not in memory."""
    for column in columns:
        joint = column.measure is not None and column.measure.joint is not None
        if problem.lazy and not sampled and joint:
            rule = "needs the samples of all agents several times, and they are not in memory"
            refuse("record", column.name, rule, "Give metrics_agents=, e.g. 1000, or leave the column out")


def _everyone(drawn: Drawn, agents: int) -> np.ndarray:
    """Return which of the N agents are present in some round, in ascending order."""
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *(here.reshape(-1) for here in drawn.values())]))
    return found[found < agents]


class ChunkRows:
    """The samples of the agents of a chunk. Data in memory stay where they are.

    Attributes:
        by_block: Whether f is measured between chunks, over all agents block by block.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.by_block = plan, plan.problem.lazy and plan.sample is None
        self._loader = Loader(plan.problem)
        self._capacity = 0

    def inputs(self, inputs: Inputs, drawn: Drawn, done: int, number: int, longest: int) -> Inputs:
        """Return the inputs with the samples of a chunk, and begin to load those of the next, if it is as long.

        Args:
            drawn: The agents of each round of the chunk, by seed.
            done: The number of rounds before the chunk.
            number: The number of rounds of the chunk.
            longest: The number of rounds of the longest chunk. There is room for its samples from the start.
        """
        plan, after = self.plan, range(done + number, min(done + 2 * number, self.plan.rounds))
        if not plan.problem.lazy:
            return inputs
        assert plan.participation is not None
        rule, total = plan.participation, plan.problem.agents
        rows = self._loader.take(agents := _everyone(drawn, total))
        coming = {seed: participants(rule, seed, after, total) for seed in drawn if after}
        self._loader.load_ahead(_everyone(coming, total))
        present = sum(here.shape[1] for here in drawn.values())
        expected = min(longest, plan.rounds) * present * float(plan.problem.sizes.mean())
        return inputs._replace(shard=self._placed(inputs.shard, agents, rows, expected))

    def _placed(self, shard: Shard, agents: np.ndarray, rows: Tree, expected: float) -> Shard:
        """Return the shard with the samples of some agents, each on its agent's device; `expected`: of a long chunk."""
        own, layout = self.plan.problem.sizes[agents], self.plan.layout
        devices = 1 if layout.mesh is None else layout.mesh.size
        sizes, offsets = np.zeros((2, len(shard.agent)), np.int64)
        sizes[agents], offsets[agents] = own, first_rows(own)
        most = int(sizes.reshape(devices, -1).sum(axis=1).max())
        if most > self._capacity:
            self._capacity = int(GROWTH * max(most, min(expected, self.plan.problem.samples) / devices)) + 1
        data, placed = rows_by_device(rows, offsets, sizes, devices, self._capacity)
        held = put_on_devices(layout, (data, placed.astype(np.int32)), AGENTS)
        return shard._replace(data=held[0], offset=held[1])


class Loader:
    """Loads the samples of agents, in a thread of its own if they are known ahead."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[np.ndarray, Future[Tree]] | None = None

    def load_ahead(self, agents: np.ndarray) -> None:
        """Begin to load the samples of these agents."""
        if len(agents):
            self._thread = self._thread or ThreadPoolExecutor(1, "fedpd loads samples")
            self._ahead = agents, self._thread.submit(self._load, agents)

    def take(self, agents: np.ndarray) -> Tree:
        """Return the samples of these agents; an error of their loader is raised here."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], agents):
            return ahead[1].result()
        if ahead is not None:
            ahead[1].cancel()
        return self._load(agents)

    def _load(self, agents: np.ndarray) -> Tree:
        return self._problem.rows_of(agents)[0]


class Block(NamedTuple):
    """The sizes of the blocks in which all agents are measured."""

    agents: int  # agents per block
    rows: int  # training samples per block
    tests: int  # test samples per block


def measure_by_block(template: Template, plan: Plan, x: Vector, gap: float) -> Metrics:
    """Return the values of the columns over all agents of lazy data, which are loaded block by block."""
    problem, columns = plan.problem, template.columns
    block, frozen = _block(problem), problem.losses.frozen if isinstance(problem.losses, WithFrozen) else None
    parts: list[Any] = []
    kept: list[Any] = []
    for first in range(0, problem.agents, block.agents):
        agents = np.arange(first, min(first + block.agents, problem.agents))
        shard = _block_of(problem, agents, block)
        layout = Layout(len(agents), parallel=False, mesh=None)
        totals, each = _parts(template.functions, layout, columns, shard, x, frozen)
        parts = totals if not parts else jax.tree.map(jnp.add, parts, totals)
        kept.append(jax.device_get(each))
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
    measures = agent_measures(template.functions, columns)
    found = dict(zip(measures, zip(parts, together, strict=True), strict=True))
    if plan.central is not None:
        rows, statistics = plan.central.rows, found.get(STATISTICS)
        found[CENTRAL] = _central(template.functions, columns, problem.agents, rows, x, statistics, frozen)
    return jax.device_get(merge_parts(columns, found, gap, problem.agents))


def _bytes_per_agent(problem: Problem) -> float:
    """Return the mean number of bytes of an agent's training samples."""
    sample = sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in jax.tree.leaves(problem.data))
    return sample * float(problem.sizes.mean())


def _block(problem: Problem) -> Block:
    agents = int(np.clip(ROWS_BYTES // max(1, _bytes_per_agent(problem)), 1, problem.agents))
    first = np.arange(0, problem.agents, agents)
    tests = problem.evaluation
    held = 0 if tests is None else int(np.add.reduceat(tests.sizes, first, dtype=np.int64).max())
    return Block(agents, int(np.add.reduceat(problem.sizes, first, dtype=np.int64).max()), max(1, held))


def _block_of(problem: Problem, agents: np.ndarray, block: Block) -> Shard:
    """Return the arrays of some agents, with as many rows as every block has."""
    some = bare_arrays(problem.subset(agents))
    rows, offset = problem.rows_of(agents)
    shard = some._replace(data=_filled(rows, block.rows), offset=offset.astype(np.int32))
    if problem.evaluation is None:
        return shard
    test, offset = problem.test_rows_of(agents)
    sizes = problem.evaluation.sizes[agents]
    return shard._replace(test=_filled(test, block.tests), test_sizes=sizes, test_offset=offset.astype(np.int32))


def _filled(rows: Tree, number: int) -> Tree:
    """Return the rows with zeros behind them, `number` in all."""

    def fill(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((number - len(leaf), *leaf.shape[1:]), leaf.dtype)])

    return jax.tree.map(fill, rows)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _parts(
    functions: Functions, layout: Layout, columns: tuple[Column, ...], shard: Shard, x: Vector, frozen: Tree | None
) -> Any:
    """Return the sums over the agents of a block, and the kept values of each, for all measures in their order."""
    found = measure_parts(functions.with_frozen(frozen), layout, shard, x, columns)
    return [total for total, _ in found.values()], [each for _, each in found.values()]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _central(
    functions: Functions,
    columns: tuple[Column, ...],
    agents: int,
    rows: Tree,
    x: Vector,
    statistics: Any,
    frozen: Tree | None,
) -> Any:
    """Return the measurements on the central test set; `statistics` are the sum over the agents, if there are any."""
    return measure_central(functions.with_frozen(frozen), columns, rows, x, {STATISTICS: statistics}, agents)[CENTRAL]
