"""A run in which agents are absent: a chunk brings the rows of its agents to the device, and back.

`compiled.py` has the rounds that JAX compiles, and `liveness.py` says what a row must hold. If the newest broadcasts do
not determine the agents' copies of the model, the mean of the copies is computed here, from the rows.

There are rows on the host for the agents that were present at least once, in memory or in files. They are numbered in
the order in which the agents first came, in segments of equal length. A new segment is made when the last one is full,
so rows are never moved, and the memory is that of the agents seen. With a folder, a segment is a file without a name,
which the system removes when the process ends.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedpd.base.atomic import nameless_file
from fedpd.base.checks import refuse
from fedpd.core import Array, Method, State, Tree, Vector
from fedpd.core.agents import (
    AGENTS,
    AXIS,
    SHARED,
    Shard,
    arrays,
    local_objective,
    one_agent,
    sharded,
    with_padding_agents,
)
from fedpd.core.distances import largest_distance_on_host
from fedpd.core.message import part_of
from fedpd.engine.backends.compiled import (
    NEVER,
    AgentTable,
    Attendance,
    ChunkKey,
    CohortState,
    Newest,
    catch_up,
    compiled_chunk,
    returned,
)
from fedpd.engine.backends.lazy_rows import ChunkRows, measure_by_block, most_rounds
from fedpd.engine.backends.liveness import Liveness, Shapes, liveness_of
from fedpd.engine.backends.memory import Backend, Progress
from fedpd.engine.loop import INPUTS, LONGEST_CHUNK, Inputs, Rows, Template, delivered_or, measure_model, toss_coin
from fedpd.engine.measure.costs import Costs, exchanged_messages, message_costs
from fedpd.engine.measure.history import target_values, variant
from fedpd.engine.measure.metrics import Metrics, with_personal
from fedpd.engine.participation import most_present, participants
from fedpd.engine.plan import EACH_METHOD, Plan, is_dealt, most_dealt, on_host, prepare, put_on_devices, strongly_typed

IN_MEMORY, IN_FILES = 2**22, 2**30  # bytes of a segment; a file takes no room where nothing was written
NOBODY = -1


class AgentRows:
    """The rows of the agents that were present at least once.

    Attributes:
        slots: (N,) the number of each agent's row; NOBODY if it was never present.
        agents: The agents in the order of their rows, (rows,).
    """

    def __init__(self, agents: int, shapes: Sequence[jax.ShapeDtypeStruct], folder: Path | None) -> None:
        self.shapes, self.folder = tuple(shapes), folder
        size = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in self.shapes)
        self.length = max(1, min(agents, (IN_MEMORY if folder is None else IN_FILES) // max(1, size)))
        self.segments: list[tuple[np.ndarray, ...]] = []
        self.slots = np.full(agents, NOBODY, np.int32)
        self._agents = np.empty(0, np.int32)
        self.number = 0

    @property
    def agents(self) -> np.ndarray:
        return self._agents[: self.number]

    def add(self, agents: np.ndarray) -> None:
        """Give rows to those of some different agents that have none. Their contents are undefined."""
        new = agents[self.slots[agents] == NOBODY]
        end = self.number + len(new)
        if end > len(self._agents):
            self._agents = np.concatenate([self.agents, np.empty(max(1024, end // 8 + len(new)), np.int32)])
        self._agents[self.number : end] = new
        self.slots[new] = np.arange(self.number, end, dtype=np.int32)
        self.number = end
        while len(self.segments) * self.length < end:
            self.segments.append(tuple(self._segment(shape) for shape in self.shapes))

    def _segment(self, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        whole = (self.length, *shape.shape)
        if self.folder is None or not math.prod(whole):  # an empty file cannot be mapped
            return np.zeros(whole, shape.dtype)
        with nameless_file(self.folder) as file:
            return np.memmap(file, dtype=shape.dtype, mode="w+", shape=whole)

    def take(self, slots: np.ndarray, into: Sequence[np.ndarray], places: np.ndarray) -> None:
        """Copy the rows with these numbers, which ascend, to these places of some arrays."""
        for segment, own, some in self._parts(slots):
            for array, source in zip(into, segment, strict=True):
                array[places[some]] = source.take(own, axis=0)

    def put(self, slots: np.ndarray, values: Sequence[np.ndarray], places: np.ndarray) -> None:
        """Replace the rows with these numbers, which ascend, by the rows at these places of some arrays."""
        for segment, own, some in self._parts(slots):
            for array, target in zip(values, segment, strict=True):
                target[own] = array.take(places[some], axis=0)

    def _parts(self, slots: np.ndarray) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray, slice]]:
        """Yield each segment that holds some of the rows with these numbers, their places in it, and which they are."""
        firsts = self.length * np.arange(len(self.segments) + 1)
        ends = np.searchsorted(slots, firsts).tolist()
        for i, segment in enumerate(self.segments):
            some = slice(ends[i], ends[i + 1])
            if some.start < some.stop:
                yield segment, slots[some] - i * self.length, some

    def since(self, last: int) -> np.ndarray:
        """Return the agents, in ascending order, whose last leaf (a number) is larger than `last`."""
        found = [np.flatnonzero(arrays[-1] > last) + i * self.length for i, arrays in enumerate(self.segments)]
        return np.sort(self._agents[np.concatenate(found)]) if found else self.agents

    def in_order(self, agents: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return copies of the rows of some agents in this order, each (rows, ...)."""
        slots = self.slots[agents]
        order = np.argsort(slots)
        arrays = tuple(np.empty((len(agents), *shape.shape), shape.dtype) for shape in self.shapes)
        self.take(slots[order], arrays, order)
        return arrays


