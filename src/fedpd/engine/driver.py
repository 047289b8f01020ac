"""The driver plays a run in chunks of rounds and keeps its books, for one variant or several at once."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec
from tree_math import Vector

from fedpd.base.progress import Event, Listener, Row
from fedpd.core import Array, State, Tree
from fedpd.core.agents import AGENTS, SHARED, sharded, with_padding_agents
from fedpd.engine import disk
from fedpd.engine.books import Books, enter_rounds, open_books, rows_since, variant
from fedpd.engine.costs import Costs, message_costs
from fedpd.engine.debug import play_costs
from fedpd.engine.divergence import explain
from fedpd.engine.metrics import mean_copy, not_measured
from fedpd.engine.plan import (
    EACH_INPUTS,
    EACH_STATE,
    IN_SWEEP,
    Begun,
    HostPlace,
    Plan,
    begin,
    compiled_begin,
    open_numbers,
    prepare,
    put_on_devices,
)
from fedpd.engine.rounds import INPUTS, ROWS, STATE, Inputs, Program, Rows, Template, chunk
from fedpd.engine.targets import target_values

log = logging.getLogger(__name__)

LONGEST_CHUNK = 256  # rounds; what they record is kept on the device until the chunk ends
CHUNK_SECONDS = 0.2  # how long a chunk should take: the interval of the progress bar


class Kind(NamedTuple):
    """What selects a compiled chunk of rounds, besides the shapes of its arrays; it is hashable.

    Attributes:
        template: The method on the problem's functions, its numbers open.
        length: The longest chunk.
        many: Whether there are several variants at once.
        sweep: Whether each variant has numbers of its own.
    """

    template: Template
    length: int
    many: bool
    sweep: bool


def _rounds(kind: Kind, inputs: Inputs, state: State, *numbers: Array) -> tuple[State, Rows]:
    """Play a chunk of rounds; `numbers` are the last four arguments of `chunk`."""

    def rounds(inputs: Inputs, *rest: Any) -> tuple[State, Rows]:
        return chunk(kind.template.program(inputs.settings), kind.length, not kind.many, inputs, *rest)

    run = sharded(rounds, kind.template.layout, (INPUTS, STATE, *[SHARED] * len(numbers)), (STATE, ROWS))
    if kind.many:
        each = IN_SWEEP if kind.sweep else EACH_INPUTS
        run = jax.vmap(run, in_axes=(each, EACH_STATE, *[None] * len(numbers)), out_axes=(EACH_STATE, 0))
    return run(inputs, state, *numbers)


_compiled = partial(jax.jit, _rounds, static_argnums=0, donate_argnums=2)
_on_accelerators = _compiled()
# On a CPU, cores have agents of their own: splitting small loops over the same cores once more only makes them wait.
# Measured on 2 cores: batch 1, Q = 600, N = 100, D = 100 1.4 times as fast on two devices; N = 10 3 times on one.
_on_cores = _compiled(compiler_options={"xla_disable_hlo_passes": "cpu-parallel-task-assigner"})


def _advance() -> Any:
    return _on_cores if jax.default_backend() == "cpu" else _on_accelerators


def _arguments(plan: Plan, template: Template, inputs: Inputs, state: State, number: int) -> tuple[Any, ...]:
    """Return what `_advance` is called with, to play so many rounds."""
    kind = Kind(template, LONGEST_CHUNK, plan.many, plan.settings is not None)
    numbers = np.int32(number), np.int32(plan.every), np.int32(plan.rounds)
    return kind, inputs, state, *numbers, target_values(plan.targets, template.columns, plan.problem.double)


def compile_ahead(plan: Plan) -> None:
    """Compile the program of a plan, and run nothing; its driver then finds it compiled.

    It may run in a thread while another plan runs. Nothing happens if the agents are not in memory, if there are
    several seeds, or if the program cannot be compiled: the run itself will say so.
    """
    if plan.store is not None or plan.debug or plan.many:
        return
    try:
        _, template, inputs = prepare(plan, open_numbers(plan))
        start = Vector(plan.problem.start)
        first = compiled_begin.lower(template, False, inputs.shard, start, inputs.settings).compile()
        shape = _sharded_shape if plan.layout.mesh is not None else _shape
        state = jax.tree.map(shape, first.out_info[0], first.output_shardings[0])
        _advance().lower(*_arguments(plan, template, inputs, state, 0)).compile()
    except Exception:
        log.debug("%s is not compiled ahead.", plan.algorithm.description, exc_info=True)


def _sharded_shape(like: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)


def _shape(like: Any, _: Any) -> jax.ShapeDtypeStruct:  # of an array that may be moved, as all are on one device
    return jax.ShapeDtypeStruct(like.shape, like.dtype)


def begin_traced(plan: Plan) -> Begun:
    """Set all agents to the start, with the method's numbers open if it can be traced like that."""
    opened = open_numbers(plan)
    try:
        begun = begin(plan, opened)
        if begun.place is None:  # JAX keeps the trace for the first chunk
            _advance().eval_shape(*_arguments(plan, begun.template, begun.inputs, begun.state, 0))
    except Exception:  # whatever a method raises that branches on its numbers, or checks their type
        if opened is None or plan.build is not None:
            raise
        begun = begin(plan, None)
    return begun


