"""The compiled chunk of rounds: of all agents, or of those that are present, at the cost of these agents.

If agents may be absent, a chunk has a table with one row for each agent that is present in any of its rounds. A row
holds what must be kept of the agent's state (`liveness.py`) and the last round in which the agent was present. At the
start of a round, its agents come: each state is made from the row, or by `init` if the agent comes for the first time,
and then gets the newest broadcasts that the agent missed. `loop.one_round` does the rest. At the end, the states go
back to the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedpd.base.process import QUICK
from fedpd.core import Array, Problem, State, Tree, Vector, Work
from fedpd.core.agents import (
    AGENTS,
    AXIS,
    SHARED,
    Layout,
    Shard,
    each_agent,
    each_in_place,
    local_objective,
    one_agent,
    sharded,
    update_agents,
)
from fedpd.core.vectors import choose
from fedpd.engine.backends.liveness import Liveness, when_missed
from fedpd.engine.loop import (
    INPUTS,
    ROWS,
    STATE,
    Executor,
    Inputs,
    MessageSum,
    Program,
    Round,
    Rows,
    Template,
    chunk,
    delivered_or,
    gathered,
    measure_model,
    one_round,
    receive,
    step_of_everyone,
    take_part,
)
from fedpd.engine.participation import effort_of
from fedpd.engine.plan import EACH_INPUTS, EACH_STATE, IN_SWEEP

COPIED_BYTES = 2**23  # if the samples of the agents that run at once take less, they are copied; the steps are faster
NEVER = 0  # the last round of an agent that was never present, and of a broadcast that never happened


class AgentTable(NamedTuple):
    """The agents of a chunk of rounds. The arrays are NumPy arrays on the host."""

    rows: tuple[Any, ...]  # the kept leaves of their states, each (rows, ...)
    last: Any  # (rows,) the last round in which each was present, counted from 1; NEVER: none


class Newest(NamedTuple):
    """The newest broadcast of each exchange, which agents receive when they come back."""

    broadcasts: tuple[Tree, ...]  # the broadcasts; zeros before the first
    rounds: Array  # (exchanges,) their rounds, counted from 1; NEVER: there was none
    model: Vector  # the model at which f is measured, if all copies are equal (`Liveness.steady`)


class CohortState(NamedTuple):
    """The state that a run with absent agents carries from round to round."""

    table: AgentTable
    newest: Newest
    server: Any
    round: Array


class Attendance(NamedTuple):
    """Who is present in the rounds of a chunk. On several devices, each has columns for its own agents.

    The arrays are NumPy arrays on the host.
    """

    agents: Any  # (rounds, C) the numbers of the agents, in ascending order; N where nobody is
    slots: Any  # (rounds, C) their rows in the table; the last row of the table where nobody is
    places: Any  # (rounds, C) the places of their data in the shard


class Visit(NamedTuple):
    """The agents of one round, from the first exchange to the last; `one_round` passes it on as "agents"."""

    agents: Any  # leaves (C, ...)
    newest: Newest


@dataclass(frozen=True)
class Present(Executor):
    """Runs the agents that are present."""

    here: Attendance  # (C,)

    def compute(
        self, program: Program, number: int, inputs: Inputs, visit: Visit, r: Array, /
    ) -> tuple[MessageSum, Any, Tree, Work]:
        exchange, layout = program.algorithm.exchanges()[number], program.layout

        def body(agent: Any, here: Attendance) -> Any:
            effort = None if inputs.stragglers is None else effort_of(inputs.stragglers, inputs.key, r, here.agents)
            part = (
                agent_part(samples_of(inputs), here.places, together(layout, self.here)),
                here.agents < layout.agents,
                effort,
            )
            return take_part(program, exchange, number, r, inputs.key, agent, part)

        (total, sending), agents, (messages, work) = update_agents(body, visit.agents, self.here, layout)
        if exchange.mean is not None:
            total = gathered(layout, messages)
        receivers = jnp.sum(self.here.agents < layout.agents, dtype=jnp.int32)
        receivers = receivers if layout.mesh is None else lax.psum(receivers, AXIS)
        return MessageSum(total, sending, receivers), visit._replace(agents=agents), None, work

    def deliver(
        self, program: Program, number: int, inputs: Inputs, visit: Visit, broadcast: Tree, silent: Any, r: Array, /
    ) -> Any:
        def change(agent: Any, _: Array) -> Any:
            return receive(program.algorithm.exchanges()[number], broadcast, agent, None)

        agents = each_in_place(change, visit.agents, self.here.agents, program.layout, silent)
        broadcasts, rounds, model = visit.newest
        heard = [*broadcasts]
        heard[number] = jax.tree.map(lambda new, old: jnp.where(silent, old, new), broadcast, broadcasts[number])
        rounds = rounds.at[number].set(jnp.where(silent, rounds[number], r + 1))
        return Visit(agents, Newest(tuple(heard), rounds, model))


def samples_of(inputs: Inputs) -> Shard:
    """Return the arrays in which a device finds the agents of a round."""
    return inputs.shard if inputs.everyone is None else inputs.everyone


def agent_part(shard: Shard, place: Array, together: int) -> Shard:
    """Return the arrays of the agent at this place of the shard."""
    some = shard._replace(real=None)  # a padding agent is never present
    one = one_agent(some, place)
    if shard.offset is not None:
        return one
    rows, length = jax.tree.leaves(shard.data)[0].shape[:2]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shard.data)) // rows
    if together * size < COPIED_BYTES or rows * length >= 2**31:  # 2^31: the numbers of the rows do not fit
        return one
    flat = jax.tree.map(lambda leaf: leaf.reshape(rows * length, *leaf.shape[2:]), shard.data)
    return one._replace(flat=(flat, place * length))


def together(layout: Layout, here: Attendance) -> int:
    return len(here.agents) if layout.parallel else 1


def come(
    program: Program, liveness: Liveness, inputs: Inputs, newest: Newest, table: AgentTable, here: Attendance
) -> Any:
    """Return the states of the agents of a round, leaves (C, ...), after the broadcasts that they missed."""
    fresh = jnp.take(table.last, here.slots) == NEVER

    def begin(one: Attendance, first: bool) -> tuple[None, Any]:
        row, last = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, one.slots, keepdims=False), table)
        part = agent_part(samples_of(inputs), one.places, together(program.layout, here))
        f = local_objective(program.functions, part)
        initial = partial(program.algorithm.init, f, inputs.start)
        again = partial(returned, program, liveness, newest, row, jax.eval_shape(initial))
        if first and program.layout.parallel and inputs.shard.offset is not None:  # as in `take_part`
            agent = choose(last == NEVER, initial(), again())
        else:
            agent = lax.cond(last == NEVER, initial, again) if first else again()
        return None, catch_up(program, newest, last, agent)

    def everyone(first: bool) -> Any:
        local = program.layout._replace(mesh=None)
        return each_agent(partial(begin, first=first), here, local)[1]

    if program.layout.parallel:  # a condition on each agent would compute `init` for all
        return lax.cond(fresh.any(), partial(everyone, True), partial(everyone, False))
    return everyone(True)


def returned(program: Program, liveness: Liveness, newest: Newest, row: tuple[Array, ...], shapes: Any) -> Any:
    """Return the state of an agent that was present before, as it was after its last round."""
    leaves, structure = jax.tree.flatten(shapes)
    made = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    for i, leaf in zip(liveness.rows, row, strict=True):
        made[i] = leaf
    agent = jax.tree.unflatten(structure, made)
    if liveness.replaced:  # it heard the newest broadcasts, or `catch_up` replaces these leaves
        for exchange, broadcast in zip(program.algorithm.exchanges(), newest.broadcasts, strict=True):
            agent = exchange.receive(agent, broadcast)
        received = jax.tree.leaves(agent)
        for i in liveness.replaced:
            made[i] = received[i]
    return jax.tree.unflatten(structure, made)


def catch_up(program: Program, newest: Newest, last: Array, agent: Any) -> Any:
    """Return the agent after the newest broadcast of each exchange that it missed since round `last`."""
    for e, exchange in enumerate(program.algorithm.exchanges()):
        updated = when_missed(exchange)(agent, newest.broadcasts[e])
        agent = choose(newest.rounds[e] > last, updated, agent)
    return agent


def leave(program: Program, liveness: Liveness, table: AgentTable, slots: Array, agents: Any, r: Array) -> AgentTable:
    """Return the table with the rows of the agents of round r."""
    leaves = jax.tree.leaves(agents)
    rows = tuple(leaves[i] for i in liveness.rows)
    last = table.last.at[slots].set(r + 1)
    if program.layout.parallel:
        return AgentTable(jax.tree.map(lambda old, new: old.at[slots].set(new), table.rows, rows), last)

    def write(i: Array, table: tuple[Array, ...]) -> tuple[Array, ...]:
        def put(old: Array, new: Array) -> Array:
            return lax.dynamic_update_index_in_dim(old, new[i], slots[i], 0)

        return jax.tree.map(put, table, rows)

    return AgentTable(lax.fori_loop(0, len(slots), write, table.rows), last)


def current_model(program: Program, newest: Newest, agents: Any) -> Vector:
    """Return the model that all agents have after a round, if `Liveness.steady`; `agents` are any that were present."""
    first = jax.tree.map(lambda leaf: leaf[0], agents)
    for exchange, broadcast in zip(program.algorithm.exchanges(), newest.broadcasts, strict=True):
        first = when_missed(exchange)(first, broadcast)
    return program.algorithm.model(first)


def step_of_cohort(
    program: Program, liveness: Liveness, inputs: Inputs, attendance: Attendance, state: CohortState, t: Array
) -> tuple[CohortState, Round, Any]:
    """Run a round of the agents that are present; see `loop.Step`.

    If copies of the model can differ (not `Liveness.steady`), a measurement needs the rows of all agents.
    """
    table, newest, server, r = state
    here = jax.tree.map(lambda leaf: leaf[t], attendance)
    agents = come(program, liveness, inputs, newest, table, here)
    (visit, server, _), happened = one_round(program, inputs, State(Visit(agents, newest), server, r), Present(here))
    table, newest = leave(program, liveness, table, here.slots, visit.agents, r), visit.newest
    measure = None
    if liveness.steady:
        model = choose(happened.communicated, current_model(program, newest, visit.agents), newest.model)
        newest = newest._replace(model=model)
        measure = partial(measure_model, program, inputs, delivered_or(program, server, model), 0.0)
    return CohortState(table, newest, server, r + 1), happened, measure


# The sharding of each array.
_agents: Any = AGENTS
_shared: Any = SHARED
_columns: Any = PartitionSpec(None, AXIS)
COHORT_STATE = CohortState(_agents, _shared, _shared, _shared)
ATTENDANCE = Attendance(_columns, _columns, _columns)


_axis: Any = 0  # of the variants, for jax.vmap
_none: Any = None
EACH_COHORT = CohortState(_axis, _axis, _axis, _none)


class ChunkKey(NamedTuple):
    """Selects a compiled chunk, together with the structures and shapes of its arguments. It is hashable."""

    template: Template  # the problem's functions and how the agents run, without the method
    length: int  # the longest chunk
    many: bool  # whether there are several variants at once
    sweep: bool  # whether each variant has a method of its own
    # what is kept of an agent that is absent; None: all agents take part in every round
    liveness: Liveness | None = None


def _rounds(
    kind: ChunkKey, inputs: Inputs, state: Any, attendance: Attendance | None, *numbers: Array
) -> tuple[Any, Rows]:
    """Run a chunk of rounds; `numbers` are the last four arguments of `chunk`."""

    def rounds(inputs: Inputs, state: Any, attendance: Attendance | None, *rest: Any) -> tuple[Any, Rows]:
        program = kind.template.program(inputs.method, inputs.frozen)
        step: Any = partial(step_of_everyone, program, inputs)
        agents = len(inputs.shard.agent)
        if kind.liveness is not None and attendance is not None:
            step = partial(step_of_cohort, program, kind.liveness, inputs, attendance)
            agents = attendance.agents.shape[1]
        return chunk(program, kind.length, not kind.many, step, agents, state, *rest)

    everyone = kind.liveness is None
    states, each_state = (STATE, EACH_STATE) if everyone else (COHORT_STATE, EACH_COHORT)
    specs = (INPUTS, states, SHARED if everyone else ATTENDANCE, *[SHARED] * len(numbers))
    run = sharded(rounds, kind.template.layout, specs, (states, ROWS))
    if kind.many:
        each = IN_SWEEP if kind.sweep else EACH_INPUTS
        axes = (each, each_state, None if everyone else 0, *[None] * len(numbers))
        run = jax.vmap(run, in_axes=axes, out_axes=(each_state, 0))
    return run(inputs, state, attendance, *numbers)


# On a CPU, each core already has agents of its own. If XLA also splits small loops over the cores, they wait for each
# other. Measured on 2 cores with batch 1, Q = 600, D = 100: without this pass, a round is 1.4 times as fast for N = 100
# on two devices, and 3 times as fast for N = 10 on one device.
ON_CORES = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
SMALL = 50_000  # samples of all agents times parameters


def compiled_by_size(
    function: Any, on_cores: dict[str, Any] | None = None, small: int = SMALL, **options: Any
) -> Callable[[Problem], Any]:
    """Return (problem) -> the compiled function: compiled quickly if the problem is small, and to run fast otherwise.

    The problem alone decides, so that a run that resumes or continues has the same rounding.
    """
    usual = jax.jit(function, **options)
    large = usual if on_cores is None else jax.jit(function, compiler_options=on_cores, **options)
    quick = jax.jit(function, compiler_options=(on_cores or {}) | QUICK, **options)

    def choose(problem: Problem) -> Any:
        if jax.default_backend() != "cpu":
            return usual
        return quick if problem.samples * problem.dimension <= small else large

    return choose


compiled_chunk = compiled_by_size(_rounds, ON_CORES, static_argnums=0, donate_argnums=2)