TABLE_BYTES = 2**24  # of the rows of a chunk; at least one round


class Width(NamedTuple):
    """The sizes of the arrays of a chunk."""

    rounds: int  # the longest chunk
    columns: int  # agents per round and device
    rows: int  # rows of the table per device, without the last, which is nobody's
    block: int  # the agents whose data a device has
    devices: int  # the number of devices
    dealt: bool = False  # whether the agents of a round are dealt to the devices, which all have the data of all agents


class Call(NamedTuple):
    """The arrays of one variant for one chunk, and where its rows belong."""

    table: AgentTable
    attendance: Attendance
    slots: np.ndarray  # rows of the seen agents
    places: np.ndarray  # their rows in the table


def gather(seen: AgentRows, here: np.ndarray, width: Width, shapes: Any) -> Call:
    """Return the table of the agents of a chunk, and who is present in its rounds.

    Args:
        seen: The rows of all agents seen, to which this adds the agents that come for the first time.
        here: (rounds, C) the agents of each round; N where nobody is.
        shapes: The shapes of the leaves of a row.
    """
    none = len(seen.slots)
    agents = np.full((width.rounds, width.devices * width.columns), none, np.int32)
    slots, data = np.full_like(agents, width.rows), np.zeros_like(agents)
    t, column = np.nonzero(here < none)
    members = here[t, column]
    if width.dealt:
        own, place = column % width.devices, column // width.devices
    else:
        own = members // width.block
        place = column - _before(here, width)[t, own]
    column = place + own * width.columns
    everyone, first, number = np.unique(members, return_index=True, return_inverse=True)
    seen.add(everyone)
    numbers, device = seen.slots[everyone], own[first]
    order = np.argsort(numbers, kind="stable")  # the rows of a device are in the order of the numbers: copies are fast
    local = np.empty_like(order)
    for d in range(width.devices):
        own_rows = order[device[order] == d]
        local[own_rows] = np.arange(len(own_rows))
    agents[t, column], slots[t, column] = members, local[number]
    data[t, column] = members if width.dealt else members - own * width.block
    places, numbers = (device * (width.rows + 1) + local)[order], numbers[order]
    rows = [np.zeros((width.devices * (width.rows + 1), *shape.shape), shape.dtype) for shape in shapes]
    seen.take(numbers, rows, places)
    rows[-1][width.rows :: width.rows + 1] = NEVER + 1  # nobody comes for the first time
    return Call(AgentTable(tuple(rows[:-1]), rows[-1]), Attendance(agents, slots, data), numbers, places)


