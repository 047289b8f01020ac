"""Run the chunks of a plan in which agents are absent: bring the rows of a chunk's agents to the device, and back."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from tree_math import Vector

from fedpd.core import Array, Method, State, Tree
from fedpd.core.agents import AXIS, SHARED, Shard, arrays, local_objective, one_agent, sharded
from fedpd.engine.chunk_rows import ChunkRows, measure_by_block
from fedpd.engine.cohorts import who
from fedpd.engine.copies import ReadRow, mean_and_gap
from fedpd.engine.costs import exchanged_messages
from fedpd.engine.kept import Kept, Shapes, kept_leaves
from fedpd.engine.measurements import variant
from fedpd.engine.metrics import Metrics
from fedpd.engine.plan import (
    EACH_INPUTS,
    IN_SWEEP,
    Plan,
    StartedRun,
    on_host,
    prepare,
    put_on_devices,
    strongly_typed,
)
from fedpd.engine.present import (
    ATTENDANCE,
    NEVER,
    PARTIAL_STATE,
    Attendance,
    Newest,
    PartialState,
    partial_chunk,
)
from fedpd.engine.rounds import INPUTS, ROWS, Inputs, Program, Rows, Template, measure_model
from fedpd.engine.seen import SeenAgents
from fedpd.engine.tables import choose_width, gather, most_on_a_device
from fedpd.engine.targets import target_values

_axis: Any = 0  # the axis of the variants in each array, for jax.vmap
_none: Any = None


class PartialKind(NamedTuple):
    """The key that selects a compiled chunk, together with the shapes of its arrays; see `driver.Kind`."""

    template: Template
    kept: Kept
    length: int
    many: bool
    sweep: bool


class AgentsSeen(NamedTuple):
    """The agents that were present at least once, at the end of a run with absent agents.

    Attributes:
        agent: (seen,) their numbers, in ascending order.
        last: (seen,) the last round in which each was present, counted from 1.
        state: What is kept of their states, leaves (seen, ...), after their last rounds. Arrays that the newest
            broadcasts replace, or that nothing reads, are None.
        newest: The newest broadcast of each exchange, which absent agents receive when they come back.
    """

    agent: Any
    last: Any
    state: Any
    newest: Newest


class PartialRun:
    """The rows of a run in which agents are absent, and its compiled rounds.

    Attributes:
        kept: Which leaves of an agent's state are kept.
        one: The shapes of one agent's arrays and state.
        seen: The rows of each variant.
    """

    def __init__(self, plan: Plan, template: Template, inputs: Inputs, one: Shapes) -> None:
        self.plan, self.template, self.inputs, self.one = plan, template, inputs, one
        self.kept = kept_leaves(template.functions.with_frozen(inputs.frozen), one)
        leaves = jax.tree.leaves(one.agent)
        self.shapes = (*(leaves[i] for i in self.kept.rows), jax.ShapeDtypeStruct((), np.int32))
        self.seen = [SeenAgents(plan.problem.agents, self.shapes, plan.store) for _ in plan.seeds]
        self.width = choose_width(plan, self.shapes)
        self.data = ChunkRows(plan)
        self.kept = self.kept._replace(steady=self.kept.steady and not self.data.by_block)  # measures between chunks

    def run(self, state: State, done: int, number: int) -> tuple[State, Rows, np.ndarray]:
        """Run at most `number` rounds after `done`.

        Returns:
            The state, the rows of the rounds, and the agents of the rounds, (rounds, columns), per variant.
        """
        plan, width = self.plan, self.width
        number = min(number, width.rounds)
        if not self.kept.steady:
            number = min(number, plan.every - done % plan.every)
        assert plan.participation is not None
        rule, rounds = plan.participation, range(done, done + number)
        drawn = {seed: who(rule, seed, rounds, plan.problem.agents) for seed in set(plan.seeds)}
        most = max(most_on_a_device(here, width, plan.problem.agents) for here in drawn.values())
        if most > width.columns:
            width = self.width = width._replace(columns=most, rows=min(width.rounds * most, width.block))
        calls = [gather(self.seen[i], drawn[seed], width, self.shapes) for i, seed in enumerate(plan.seeds)]
        table, attendance = _stacked([(one.table, one.attendance) for one in calls], plan.many)
        kind = PartialKind(self.template, self.kept, width.rounds, plan.many, plan.variants is not None)
        numbers = np.int32(number), np.int32(plan.every), np.int32(plan.rounds)
        targets = target_values(plan.targets, self.template.columns, plan.problem.double)
        spec = (None,) * plan.many
        table = put_on_devices(plan.layout, table, PartitionSpec(*spec, AXIS))
        attendance = put_on_devices(plan.layout, attendance, PartitionSpec(*spec, None, AXIS))
        begun = PartialState(table, state.agents, state.server, state.round)
        inputs = self.data.inputs(self.inputs, drawn, done, number, width.rounds)
        (table, newest, server, r), rows = _advance()(kind, inputs, begun, attendance, *numbers, targets)
        table, rows = jax.tree.map(on_host, (table, rows))
        for i, one in enumerate(calls):
            own = variant(table, i, plan.many)
            self.seen[i].put(one.slots, [*own.rows, own.last], one.places)
        agents = np.stack([one.attendance.agents[:number] for one in calls])
        state = State(newest, server, r)
        if not self.kept.steady and ((done + number) % plan.every == 0 or done + number == plan.rounds):
            rows = self._with_metrics(state, rows, number - 1)
        return state, rows, agents

    def agents(self, state: State) -> list[AgentsSeen]:
        """Return the agents seen by each variant."""
        heard = jax.tree.map(on_host, state.agents)
        return [self._agents(seen, variant(heard, i, self.plan.many)) for i, seen in enumerate(self.seen)]

    def _agents(self, seen: SeenAgents, newest: Newest) -> AgentsSeen:
        agents = np.sort(seen.agents)
        found = [agents, *seen.in_order(agents)]
        if (found[-1] == NEVER).any():  # the run ended before some agents of its last chunk came
            found = [leaf[found[-1] != NEVER] for leaf in found]
        agents, *rows, last = found
        return AgentsSeen(agents, last, _state(self.one, self.kept, rows), newest)

    def like(self, numbers: Sequence[int], state: State) -> list[AgentsSeen]:
        """Return the shapes of `agents`, for these numbers of agents seen."""

        def shapes(number: int) -> AgentsSeen:
            *rows, last = [jax.ShapeDtypeStruct((number, *shape.shape), shape.dtype) for shape in self.shapes]
            return AgentsSeen(last, last, _state(self.one, self.kept, rows), newest)

        newest = jax.eval_shape(lambda tree: variant(tree, 0, self.plan.many), state.agents)
        return [shapes(number) for number in numbers]

    def fill(self, agents: list[AgentsSeen]) -> Newest:
        """Replace all rows by those of `agents`, and return the newest broadcasts."""
        plan = self.plan
        self.seen = [SeenAgents(plan.problem.agents, self.shapes, plan.store) for _ in plan.seeds]
        for seen, one in zip(self.seen, agents, strict=True):
            seen.add(one.agent)
            everyone = np.arange(len(one.agent))  # in the order of their numbers, and so of their rows
            seen.put(everyone, [*jax.tree.leaves(one.state), one.last], everyone)
        return put_on_devices(plan.layout, _stacked([one.newest for one in agents], plan.many), SHARED)

    def model(self, state: State, i: int) -> Tree:
        """Return the mean of the copies of variant i."""
        if self.kept.steady:
            return jax.tree.map(np.asarray, variant(state.agents.model, i, self.plan.many).tree)
        return self._mean_and_gap(state, i, False)[0].tree

    def _with_metrics(self, state: State, rows: Rows, t: int) -> Rows:
        """Return the rows with the metrics of round t of the chunk."""
        metrics = jax.tree.map(np.array, rows.metrics)
        for i in range(len(self.plan.seeds)):
            place = (i, t) if self.plan.many else t
            for name, value in self._measure(state, i, not rows.rounds.communicated[place]).items():
                metrics[name][place] = value
        return rows._replace(metrics=metrics)

    def _measure(self, state: State, i: int, skipped: bool) -> Metrics:
        x, gap = self._mean_and_gap(state, i, skipped or self.plan.algorithm.copies_differ)
        if self.data.by_block:
            return measure_by_block(self.template, self.plan, x, gap)
        return jax.device_get(_measured(self.template, self._inputs(i), x, np.float64(gap)))

    def _mean_and_gap(self, state: State, i: int, differ: bool) -> tuple[Vector, float]:
        first = one_agent(arrays(self.plan.problem.subset([0]).in_memory()), 0)
        reading = ReadRow(self.template, self.kept, self.one.agent, first)
        newest, algorithm = variant(state.agents, i, self.plan.many), self.plan.algorithm
        agree = algorithm.skips and not algorithm.copies_differ
        return mean_and_gap(reading, self._inputs(i), newest, self.seen[i], differ, agree)

    def _inputs(self, i: int) -> Inputs:
        """Return the arrays of the run with the method of variant i."""
        return self.inputs._replace(method=variant(self.inputs.method, i, self.plan.variants is not None))


def _state(one: Shapes, kept: Kept, rows: list[Any]) -> Any:
    """Return an agent's state with the kept leaves; the others are None."""
    leaves, structure = jax.tree.flatten(one.agent)
    found = dict(zip(kept.rows, rows, strict=True))
    return jax.tree.unflatten(structure, [found.get(i) for i in range(len(leaves))])


