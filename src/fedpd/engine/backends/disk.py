"""Keep the agents' state in memory-mapped files if memory is too small, with one block of agents in memory at a time.

The rounds are those of `loop.one_round`. Every step of an exchange reads each block and writes it back.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.atomic import make_folder, nameless_file
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.value import constant
from fedpd.core import Array, Exchange, State, Tree, Vector, Work
from fedpd.core.agents import AGENTS, SHARED, Layout, Shard, arrays, sharded, split_rows, with_padding_agents
from fedpd.core.distances import largest_distance_on_host
from fedpd.core.rows import rows_by_device
from fedpd.engine.backends.memory import MemoryBackend, Progress, row_of_one_round
from fedpd.engine.loop import (
    IN_MEMORY,
    INPUTS,
    Executor,
    Inputs,
    MessageSum,
    Program,
    Rows,
    Template,
    delivered_or,
    init_agents,
    measure_model,
    one_round,
    toss_coin,
)
from fedpd.engine.measure.metrics import Metrics, copies_differ, mean_copy
from fedpd.engine.plan import Plan, prepare, put_on_devices, without_tests

BLOCK_BYTES = 2**28  # of agents' state in memory at a time, but at least one agent per device

PutOnDevices = Callable[[Tree, Any], Tree]


class Store(NamedTuple):
    """The state of all agents in files that the system removes when the process ends."""

    agents: Any  # leaves (N, ...), memory-mapped
    shard: Shard  # the problem's arrays, on the host
    block: int  # the number of agents in memory at a time
    put_on_devices: PutOnDevices  # puts host arrays on the devices, given a PartitionSpec
    devices: int  # the number of devices

    def blocks(self) -> Iterator[slice]:
        number = len(self.shard.agent)
        return (slice(first, first + self.block) for first in range(0, number, self.block))

    def take(self, tree: Tree, block: slice) -> Tree:
        bare, whole = split_rows(tree)
        some = whole(jax.tree.map(lambda leaf: leaf[block], bare))
        return self.put_on_devices(self._own_rows(some) if isinstance(some, Shard) else some, AGENTS)

    def _own_rows(self, some: Shard) -> Shard:
        """Return the arrays of a block with the flat rows of its agents only; rounds need no test samples."""
        if some.test_offset is not None:
            some = without_tests(some)
        if some.offset is None:
            return some
        share = self.block // self.devices  # agents of a block per device
        most = int(np.asarray(self.shard.sizes).reshape(-1, share).sum(axis=1).max())
        rows = rows_by_device(some.data, np.asarray(some.offset), np.asarray(some.sizes), self.devices, most)
        return some._replace(data=rows[0], offset=rows[1].astype(np.int32))

    def put(self, block: slice, agents: Any) -> None:
        def write(file: np.ndarray, leaf: Array) -> None:
            file[block] = np.asarray(leaf)

        jax.tree.map(write, self.agents, agents)

    def fill(self, agents: Any) -> Any:
        """Write the state of all agents, leaves (N, ...), to the files; padding agents copy the first."""

        def write(file: np.ndarray, leaf: np.ndarray) -> None:
            file[: len(leaf)], file[len(leaf) :] = leaf, leaf[:1]

        jax.tree.map(write, self.agents, agents)
        return self.agents


def add_sums(exchange: Exchange, one: MessageSum, other: MessageSum) -> MessageSum:
    """Return the messages of two blocks of agents together."""
    if exchange.mean is None:
        return jax.tree.map(jnp.add, one, other)
    total = jax.tree.map(lambda *blocks: jnp.concatenate(blocks), one.total, other.total)
    return MessageSum(total, one.senders + other.senders, one.receivers + other.receivers)


@dataclass(frozen=True)
class OnDisk(Executor):
    """Runs agents whose state is in files, block by block."""

    store: Store
    key: "StepKey"
    on_progress: Callable[[float], None]  # receives the fraction of the round that is done

    def coin(self, program: Program, inputs: Inputs, r: Array, server: Any, /) -> Array:
        return _coin(self.key, inputs.key, r, server)

    def compute(
        self, program: Program, number: int, inputs: Inputs, agents: Any, r: Array, /
    ) -> tuple[MessageSum, Any, Tree, Work]:
        store, total, works = self.store, None, []
        blocks = list(store.blocks())
        for i, block in enumerate(blocks):
            here = inputs._replace(shard=store.take(store.shard, block))
            sums, changed, work = _compute(self.key, number, here, store.take(store.agents, block), r)
            total = sums if total is None else add_sums(program.algorithm.exchanges()[number], total, sums)
            store.put(block, changed)
            works.append(jax.device_get(work))
            self.on_progress((number + (i + 1) / len(blocks)) / len(program.algorithm.exchanges()))
        assert total is not None  # there is at least one agent
        return total, agents, None, jax.tree.map(lambda *parts: np.concatenate(parts), *works)

    def server_step(
        self, program: Program, number: int, sums: MessageSum, server: Any, skipped: Array, r: Array, /
    ) -> tuple[Any, Tree, Array | None]:
        return _server_step(self.key, number, sums, server, skipped, r)

    def deliver(
        self, program: Program, number: int, inputs: Inputs, agents: Any, broadcast: Tree, silent: Any, r: Array, /
    ) -> Any:
        store = self.store
        for block in () if silent is not None and silent else store.blocks():
            here = inputs._replace(shard=store.take(store.shard, block))
            store.put(block, _deliver(self.key, number, here, store.take(store.agents, block), broadcast, r))
        return agents


class DiskBackend(MemoryBackend):
    """A run whose agents are in files. A round may take minutes, so that a chunk is one round."""

    paced = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.program, self.template, self.inputs = prepare(plan)
        assert plan.store is not None
        start, on_host = Vector(plan.problem.start), arrays(plan.problem)
        block = block_size(self.program, on_host, start)
        filled = with_padding_agents(on_host, plan.layout, block=block)
        self.key = StepKey(self.template, jax.tree.structure(constant(self.inputs.method)))
        self.store = create(plan.store, self.program, filled, block, start, partial(put_on_devices, plan.layout))
        for part in self.store.blocks():
            shard = self.store.take(filled, part)
            self.store.put(part, _begin(self.key, self.inputs.frozen, shard, start))
        self.state = State(self.store.agents, jax.jit(plan.algorithm.server)(start), jnp.int32(0))
        self.metrics = self._measure(False)

    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, None]:
        executor = OnDisk(self.store, self.key, on_progress)
        self.state, happened = one_round(self.program, self.inputs, self.state, executor)
        return row_of_one_round(self, happened, self._measure), None

    def _measure(self, skipped: bool) -> Metrics:
        algorithm, number = self.program.algorithm, self.program.layout.agents
        if algorithm.is_personal is not None:
            rule = "keeps the agents in files, and personal parameters are measured in memory"
            refuse("store", str(self.plan.store), rule, "Leave store out, or give cohort= with it")
        x = delivered_or(self.program, self.state.server, Vector(mean_copy(algorithm, self.store.agents, number)))
        real = jax.tree.map(lambda leaf: leaf[:number], algorithm.model(self.store.agents))
        gap = largest_distance_on_host(real) if copies_differ(algorithm, skipped) else 0.0
        return _measure(self.key, self.inputs, x, gap)

    def _put(self, agents: Any) -> Any:
        return self.store.fill(agents)


def block_size(program: Program, shard: Shard, start: Vector) -> int:
    """Return how many agents are in memory at a time: a multiple of the number of devices."""
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(_one(program, shard, start)))
    devices = 1 if program.layout.mesh is None else program.layout.mesh.size
    most = -(-len(shard.agent) // devices)
    return devices * min(most, max(1, BLOCK_BYTES // size // devices))


def _one(program: Program, shard: Shard, start: Vector) -> Any:
    """Return the shapes of one agent's state."""
    first = jax.tree.map(lambda leaf: leaf[:1], shard)
    alone = program._replace(layout=Layout(1, False, None))
    agents = jax.eval_shape(lambda: init_agents(alone, first, start))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), agents)


