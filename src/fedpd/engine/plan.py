"""The plan of a run, how its loop over agents runs, and the arrays at its start.

The loop is chosen by the backend and by the work per step. On a CPU, the agents of a round may be dealt to the cores,
so that all cores have equally many. Otherwise each device runs those agents of a round whose samples it has. Their
number varies: of 50 agents on two devices, the busier one has 28 in the mean, and it has room for 48. The devices of a
CPU share the memory, so each can read the samples of all agents without a copy. Then the j-th agent of a round can run
on device j modulo D. A round is a chunk of its own, because agents change devices between rounds. That is worth it if a
round takes long.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpd.base import checkpoint
from fedpd.base.checks import choice, count, refuse
from fedpd.base.identity import drop_stale_programs, fingerprint
from fedpd.base.value import fresh
from fedpd.core import Method, Problem, State, Tree, Vector
from fedpd.core.agents import (
    AGENTS,
    AXIS,
    SHARED,
    Functions,
    Layout,
    Shard,
    arrays,
    arrays_without_samples,
    with_padding_agents,
)
from fedpd.engine.clock import Timed
from fedpd.engine.loop import Inputs, Program, Template
from fedpd.engine.measure.columns import MEASURED, CentralTest, Column
from fedpd.engine.measure.history import Target
from fedpd.engine.participation import Participation, most_present
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


SMALL_STEP = 2**13  # if a local step reads at most this many numbers, all agents run at once
EVEN_SIZES = 1.3  # if agents do epochs, and the largest has at most so many times the mean of the samples, as well
SMALL_PROBLEM = 2**17  # if a full gradient of all agents reads fewer numbers, one device is faster
LONG_ROUND = 2**25  # numbers that a device reads in a round of one local step per agent, at least
MOST_COPIED = 2**27  # of samples that cannot be shared, at most
ALIGNMENT = 64  # bytes; JAX does not copy a NumPy array on a CPU if its address is a multiple of this


Execution = Literal["auto", "sequential", "parallel", "debug"]


def choose_layout(
    algorithm: Method,
    problem: Problem,
    execution: Execution = "auto",
    devices: int | None = None,
    participation: Participation | None = None,
) -> Layout:
    """Return whether agents run one after another or all at once, and on which devices.

    On a CPU, agents run one after another if a step is large (full gradients, networks), because the data of one agent
    stays in the cache. They run all at once if steps are small, because that shares the overhead of a step, and on
    accelerators. Measured on 2 cores with float32, N=100, n=400, D=100 and Q=8 full gradients: a round takes 3.5 ms one
    after another and 7.5 ms all at once. If agents do epochs, they all wait for the largest when they run at once: with
    20 agents of 83 to 1,775 samples (mean 648), 5 epochs in batches of 50 and D=784, a round takes 38 ms one after
    another and 109 ms at once (`python -m benchmarks.local_epochs`). `participation` says which agents take part in a
    round; None: all of them.
    """
    choice("execution", execution, get_args(Execution))
    if execution == "debug":
        return Layout(problem.agents, parallel=False, mesh=None)
    largest = int(problem.sizes.max())
    reads = max(problem.dimension, sample_size(problem))
    step = (algorithm.samples_per_step or largest) * reads
    even = algorithm.samples_per_step is not None or (
        problem.offsets is None and problem.load is None
    )  # all agents work the same
    if algorithm.local_epochs is not None:
        even = even and bool(largest <= EVEN_SIZES * problem.sizes.mean())
    at_once = jax.default_backend() != "cpu" or (even and step <= SMALL_STEP)
    available = jax.devices()
    if devices is None:
        agents = (
            problem.agents if participation is None else most_present(participation, problem.agents, problem.agents)
        )
        worth_it = agents * largest * reads >= SMALL_PROBLEM
        devices = min(problem.agents, len(available)) if worth_it else 1
    remedy = "Leave it out, and fedpd chooses"
    if count("devices", devices, remedy) > min(problem.agents, len(available)):
        rule = f"must be at most {len(available)}, the available devices, and {problem.agents}, the agents"
        refuse("devices", devices, rule, remedy)
    mesh = Mesh(np.array(available[:devices]), (AXIS,)) if devices > 1 else None
    return Layout(problem.agents, execution == "parallel" or (execution == "auto" and at_once), mesh)


def sample_size(problem: Problem) -> int:
    """Return how many numbers a sample holds."""
    axes = 2 if problem.offsets is None and problem.load is None else 1  # before the axes of a sample
    return sum(int(np.prod(leaf.shape[axes:])) for leaf in jax.tree.leaves(problem.data))


def is_dealt(algorithm: Method, problem: Problem, layout: Layout, rule: Participation | None) -> bool:
    """Return whether the agents of a round are dealt to the devices."""
    if (
        layout.mesh is None
        or layout.parallel
        or rule is None
        or problem.offsets is not None
        or problem.load is not None
    ):
        return False
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return False
    step = (algorithm.samples_per_step or int(problem.sizes.max())) * max(problem.dimension, sample_size(problem))
    return most_dealt(rule, layout) * step >= LONG_ROUND and _copied_bytes(problem, layout) <= MOST_COPIED


def most_dealt(rule: Participation, layout: Layout) -> int:
    """Return how many agents of a round are dealt to one device at most."""
    assert layout.mesh is not None
    return -(-most_present(rule, layout.agents, layout.agents) // layout.mesh.size)


def _copied_bytes(problem: Problem, layout: Layout) -> int:
    """Return the bytes of samples that each device's own part of them would hold once more."""
    assert layout.mesh is not None
    devices, leaves = layout.mesh.size, jax.tree.leaves(problem.data)
    whole = problem.agents % devices == 0  # otherwise padding agents move all samples
    return sum(leaf.nbytes for leaf in leaves if not whole or leaf.nbytes // devices % ALIGNMENT)


def shared_arrays(problem: Problem) -> Shard:
    """Return the arrays of a problem at addresses that several devices can share."""
    return jax.tree.map(_aligned, arrays(problem))


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy, at an address that is a multiple of `ALIGNMENT`."""
    if array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    placed = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def without_tests(shard: Shard) -> Shard:
    """Return the arrays that local steps read."""
    return shard._replace(test=None, test_sizes=None, test_offset=None)


def identity(plan: Plan) -> dict[str, Any]:
    """Return the identity of a run. A run can resume from a checkpoint that has the same identity.

    Raises:
        UnidentifiedError: Another process could not identify a function of the user's own.
    """
    grid = {jax.tree_util.keystr(path): leaf.tolist() for path, leaf in jax.tree.leaves_with_path(plan.variants)}
    return run_identity(plan, plan.algorithm, plan.rounds) | {"seeds": list(plan.seeds), "grid": grid}


def run_identity(plan: Plan, algorithm: Method, rounds: int) -> dict[str, Any]:
    """Return the identity of the first rounds of one variant, without its seed. A run with the same one continues it.

    Raises:
        UnidentifiedError: Another process could not identify a function of the user's own.
    """
    buffer = None if plan.timing is None else plan.timing.buffer
    options: dict[str, Any] = ({} if buffer is None else {"buffer": buffer}) | (
        {"average": True} if plan.average else {}
    )
    if plan.central is not None:
        options["test"] = plan.central.identity()
    return options | {
        "algorithm": algorithm.spec.plain(),
        "problem": problem_identity(plan.problem),
        "metrics_every": plan.every,
        "participation": _rule(plan.participation, rounds),
        "stragglers": None if plan.stragglers is None else float(plan.stragglers),
        "record": {column.name: fingerprint(column.measure, column.merge) for column in plan.recorded},
        "sample": None if plan.sample is None else checkpoint.fingerprint(plan.sample),
    }


def problem_identity(problem: Problem) -> dict[str, Any]:
    """Return the identity of a problem: hashes of its functions' code and captured values, and of its arrays."""
    judge = problem.evaluation
    judged = () if judge is None else (judge.correct, judge.losses, *([judge.metrics] if judge.metrics else ()))
    loaders = (problem.load, None if judge is None else judge.load)
    return (
        ({} if loaders == (None, None) else {"loaders": fingerprint(*loaders)})
        | {
            "name": problem.name,
            "data": problem.data_hash,
            "start": checkpoint.fingerprint(problem.start),
            "tests": problem.tests_hash,
            "losses": fingerprint(problem.losses),
            "penalty": fingerprint(problem.penalty),
            "judged by": fingerprint(*judged, problem.block, problem.statistics),
        }
        | ({} if problem.random is None else {"random": fingerprint(problem.random)})
    )


def _rule(rule: Participation | None, rounds: int) -> Any:
    """Return what identifies who is present in the first rounds. A longer schedule may begin with the same rows."""
    if rule is None:
        return None
    return {rule.kind: checkpoint.fingerprint(rule.numbers[:rounds] if rule.kind == "schedule" else rule.numbers)}
