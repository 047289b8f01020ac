"""More agents than memory holds: their state in memory-mapped files, a block of them in memory at a time.

The rounds are those of `rounds.py`, exchange by exchange: every block is read, computes, and is written back; what the
agents send is summed; where the exchange is not silent, every block is read once more and hears the answer.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import FedpdError
from fedpd.core import Algorithm, Array, State, Tree, Work
from fedpd.core.agents import AGENTS, SHARED, Layout, Shard, each_in_place, sharded
from fedpd.engine.metrics import COLUMNS, Metrics, mean_copy, measure_at
from fedpd.engine.rounds import (
    INPUTS,
    Heard,
    Inputs,
    Program,
    Round,
    Rows,
    answer,
    attendance,
    coin,
    compute,
    hear,
    init_agents,
    moved,
    not_measured,
    silence,
)

BLOCK_BYTES = 2**28  # of agents' state in memory at a time, or one agent a device where that is more

Place = Callable[[Tree, Any], Tree]  # puts host arrays on the devices


class Store(NamedTuple):
    """The state of all agents, leaves (N, ...) in files that vanish with the process; and how it is taken up."""

    agents: Any
    shard: Shard  # the problem's arrays, on the host
    block: int  # agents in memory at a time
    place: Place

    def blocks(self) -> Iterator[slice]:
        number = len(self.shard.agent)
        return (slice(first, first + self.block) for first in range(0, number, self.block))

    def take(self, tree: Tree, block: slice) -> Tree:
        return self.place(jax.tree.map(lambda leaf: leaf[block], tree), AGENTS)

    def put(self, block: slice, agents: Any) -> None:
        def write(file: np.ndarray, leaf: Array) -> None:
            file[block] = np.asarray(leaf)

        jax.tree.map(write, self.agents, agents)

    def fill(self, agents: Any) -> Any:
        """Take over the state of all agents, leaves (N, ...); padding agents copy the first."""

        def write(file: np.ndarray, leaf: np.ndarray) -> None:
            file[: len(leaf)], file[len(leaf) :] = leaf, leaf[:1]

        jax.tree.map(write, self.agents, agents)
        return self.agents


def block_size(program: Program, shard: Shard, start: Vector) -> int:
    """How many agents are taken up at a time: a multiple of the devices."""
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(_one(program, shard, start)))
    devices = 1 if program.layout.mesh is None else program.layout.mesh.size
    most = -(-len(shard.agent) // devices)
    return devices * min(most, max(1, BLOCK_BYTES // size // devices))


def _one(program: Program, shard: Shard, start: Vector) -> Any:
    """The shapes of one agent's state."""
    first = jax.tree.map(lambda leaf: leaf[:1], shard)
    alone = program._replace(layout=Layout(1, False, None))
    agents = jax.eval_shape(lambda: init_agents(alone, first, start))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), agents)