def _before(here: np.ndarray, width: Width) -> np.ndarray:
    """Return how many agents of each round belong to earlier devices than each, (rounds, devices)."""
    return np.stack([(here < d * width.block).sum(axis=1) for d in range(width.devices)], axis=1)


def most_on_a_device(here: np.ndarray, width: Width, agents: int) -> int:
    """Return the largest number of a device's agents in a round."""
    if width.dealt:
        return int(-(-(here < agents).sum(axis=1).max() // width.devices))
    ends = np.concatenate([_before(here, width), (here < agents).sum(axis=1)[:, None]], axis=1)
    return int(np.diff(ends, axis=1).max())


def choose_width(plan: Plan, shapes: Any) -> Width:
    """Return the sizes of the arrays of a chunk; `shapes`: those of the leaves of a row."""
    devices = 1 if plan.layout.mesh is None else plan.layout.mesh.size
    block = -(-plan.problem.agents // devices)
    assert plan.participation is not None
    if is_dealt(plan.algorithm, plan.problem, plan.layout, plan.participation):
        columns = most_dealt(plan.participation, plan.layout)
        return Width(1, columns, columns, block, devices, dealt=True)
    columns = most_present(plan.participation, plan.problem.agents, block)
    row = sum(int(np.prod(shape.shape)) * shape.dtype.itemsize for shape in shapes)
    rounds = max(1, min(LONGEST_CHUNK, TABLE_BYTES // (row * columns * devices * len(plan.seeds))))
    rounds = int(min(rounds, most_rounds(plan.problem, columns * devices)))
    return Width(rounds, columns, min(rounds * columns, block), block, devices)


BLOCK = 1024  # rows to read at a time


def _blocks(seen: AgentRows, agents: np.ndarray) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    """Return the rows of some agents and their last rounds, in blocks of equal length.

    The last block is filled up with rows of nobody, which were NEVER present.
    """
    length = min(seen.length, BLOCK)
    for first in range(0, len(agents), length):
        some = seen.in_order(agents[first : first + length])
        filled = [np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)]) for leaf in some]
        yield tuple(filled[:-1]), filled[-1]


@partial(jax.jit, static_argnums=0)
def _copy_of_absent(template: Template, first: Shard, inputs: Inputs, newest: Newest) -> Vector:
    """Return the copy of the model of an agent that was never present; `first` has the arrays of any agent."""
    program = template.program(inputs.method, inputs.frozen)
    agent = program.algorithm.init(local_objective(program.functions, first), inputs.start)
    return program.algorithm.model(catch_up(program, newest, jnp.int32(NEVER), agent))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_copies(
    template: Template, liveness: Liveness, shapes: Any, newest: Newest, method: Method, rows: Any, last: Array
) -> Vector:
    program, (structure, leaves) = template.program(method, None), shapes

    def copy(row: tuple[Array, ...], last: Array) -> Vector:
        agent = returned(program, liveness, newest, row, jax.tree.unflatten(structure, leaves))
        return program.algorithm.model(catch_up(program, newest, last, agent))

    return jax.vmap(copy)(rows, last)


class AgentsSeen(NamedTuple):
    """The agents that were present at least once, at the end of a run with absent agents."""

    agent: Any  # (seen,) their numbers, in ascending order
    last: Any  # (seen,) the last round in which each was present, counted from 1
    # what is kept of their states, leaves (seen, ...), after their last rounds. Arrays that the newest broadcasts
    # replace, or that nothing reads, are None
    state: Any
    newest: Newest  # the newest broadcast of each exchange, which absent agents receive when they come back


class CohortBackend(Backend):
    """A run in which agents are absent: the rows of the agents seen, and rounds of those that are present.

    Attributes:
        liveness: Which leaves of an agent's state are kept.
        one: The shapes of one agent's arrays and state.
        seen: The rows of each variant.
    """

    absence = True

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.program, self.template, self.inputs = prepare(plan)
        self.one = shapes_of(self.template, self.inputs, plan.variants is not None)
        self.state, self.metrics = self._begin()
        liveness = liveness_of(self.template.functions.with_frozen(self.inputs.frozen), self.one)
        leaves = jax.tree.leaves(self.one.agent)
        self.shapes = (*(leaves[i] for i in liveness.rows), jax.ShapeDtypeStruct((), np.int32))
        self.seen = [AgentRows(plan.problem.agents, self.shapes, plan.store) for _ in plan.seeds]
        self.width = choose_width(plan, self.shapes)
        self.data = ChunkRows(plan)
        self.liveness = liveness._replace(steady=liveness.steady and not self.data.by_block)  # measures between chunks

    def _begin(self) -> tuple[State, Metrics]:
        """Return the state before the first round, and the measured values there."""
        plan, template, sweep = self.plan, self.template, self.plan.variants is not None
        by_block = plan.problem.lazy and plan.sample is None
        first = template._replace(columns=()) if by_block else template
        server, model, metrics = first_state(first, sweep, self.inputs)
        if by_block:
            metrics = _measure_starts(template, plan, model, sweep)
        # A method that branches on its numbers there fails now, where the driver makes them constants.
        one_server, method = variant(server, 0, sweep), variant(self.inputs.method, 0, sweep)
        jax.eval_shape(toss_coin, method, variant(self.inputs.key, 0, plan.many), jnp.int32(0), one_server)
        newest = nothing_heard(self.one.broadcasts, model, len(plan.seeds) if sweep else None)
        if plan.many and not sweep:
            server, newest = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(plan.seeds)), (server, newest))
        # Where a chunk leaves its state, so that the first chunk and the others are one compiled program.
        return put_on_devices(plan.layout, State(newest, server, jnp.int32(0)), SHARED), metrics

    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, np.ndarray]:
        plan, width, state = self.plan, self.width, self.state
        number = min(number, width.rounds)
        if not self.liveness.steady:
            number = min(number, plan.every - done % plan.every)
        assert plan.participation is not None
        rule, rounds = plan.participation, range(done, done + number)
        drawn = {seed: participants(rule, seed, rounds, plan.problem.agents) for seed in set(plan.seeds)}
        most = max(most_on_a_device(here, width, plan.problem.agents) for here in drawn.values())
        if most > width.columns:
            width = self.width = width._replace(columns=most, rows=min(width.rounds * most, width.block))
        calls = [gather(self.seen[i], drawn[seed], width, self.shapes) for i, seed in enumerate(plan.seeds)]
        table, attendance = _stacked([(one.table, one.attendance) for one in calls], plan.many)
        kind = ChunkKey(self.template, width.rounds, plan.many, plan.variants is not None, self.liveness)
        numbers = np.int32(number), np.int32(plan.every), np.int32(plan.rounds)
        targets = target_values(plan.targets, self.template.columns, plan.problem.double)
        spec = (None,) * plan.many
        table = put_on_devices(plan.layout, table, PartitionSpec(*spec, AXIS))
        attendance = put_on_devices(plan.layout, attendance, PartitionSpec(*spec, None, AXIS))
        begun = CohortState(table, state.agents, state.server, state.round)
        inputs = self.data.inputs(self.inputs, drawn, done, number, width.rounds)
        run_chunk = compiled_chunk(plan.problem)
        (table, newest, server, r), rows = run_chunk(kind, inputs, begun, attendance, *numbers, targets)
        table, rows = jax.tree.map(on_host, (table, rows))
        for i, one in enumerate(calls):
            own = variant(table, i, plan.many)
            self.seen[i].put(one.slots, [*own.rows, own.last], one.places)
        agents = np.stack([one.attendance.agents[:number] for one in calls])
        self.state = State(newest, server, r)
        if not self.liveness.steady and ((done + number) % plan.every == 0 or done + number == plan.rounds):
            rows = self._with_metrics(rows, number - 1)
        return rows, agents

    def agents(self) -> list[AgentsSeen]:
        heard = jax.tree.map(on_host, self.state.agents)
        return [self._agents(seen, variant(heard, i, self.plan.many)) for i, seen in enumerate(self.seen)]

    def _agents(self, seen: AgentRows, newest: Newest) -> AgentsSeen:
        agents = np.sort(seen.agents)
        found = [agents, *seen.in_order(agents)]
        if (found[-1] == NEVER).any():  # the run ended before some agents of its last chunk came
            found = [leaf[found[-1] != NEVER] for leaf in found]
        agents, *rows, last = found
        return AgentsSeen(agents, last, _state(self.one, self.liveness, rows), newest)

    def like(self, seen: Sequence[int]) -> list[AgentsSeen]:
        def shapes(number: int) -> AgentsSeen:
            *rows, last = [jax.ShapeDtypeStruct((number, *shape.shape), shape.dtype) for shape in self.shapes]
            return AgentsSeen(last, last, _state(self.one, self.liveness, rows), newest)

        newest = jax.eval_shape(lambda tree: variant(tree, 0, self.plan.many), self.state.agents)
        return [shapes(number) for number in seen]

    def restore(self, agents: list[AgentsSeen], server: Any, done: int) -> None:
        plan = self.plan
        self.seen = [AgentRows(plan.problem.agents, self.shapes, plan.store) for _ in plan.seeds]
        for seen, one in zip(self.seen, agents, strict=True):
            seen.add(one.agent)
            everyone = np.arange(len(one.agent))  # in the order of their numbers, and so of their rows
            seen.put(everyone, [*jax.tree.leaves(one.state), one.last], everyone)
        newest = _stacked([one.newest for one in agents], plan.many)
        self.state = put_on_devices(plan.layout, State(newest, server, jnp.int32(done)), SHARED)

    def costs(self) -> Costs:
        server = jax.eval_shape(lambda tree: variant(tree, 0, self.plan.many), self.state.server)
        return message_costs(self.plan.algorithm, self.program.functions, self.one.one, self.one.agent, server)

    def mean_of_copies(self, i: int) -> Tree:
        if self.liveness.steady:
            return jax.tree.map(np.asarray, variant(self.state.agents.model, i, self.plan.many).tree)
        return self._mean_and_gap(i, False)[0].tree

    def copies(self, i: int) -> Tree:
        return self._all_copies(i).tree

    def _with_metrics(self, rows: Rows, t: int) -> Rows:
        """Return the rows with the metrics of round t of the chunk."""
        metrics = jax.tree.map(np.array, rows.metrics)
        for i in range(len(self.plan.seeds)):
            place = (i, t) if self.plan.many else t
            for name, value in self._measure(i, not rows.rounds.communicated[place]).items():
                metrics[name][place] = value
        return rows._replace(metrics=metrics)

    def _measure(self, i: int, skipped: bool) -> Metrics:
        if self.plan.algorithm.is_personal is not None:
            return self._measure_personal(i)
        x, gap = self._mean_and_gap(i, skipped or self.plan.algorithm.copies_differ)
        x = delivered_or(self.program, variant(self.state.server, i, self.plan.many), x)
        if self.data.by_block:
            return measure_by_block(self.template, self.plan, x, gap)
        return jax.device_get(_measured(self.template, self._inputs(i), x, np.float64(gap), None))

    def _measure_personal(self, i: int) -> Metrics:
        """Return the metrics with each agent's own parameters; those that were never present have the start's."""
        if self.data.by_block:
            rule = "needs the samples of all agents in memory, because each is measured at its own parameters"
            refuse("personal", self.plan.problem.name, rule, "Give problem.in_memory()")
        copies, algorithm = self._all_copies(i), self.plan.algorithm
        x = Vector(jax.tree.map(lambda leaf: np.mean(leaf, axis=0, dtype=leaf.dtype), copies.tree))
        shared = part_of(copies, algorithm.is_personal, personal=False)
        gap = np.float64(largest_distance_on_host(shared) if algorithm.skips else 0.0)
        filled = with_padding_agents(copies, self.plan.layout)
        return jax.device_get(_measured(self.template, self._inputs(i), x, gap, filled))

    def _mean_and_gap(self, i: int, differ: bool) -> tuple[Vector, float]:
        """Return the mean of the copies of all N agents, and their largest distance; 0 unless copies can differ now."""
        newest, algorithm, seen = self._newest(i), self.plan.algorithm, self.seen[i]
        # If copies agree after a communication, only agents that worked since the newest one have copies of their own.
        agree = algorithm.skips and not algorithm.copies_differ and algorithm.is_personal is None
        number, away = len(seen.slots), self._copy_of_absent(i)
        offset, found = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), away), []
        own = seen.since(int(np.max(newest.rounds)) if agree else NEVER)
        for copies in self._copies_of(i, own):
            offset = jax.tree.map(lambda total, leaf, start: total + (leaf - start).sum(axis=0), offset, copies, away)
            found += [copies] if differ else []
        mean = jax.tree.map(lambda start, total: np.asarray(start + total / number, start.dtype), away, offset)
        if not found:
            return mean, 0.0
        everyone = jax.tree.map(lambda start, *more: np.concatenate([start[None], *more]), away, *found)
        if len(own) == number:  # all agents have copies of their own
            everyone = jax.tree.map(lambda leaf: leaf[1:], everyone)
        return mean, largest_distance_on_host(everyone)

    def _all_copies(self, i: int) -> Vector:
        """Return the copies of the model of all N agents, leaves (N, ...), on the host."""
        seen = self.seen[i]
        every = jax.tree.map(lambda leaf: np.repeat(leaf[None], len(seen.slots), axis=0), self._copy_of_absent(i))
        agents = seen.since(NEVER)
        found = list(self._copies_of(i, agents))
        if found:
            jax.tree.map(lambda leaf, *parts: leaf.__setitem__(agents, np.concatenate(parts)), every, *found)
        return every

    def _copy_of_absent(self, i: int) -> Vector:
        """Return the copy of an agent that was never present: that of the first agent, if it has not come."""
        first = one_agent(arrays(self.plan.problem.subset([0]).in_memory()), 0)
        return jax.device_get(_copy_of_absent(self.template, first, self._inputs(i), self._newest(i)))

    def _copies_of(self, i: int, agents: np.ndarray) -> Iterator[Vector]:
        """Yield the copies of the model of some agents seen, block by block, leaves (n, ...)."""
        leaves, structure = jax.tree.flatten(self.one.agent)
        kind, method = (self.template, self.liveness, (structure, tuple(leaves))), self._inputs(i).method
        for rows, last in _blocks(self.seen[i], agents):
            found = jax.device_get(_compiled_copies(*kind, self._newest(i), method, rows, last))
            yield jax.tree.map(lambda leaf, last=last: leaf[last != NEVER], found)

    def _newest(self, i: int) -> Newest:
        return variant(self.state.agents, i, self.plan.many)

    def _inputs(self, i: int) -> Inputs:
        """Return the arrays of the run with the method of variant i."""
        return self.inputs._replace(method=variant(self.inputs.method, i, self.plan.variants is not None))


