"""What is to be run, and the state that it begins with."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tree_math import Vector

from fedpd.core import Algorithm, Array, Problem, State, Tree
from fedpd.core.agents import AGENTS, SHARED, Functions, Layout, Shard, arrays, sharded, with_padding_agents
from fedpd.engine import disk
from fedpd.engine.columns import MEASURED, Column
from fedpd.engine.debug import AgentByAgent, init_each
from fedpd.engine.metrics import Metrics, measure
from fedpd.engine.participation import Participation
from fedpd.engine.rounds import STATE, Inputs, Program, init_agents

VariantSettings = Mapping[str, Array] | None
HostPlace = disk.OnDisk | AgentByAgent

# Which axis is that of the variants: axes in the place of arrays.
_axis: Any = 0
_none: Any = None
EACH_STATE, EACH_INPUTS = State(_axis, _axis, _none), Inputs(_none, _axis, _none, _none, _axis)


class Plan(NamedTuple):
    """What is to be run.

    Attributes:
        algorithm: The method; in a sweep, that of the first variant.
        problem: The problem.
        layout: How the loop over agents is executed.
        rounds: T.
        every: Rounds between two measured ones.
        seeds: The seed of each variant.
        many: Whether there are several variants at once, as opposed to one by itself.
        participation: The rule for who takes part; None: everyone.
        stragglers: The probability that an agent does less; None: 0.
        recorded: What is measured besides the usual columns.
        store: A folder for the agents' state; None: memory.
        debug: Whether agents take their turns in Python.
        build: Makes the algorithm of a variant from its settings, in a sweep.
        settings: The settings of the variants by name, each (variants,).
    """

    algorithm: Algorithm
    problem: Problem
    layout: Layout
    rounds: int
    every: int
    seeds: Sequence[int]
    many: bool = False
    participation: Participation | None = None
    stragglers: np.float32 | None = None
    recorded: tuple[Column, ...] = ()
    store: Path | None = None
    debug: bool = False
    build: Callable[..., Algorithm] | None = None
    settings: Mapping[str, np.ndarray] | None = None


class Begun(NamedTuple):
    """A run at its start.

    Attributes:
        place: Where the agents are, if not in memory.
        program: What is compiled.
        inputs: The arrays that do not change.
        state: The state at the start.
        metrics: What is measured there.
    """

    place: HostPlace | None
    program: Program
    inputs: Inputs
    state: State
    metrics: Metrics


def begin(plan: Plan) -> Begun:
    """Set all agents to the start, and measure it."""
    problem, layout, who = plan.problem, plan.layout, plan.participation
    kind = None if who is None else who.kind
    columns = (*MEASURED, *plan.recorded)
    program = Program(plan.algorithm, Functions.of(problem), layout, kind, columns, plan.build)
    on_host, start = arrays(problem), Vector(problem.start)
    shard = put_on_devices(layout, with_padding_agents(on_host, layout), AGENTS)
    keys = [jax.random.key(number, impl="threefry2x32") for number in plan.seeds]
    stragglers: Any = plan.stragglers
    settings: Any = plan.settings
    numbers = None if who is None else who.numbers
    inputs = Inputs(shard, jnp.stack(keys) if plan.many else keys[0], numbers, stragglers, settings)
    if plan.store is not None or plan.debug:
        place, agents = _begin_on_host(plan, program, on_host, shard, start)
        state = State(agents, jax.jit(plan.algorithm.server)(start), jnp.int32(0))
        return Begun(place, program, inputs, state, place.measure(program, shard, agents, False))
    state, metrics = _begin(program, shard, start, settings)
    if plan.many and settings is None:
        repeat = partial(jax.tree.map, lambda leaf: jnp.stack([leaf] * len(plan.seeds)))
        state = State(repeat(state.agents), repeat(state.server), state.round)
    return Begun(None, program, inputs, state, metrics)


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, shard: Shard, start: Vector, settings: VariantSettings) -> tuple[State, Metrics]:
    def begin(shard: Shard, start: Vector, settings: VariantSettings) -> tuple[State, Metrics]:
        chosen = program.of(settings)
        agents = init_agents(chosen, shard, start)
        metrics = measure(*chosen[:3], shard, agents, False, chosen.columns)
        return State(agents, chosen.algorithm.server(start), jnp.int32(0)), metrics

    run = sharded(begin, program.layout, (AGENTS, SHARED, SHARED), (STATE, SHARED))
    if settings is not None:
        run = jax.vmap(run, in_axes=(None, None, 0), out_axes=(EACH_STATE, None))
    return run(shard, start, settings)


def _begin_on_host(plan: Plan, program: Program, on_host: Shard, shard: Shard, start: Vector) -> tuple[HostPlace, Any]:
    if plan.store is None:
        return AgentByAgent(), init_each(program, shard, start)
    block = disk.block_size(program, on_host, start)
    filled = with_padding_agents(on_host, plan.layout, block=block)
    store = disk.create(plan.store, program, filled, block, start, partial(put_on_devices, plan.layout))
    return disk.OnDisk(store, lambda part: None), store.agents


def put_on_devices(layout: Layout, tree: Tree, spec: PartitionSpec) -> Tree:
    """Return the arrays on the devices of the layout, sharded as the spec says."""
    return jax.device_put(tree, None if layout.mesh is None else NamedSharding(layout.mesh, spec))