def create(folder: Path, program: Program, shard: Shard, block: int, start: Vector, place: Place) -> Store:
    """All agents at the start x^0, in files of their own that are in `folder` and in no listing of it."""
    one = _one(program, shard, start)
    number = len(shard.agent)
    needed = sum(number * math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FedpdError(
            f"the state of {number} agents takes {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free. "
            "Give a folder on a larger disk."
        )
    store = Store(jax.tree.map(partial(_file, folder, number), one), shard, block, place)
    for part in store.blocks():
        store.put(part, _begin(program, store.take(shard, part), start))
    return store


def _file(folder: Path, number: int, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    shape = (number, *leaf.shape)
    if not math.prod(shape):  # an empty file cannot be mapped
        return np.zeros(shape, leaf.dtype)
    with tempfile.TemporaryFile(dir=folder) as file:  # it has no name: nothing is left behind, however the run ends
        return np.memmap(file, dtype=leaf.dtype, mode="w+", shape=shape)


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, shard: Shard, start: Vector) -> Any:
    run = sharded(partial(init_agents, program), program.layout, (AGENTS, SHARED), AGENTS)
    return run(shard, start)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _compute(program: Program, number: int, inputs: Inputs, agents: Any, r: Array) -> tuple[Heard, Any, Work]:
    def run(inputs: Inputs, agents: Any, r: Array) -> tuple[Heard, Any, Work]:
        heard, agents, _, work = compute(program, number, inputs, agents, r)
        return heard, agents, work

    specs = (INPUTS, AGENTS, SHARED), (SHARED, AGENTS, AGENTS)
    return sharded(run, program.layout, *specs)(inputs, agents, r)


@partial(jax.jit, static_argnums=(0, 1))
def _answer(
    program: Program, number: int, inputs: Inputs, heard: Heard, server: Any, skipped: Array, r: Array
) -> tuple[Any, Tree, Array]:
    exchange = program.algorithm.exchanges[number]
    silent = silence(program, exchange, skipped, heard.listening, r)
    server, broadcast = answer(program, exchange, heard, server, silent)
    return server, broadcast, jnp.bool_(False) if silent is None else silent


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _hear(program: Program, number: int, inputs: Inputs, agents: Any, broadcast: Tree, r: Array) -> Any:
    exchange = program.algorithm.exchanges[number]

    def run(inputs: Inputs, agents: Any, broadcast: Tree, r: Array) -> Any:
        here, _ = attendance(program, inputs, r)
        return each_in_place(partial(hear, exchange, broadcast), agents, here, program.layout, None)

    return sharded(run, program.layout, (INPUTS, AGENTS, SHARED, SHARED), AGENTS)(inputs, agents, broadcast, r)


_coin = jax.jit(coin, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _measure(program: Program, shard: Shard, x: Vector, gap: Any) -> Metrics:
    def run(shard: Shard, x: Vector, gap: Any) -> Metrics:
        return measure_at(program.functions, program.layout, shard, x, gap, program.record)

    return sharded(run, program.layout, (AGENTS, SHARED, SHARED), SHARED)(shard, x, gap)


def one_round(
    program: Program, inputs: Inputs, store: Store, state: State, tell: Callable[[float], None]
) -> tuple[State, Round]:
    """State r -> state r+1, the agents' in their files; `tell` hears which part of the round is done."""
    _, server, r = state
    skipped = _coin(program.algorithm, inputs.key, r, server)
    exchanges = program.algorithm.exchanges
    work, senders, receivers = Work(np.int32(0), np.int32(0)), [], []  # type: ignore[arg-type]
    blocks = list(store.blocks())
    for number in range(len(exchanges)):
        heard, done = None, []
        for i, block in enumerate(blocks):
            here = inputs._replace(shard=store.take(store.shard, block))
            more, agents, worked = _compute(program, number, here, store.take(store.agents, block), r)
            heard = more if heard is None else jax.tree.map(jnp.add, heard, more)
            store.put(block, agents)
            done.append(jax.device_get(worked))
            tell((number + (i + 1) / len(blocks)) / len(exchanges))
        work = jax.tree.map(np.add, work, jax.tree.map(lambda *parts: np.concatenate(parts), *done))
        assert heard is not None
        server, broadcast, silent = _answer(program, number, inputs, heard, server, skipped, r)
        if not silent:
            for block in blocks:
                here = inputs._replace(shard=store.take(store.shard, block))
                store.put(block, _hear(program, number, here, store.take(store.agents, block), broadcast, r))
        senders.append(int(moved(silent, heard.sending)))
        receivers.append(int(moved(silent, heard.listening)))
    happened = Round(np.bool_(receivers[-1] > 0), np.array(senders), np.array(receivers), work)  # type: ignore[arg-type]
    return State(store.agents, server, r + 1), happened


def play(
    program: Program,
    inputs: Inputs,
    store: Store,
    state: State,
    every: int,
    last: int,
    tell: Callable[[float], None],
) -> tuple[State, Rows]:
    """One round, with what it did as the rows of a chunk; measured every `every` rounds and at round `last`."""
    state, happened = one_round(program, inputs, store, state, tell)
    if int(state.round) % every == 0 or int(state.round) == last:
        metrics = measure(program, inputs.shard, store, not happened.communicated)
    else:
        metrics = not_measured(program.record)
    return state, jax.tree.map(lambda leaf: np.asarray(leaf)[None], Rows(happened, metrics))


def measure(program: Program, shard: Shard, store: Store, skipped: bool) -> Metrics:
    algorithm, agents = program.algorithm, program.layout.agents
    x = Vector(mean_copy(algorithm, store.agents, agents))
    apart = algorithm.timing.drifts or (algorithm.timing.skips and skipped)
    gap = consensus_gap(algorithm, store.agents, agents) if apart else 0.0
    return jax.device_get(_measure(program, shard, x, gap))


def consensus_gap(algorithm: Algorithm, agents: Any, number: int) -> float:
    """`metrics.consensus_gap`, a block of columns of the files at a time."""
    squares = np.zeros((number, number))
    for leaf in jax.tree.leaves(algorithm.model(agents)):
        rows = leaf.reshape(len(leaf), -1)[:number]
        for first in range(0, rows.shape[1], COLUMNS):
            block = rows[:, first : first + COLUMNS] - rows[:1, first : first + COLUMNS]
            inner = block @ block.T
            norms = np.diagonal(inner)
            squares += norms[:, None] + norms - 2 * inner
    return math.sqrt(max(squares.max(), 0.0))