def _state(one: Shapes, liveness: Liveness, rows: list[Any]) -> Any:
    """Return an agent's state with the kept leaves; the others are None."""
    leaves, structure = jax.tree.flatten(one.agent)
    found = dict(zip(liveness.rows, rows, strict=True))
    return jax.tree.unflatten(structure, [found.get(i) for i in range(len(leaves))])


def _stacked(trees: list[Any], many: bool) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees) if many else trees[0]


def _measure_starts(template: Template, plan: Plan, model: Vector, sweep: bool) -> Metrics:
    """Return the metrics of lazy data at the start; in a sweep of each point, equal models being measured once."""
    if not sweep:
        return measure_by_block(template, plan, model, 0.0)
    known: dict[bytes, Metrics] = {}
    found = []
    for i in range(len(plan.seeds)):
        own = variant(model, i, sweep)
        name = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(own))
        known[name] = known[name] if name in known else measure_by_block(template, plan, own, 0.0)
        found.append(known[name])
    return jax.tree.map(lambda *values: np.stack(values), *found)


def shapes_of(template: Template, inputs: Inputs, sweep: bool) -> Shapes:
    """Return the shapes of one agent's arrays and state, and of the broadcasts of a round."""
    one = jax.eval_shape(lambda shard: one_agent(shard, 0), inputs.shard._replace(real=None))
    method = variant(inputs.method, 0, sweep)

    def begin(method: Method, one: Shard, start: Vector) -> tuple[Any, tuple[Any, ...]]:
        program = template.program(method, inputs.frozen)
        algorithm, objective = program.algorithm, partial(local_objective, program.functions)
        agent = algorithm.init(objective(one), start)
        messages = exchanged_messages(
            algorithm,
            objective,
            one,
            agent,
            algorithm.server(start),
            evaluate=lambda function, *parts: function(*parts),
        )
        return agent, tuple(broadcast for _, broadcast in messages)

    agent, broadcasts = jax.eval_shape(begin, method, one, inputs.start)
    return Shapes(one, agent, broadcasts, method)