def _stacked(trees: list[Any], many: bool) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees) if many else trees[0]


def begin_partial(plan: Plan) -> StartedRun:
    """Return a run with absent agents at its start."""
    program, template, inputs = prepare(plan)
    sweep = plan.variants is not None
    one = shapes_of(template, inputs, sweep)
    by_block = plan.problem.lazy and plan.sample is None
    server, model, metrics = first_state(template._replace(columns=()) if by_block else template, sweep, inputs)
    if by_block:
        metrics = _measure_starts(template, plan, model, sweep)
    newest = nothing_heard(one.broadcasts, model, len(plan.seeds) if sweep else None)
    if plan.many and not sweep:
        server, newest = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(plan.seeds)), (server, newest))
    place = PartialRun(plan, template, inputs, one)
    # Where a chunk leaves its state, so that the first chunk and the others are one compiled program.
    state = put_on_devices(plan.layout, State(newest, server, jnp.int32(0)), SHARED)
    return StartedRun(place, program, template, inputs, state, metrics)


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
        return strongly_typed(program.algorithm.server(inputs.start)), model, measure_model(program, inputs, model, 0.0)

    run = sharded(begin, template.layout, (INPUTS,), SHARED)
    if sweep:
        run = jax.vmap(run, in_axes=(Inputs(_none, _none, _axis),), out_axes=0)
    return run(inputs)


