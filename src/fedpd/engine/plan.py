"""The plan of a run, and the state at its start."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from fedpd.base.identity import drop_stale_programs
from fedpd.base.value import fresh
from fedpd.core import Method, Problem, State, Tree, Vector
from fedpd.core.agents import AGENTS, SHARED, Functions, Layout, arrays, arrays_without_samples, with_padding_agents
from fedpd.engine.clock import Timed
from fedpd.engine.execution import is_dealt, shared_arrays, without_tests
from fedpd.engine.loop import Inputs, Program, Template
from fedpd.engine.measure.central import CentralTest
from fedpd.engine.measure.columns import MEASURED, Column
from fedpd.engine.measure.targets import Target
from fedpd.engine.participation import Participation
from fedpd.transforms import Accountant, ExampleAccountant

MEASURED_BYTES = 2**28  # the most memory for the gradients of all agents, if a run measures all agents at once

# The axis of the variants in each array, for jax.vmap.
_axis: Any = 0
_none: Any = None
EACH_STATE, EACH_INPUTS = State(_axis, _axis, _none), Inputs(_none, _axis, _none)
IN_SWEEP = EACH_INPUTS._replace(method=_axis)
EACH_METHOD = Inputs(_none, _none, _axis)


class Plan(NamedTuple):
    """The method, the problem and the settings of a run."""

    algorithm: Method  # the method; in a sweep, the method of the first variant
    problem: Problem  # the problem
    layout: Layout  # how the loop over agents runs
    rounds: int  # T
    every: int  # every how many rounds the run measures
    seeds: Sequence[int]  # the seed of each variant
    many: bool = False  # whether the arrays have an axis of variants
    participation: Participation | None = None  # the rule for who takes part; None: all agents
    stragglers: np.float32 | None = None  # the probability that an agent is a straggler in a round; None: 0
    recorded: tuple[Column, ...] = ()  # the columns to measure besides the usual ones
    store: Path | None = None  # a folder for the agents' state; None: the state is in memory
    debug: bool = False  # whether agents run one after another in Python
    # in a sweep, the methods of the variants as one, whose numbers have an axis of variants
    variants: Method | None = None
    targets: tuple[Target, ...] = ()  # the values that end the run when it reaches all of them
    sample: np.ndarray | None = None  # the agents over which the run measures; None: all of them
    timing: Timed | None = None  # the clock, and the rounds that follow from it; None: the run has no clock
    privacy: Accountant | None = None  # counts epsilon of the messages; None: they are not private
    examples: ExampleAccountant | None = None  # counts epsilon of a sample; None: the oracle is not private
    average: bool = False  # whether the server delivers the running mean of its models
    central: CentralTest | None = None  # the central test set; None: there is none


def prepare(plan: Plan) -> tuple[Program, Template, Inputs]:
    """Return the program of a plan, its template without the method, and the arrays that do not change."""
    problem, layout = plan.problem, plan.layout
    columns = (*MEASURED, *plan.recorded)
    drop_stale_programs(plan.algorithm, plan.recorded)
    measured = _measured_layout(plan)
    functions = plan_functions(plan)
    program = Program(plan.algorithm, functions, layout, plan.participation is not None, columns, measured)
    method = fresh(plan.algorithm if plan.variants is None else plan.variants)
    lazy = problem.lazy and plan.participation is not None and not plan.debug
    dealt = is_dealt(plan.algorithm, problem, layout, plan.participation)
    whole = arrays_without_samples(problem, layout) if lazy else shared_arrays(problem) if dealt else arrays(problem)
    shard = put_on_devices(layout, whole if lazy else with_padding_agents(whole, layout), AGENTS)
    everyone = put_on_devices(layout, without_tests(whole), SHARED) if dealt else None
    keys = [jax.random.key(number, impl="threefry2x32") for number in plan.seeds]
    stragglers: Any = plan.stragglers
    start = None if plan.participation is None else Vector(problem.start)
    sample = None
    if plan.sample is not None:
        some = arrays(problem.subset(plan.sample).in_memory())._replace(agent=plan.sample.astype(np.int32))
        sample = put_on_devices(layout, with_padding_agents(some, measured or layout), AGENTS)
    functions, frozen = program.functions.without_frozen()
    frozen = put_on_devices(layout, frozen, SHARED)
    key = jnp.stack(keys) if plan.many else keys[0]
    central = None if plan.central is None else put_on_devices(layout, plan.central.rows, SHARED)
    inputs = Inputs(shard, key, method, start, stragglers, sample, frozen, everyone, central)
    return program, Template(functions.shared(), *program[2:]), inputs


def plan_functions(plan: Plan) -> Functions:
    """Return the functions of the problem, with those of the central test set."""
    central = () if plan.central is None else plan.central.metrics
    drop_stale_programs([metric.values for _, metric in central])
    return Functions.of(plan.problem)._replace(central=central)


def _measured_layout(plan: Plan) -> Layout | None:
    """Return how the loop over the agents runs over which a run measures; None: as for all agents."""
    layout, problem = plan.layout, plan.problem
    if plan.sample is None and plan.participation is None:
        return None
    number = problem.agents if plan.sample is None else len(plan.sample)
    size = number * problem.dimension * (8 if problem.double else 4)  # of the gradients, if all agents compute at once
    return layout._replace(agents=number, parallel=layout.parallel and size <= MEASURED_BYTES)


def strongly_typed(state: Any) -> Any:
    """Return a state without weak types, which a Python number at the start has and later states have not.

    With them, the second chunk of rounds would be compiled again.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), state)


def put_on_devices(layout: Layout, tree: Tree, spec: PartitionSpec) -> Tree:
    """Return the arrays on the devices of the layout, sharded by the spec."""
    return jax.device_put(tree, None if layout.mesh is None else NamedSharding(layout.mesh, spec))


def on_host(leaf: Any) -> np.ndarray:
    """Return an array on the host; if agents are sharded over several processes, gather it from all of them."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)