class Driver:
    """A run under way: its state, its books and its clock."""

    def __init__(self, plan: Plan) -> None:
        self.began, self.plan = time.perf_counter(), plan
        self.place, self.program, self.template, self.inputs, self.state, metrics = begin_traced(plan)
        self.costs = self._message_costs()
        found = jax.device_get(metrics)
        measured = {column.name: found[column.name] for column in self.program.columns}  # in the order of the columns
        self.books: list[Books] = [open_books(plan.problem.agents, measured) for _ in plan.seeds]
        self.done, self.seconds = 0, 0.0
        self.clock = [(0, 0.0)]  # (rounds, seconds) when each chunk was done

    def run(
        self, listen: Listener, save: Callable[[], None] | None = None, save_every: int = 1, row_by_row: bool = False
    ) -> None:
        """Play the rounds that are left, chunk by chunk, until the listener says True.

        Args:
            listen: Is told of every chunk.
            save: Writes a checkpoint; None: none is written.
            save_every: Rounds between two checkpoints.
            row_by_row: Whether a chunk ends at every measured row, so that the listener sees the model there.
        """
        rounds, before, step, stop = self.plan.rounds, self.seconds, 1, False
        while self.done < rounds and not stop and not self.ended:
            until = rounds if save is None else min(rounds, _next_multiple(self.done, save_every))
            last = min(until, _next_multiple(self.done, self.plan.every)) if row_by_row else until
            started = time.perf_counter()
            self._play(min(step, last - self.done), listen)
            step = _pace(step, time.perf_counter() - started) if self.place is None else 1
            self.seconds = before + time.perf_counter() - self.began
            self.clock.append((self.done, self.seconds))
            stop = listen(self._event(self.done, self._new_rows)) is True
            if save is not None and (self.done == until or self.ended or stop):
                save()

    def _message_costs(self) -> Costs:
        plan, functions = self.plan, self.program.functions
        if plan.debug:
            one, agent = variant((self.inputs.shard, self.state.agents), 0, True)
            return play_costs(plan.algorithm, functions, one, agent, self.state.server)
        agents, server = jax.eval_shape(lambda tree: variant(tree, 0, plan.many), self.state[:2])
        one, agent = jax.eval_shape(lambda tree: variant(tree, 0, True), (self.inputs.shard, agents))
        return message_costs(plan.algorithm, functions, one, agent, server)

    @property
    def ended(self) -> bool:
        """Whether all variants have diverged."""
        return all(books.diverged is not None for books in self.books)

    def _play(self, number: int, listen: Listener) -> None:
        plan = self.plan
        if self.place is None:
            state, rows = _advance()(*_arguments(plan, self.template, self.inputs, self.state, number))
        else:
            place = self.place
            if isinstance(place, disk.OnDisk):  # a round may take minutes
                place = place._replace(on_progress=lambda part: listen(self._event(self.done + part, list)))
            state, rows = _play_on_host(place, plan, self.program, self.inputs, self.state)
        rows, said = jax.tree.map(on_host, rows), partial(explain, plan.algorithm, plan.problem)
        number = int(on_host(state.round)) - self.done  # a chunk may end early
        for i, books in enumerate(self.books):
            own = jax.tree.map(lambda leaf: leaf[:number], variant(rows, i, plan.many))
            self.books[i] = enter_rounds(books, own, self.done, plan.every, plan.rounds, self.costs, said)
        self.state, self.done = state, int(on_host(state.round))

    def event(self) -> Event:
        """Return how far the run is."""
        return self._event(self.done, list)

    def _event(self, done: float, rows: Callable[[], list[Row]]) -> Event:
        stationarity = float(np.mean([books.history["stationarity"][-1] for books in self.books]))
        return Event(self.plan.algorithm.name, done, self.plan.rounds, stationarity, rows, self.model)

    def _new_rows(self) -> list[Row]:
        """Return the rows of the last chunk, by seed; the first chunk's include the start."""
        found, name = [], self.plan.algorithm.description
        for i, (seed, books) in enumerate(zip(self.plan.seeds, self.books, strict=True)):
            since = self.clock[-2][0] or -1
            found += rows_since(books.history, self.elapsed(i), since, algorithm=name, seed=int(seed))
        return found

    def elapsed(self, i: int) -> np.ndarray:
        """Return the seconds at each row of variant i's history: read at the ends of chunks, interpolated between."""
        return np.interp(self.books[i].history["round"], *np.array(self.clock).T)

    def model(self, i: int = 0) -> Tree:
        """Return the model of variant i as it is now."""
        return mean_copy(self.plan.algorithm, variant(self.agents(), i, self.plan.many), self.plan.problem.agents)

    def agents(self) -> Any:
        """Return the state of the agents without padding: leaves (N, ...), (variants, N, ...) if there are several."""
        return jax.tree.map(lambda leaf: self.without_padding(on_host(leaf)), self.state.agents)

    def release(self) -> Any:
        """Return `agents()`, array by array, each given up as soon as it is on the host: the run is over after it."""
        leaves, structure = jax.tree.flatten(self.state.agents)
        self.state = self.state._replace(agents=None)
        for i in range(len(leaves)):
            leaves[i] = self.without_padding(on_host(leaves[i]))
        return jax.tree.unflatten(structure, leaves)

    def without_padding(self, leaf: Any) -> Any:
        return leaf[(slice(None),) * self.plan.many + (slice(self.plan.problem.agents),)]

    def take_up(self, agents: Any, server: Any, done: int) -> None:
        """Go on from a state that was saved after so many rounds."""
        plan, layout = self.plan, self.plan.layout
        if isinstance(self.place, disk.OnDisk):
            agents = self.place.store.fill(agents)
        elif self.place is None:
            axes = [None, *AGENTS] if plan.many else AGENTS
            agents = put_on_devices(layout, with_padding_agents(agents, layout, int(plan.many)), PartitionSpec(*axes))
        self.state, self.done = State(agents, put_on_devices(layout, server, SHARED), jnp.int32(done)), done


def _play_on_host(place: HostPlace, plan: Plan, program: Program, inputs: Inputs, state: State) -> tuple[State, Rows]:
    """Play one round outside of a compiled loop; what it did are the rows of a chunk."""
    state, happened = place.play(program, inputs, state)
    if int(state.round) % plan.every == 0 or int(state.round) == plan.rounds:
        metrics = place.measure(program, inputs.shard, state.agents, not happened.communicated)
    else:
        metrics = not_measured(program.columns)
    return state, jax.tree.map(lambda leaf: np.asarray(leaf)[None], Rows(happened, metrics))


def on_host(leaf: Any) -> np.ndarray:
    """Return an array, gathered from other processes where agents are sharded over several."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


def _next_multiple(done: int, every: int) -> int:
    return (done // every + 1) * every


def _pace(step: int, seconds: float) -> int:
    """Return how many rounds the next chunk should have, after one of `step` rounds took so long."""
    if seconds < CHUNK_SECONDS / 2:
        return min(2 * step, LONGEST_CHUNK)
    return max(1, step // 2) if seconds > 2 * CHUNK_SECONDS else step