def create(folder: Path, program: Program, shard: Shard, block: int, start: Vector, put: PutOnDevices) -> Store:
    """Return a store with room for all agents. Its files are in `folder`, but have no names there."""
    one = _one(program, shard, start)
    number, devices = len(shard.agent), 1 if program.layout.mesh is None else program.layout.mesh.size
    needed = sum(number * math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    free = shutil.disk_usage(make_folder(folder)).free
    if needed > free:
        raise FedpdError(
            f"store = {str(folder)!r}: has {free / 1e9:.3g} GB free, and the state of {number} agents needs "
            f"{needed / 1e9:.3g} GB. Give a folder on a larger disk."
        )
    return Store(jax.tree.map(partial(_file, folder, number), one), shard, block, put, devices)


def _file(folder: Path, number: int, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    shape = (number, *leaf.shape)
    if not math.prod(shape):  # an empty file cannot be mapped
        return np.zeros(shape, leaf.dtype)
    with nameless_file(folder) as file:
        return np.memmap(file, dtype=leaf.dtype, mode="w+", shape=shape)


class StepKey(NamedTuple):
    """The key of the compiled steps of a run, whose method's numbers are constants. It is hashable, by content."""

    template: Template  # the program without its method
    method: Any  # the structure of the method, all of which is static

    def program(self, frozen: Tree | None) -> Program:
        return self.template.program(jax.tree.unflatten(self.method, ()), frozen)


@partial(jax.jit, static_argnums=0)
def _begin(key: StepKey, frozen: Tree | None, shard: Shard, start: Vector) -> Any:
    def run(frozen: Tree | None, shard: Shard, start: Vector) -> Any:
        return init_agents(key.program(frozen), shard, start)

    return sharded(run, key.template.layout, (SHARED, AGENTS, SHARED), AGENTS)(frozen, shard, start)


@partial(jax.jit, static_argnums=0)
def _coin(key: StepKey, random: Any, r: Array, server: Any) -> Array:
    return toss_coin(key.program(None).algorithm, random, r, server)


@partial(jax.jit, static_argnums=(0, 1))
def _server_step(
    key: StepKey, number: int, sums: MessageSum, server: Any, skipped: Array, r: Array
) -> tuple[Any, Tree, Array | None]:
    return IN_MEMORY.server_step(key.program(None), number, sums, server, skipped, r)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _compute(key: StepKey, number: int, inputs: Inputs, agents: Any, r: Array) -> tuple[MessageSum, Any, Work]:
    def run(inputs: Inputs, agents: Any, r: Array) -> tuple[MessageSum, Any, Work]:
        sums, agents, _, work = IN_MEMORY.compute(key.program(inputs.frozen), number, inputs, agents, r)
        return sums, agents, work

    specs = (INPUTS, AGENTS, SHARED), (SHARED, AGENTS, AGENTS)
    return sharded(run, key.template.layout, *specs)(inputs, agents, r)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _deliver(key: StepKey, number: int, inputs: Inputs, agents: Any, broadcast: Tree, r: Array) -> Any:
    def run(inputs: Inputs, agents: Any, broadcast: Tree, r: Array) -> Any:
        return IN_MEMORY.deliver(key.program(inputs.frozen), number, inputs, agents, broadcast, None, r)

    specs = (INPUTS, AGENTS, SHARED, SHARED)
    return sharded(run, key.template.layout, specs, AGENTS)(inputs, agents, broadcast, r)


@partial(jax.jit, static_argnums=0)
def _measure(key: StepKey, inputs: Inputs, x: Vector, gap: Any) -> Metrics:
    def run(inputs: Inputs, x: Vector, gap: Any) -> Metrics:
        return measure_model(key.program(inputs.frozen), inputs, x, gap)

    return sharded(run, key.template.layout, (INPUTS, SHARED, SHARED), SHARED)(inputs, x, gap)