def nothing_heard(broadcasts: tuple[Any, ...], model: Vector, variants: int | None) -> Newest:
    """Return the newest broadcasts before the first, which are zeros; `variants`: the first axis of the model."""
    axis = () if variants is None else (variants,)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((*axis, *leaf.shape), leaf.dtype), broadcasts)
    return Newest(zeros, jnp.full((*axis, len(broadcasts)), NEVER, jnp.int32), model)


@partial(jax.jit, static_argnums=0)
def _measured(template: Template, inputs: Inputs, x: Vector, gap: Array) -> Metrics:
    def run(inputs: Inputs, x: Vector, gap: Array) -> Metrics:
        return measure_model(template.program(inputs.method, inputs.frozen), inputs, x, gap)

    return sharded(run, template.layout, (INPUTS, SHARED, SHARED), SHARED)(inputs, x, gap)


def _rounds(
    kind: PartialKind, inputs: Inputs, state: PartialState, attendance: Attendance, *numbers: Array
) -> tuple[PartialState, Rows]:
    """Run a chunk of rounds; `numbers` are the last four arguments of `partial_chunk`."""

    def rounds(inputs: Inputs, *rest: Any) -> tuple[PartialState, Rows]:
        program: Program = kind.template.program(inputs.method, inputs.frozen)
        return partial_chunk(program, kind.kept, kind.length, not kind.many, inputs, *rest)

    specs = (INPUTS, PARTIAL_STATE, ATTENDANCE, *[SHARED] * len(numbers))
    run = sharded(rounds, kind.template.layout, specs, (PARTIAL_STATE, ROWS))
    if kind.many:
        each = IN_SWEEP if kind.sweep else EACH_INPUTS
        states = PartialState(_axis, _axis, _axis, _none)
        run = jax.vmap(run, in_axes=(each, states, 0, *[None] * len(numbers)), out_axes=(states, 0))
    return run(inputs, state, attendance, *numbers)


_compiled = partial(jax.jit, _rounds, static_argnums=0, donate_argnums=2)
_on_accelerators = _compiled()
_on_cores = _compiled(compiler_options={"xla_disable_hlo_passes": "cpu-parallel-task-assigner"})  # as in driver.py


def _advance() -> Any:
    return _on_cores if jax.default_backend() == "cpu" else _on_accelerators