@partial(jax.jit, static_argnums=(0, 1))
def first_state(template: Template, sweep: bool, inputs: Inputs) -> Any:
    """Return the state of the server and the model at the start, and the metrics there."""

    def begin(inputs: Inputs) -> Any:
        program = template.program(inputs.method, inputs.frozen)
        first = one_agent(inputs.shard._replace(real=None), 0)
        model = program.algorithm.model(program.algorithm.init(local_objective(program.functions, first), inputs.start))
        number = len(inputs.shard.agent)
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), model)
        measured = inputs._replace(shard=with_personal(inputs.shard, program.algorithm, copies))
        metrics = measure_model(program, measured, model, 0.0)
        return strongly_typed(program.algorithm.server(inputs.start)), model, metrics

    run = sharded(begin, template.layout, (INPUTS,), SHARED)
    if sweep:
        run = jax.vmap(run, in_axes=(EACH_METHOD,), out_axes=0)
    return run(inputs)


def nothing_heard(broadcasts: tuple[Any, ...], model: Vector, variants: int | None) -> Newest:
    """Return the newest broadcasts before the first, which are zeros; `variants`: the first axis of the model."""
    axis = () if variants is None else (variants,)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((*axis, *leaf.shape), leaf.dtype), broadcasts)
    return Newest(zeros, jnp.full((*axis, len(broadcasts)), NEVER, jnp.int32), model)


@partial(jax.jit, static_argnums=0)
def _measured(template: Template, inputs: Inputs, x: Vector, gap: Array, copies: Vector | None) -> Metrics:
    """Return the metrics at x; `copies` are those of all agents, if some of their parameters are personal."""

    def run(inputs: Inputs, x: Vector, gap: Array, copies: Vector | None) -> Metrics:
        program = template.program(inputs.method, inputs.frozen)
        shard = inputs.shard if copies is None else with_personal(inputs.shard, program.algorithm, copies)
        return measure_model(program, inputs._replace(shard=shard), x, gap)

    return sharded(run, template.layout, (INPUTS, SHARED, SHARED, AGENTS), SHARED)(inputs, x, gap, copies)
