"""Choose how the loop over agents runs, by the backend and by the work per step.

On a CPU, the agents of a round may be dealt to the cores, so that all cores have equally many. Otherwise each device
runs those agents of a round whose samples it has. Their number varies: of 50 agents on two devices, the busier one has
28 in the mean, and it has room for 48. The devices of a CPU share the memory, so each can read the samples of all
agents without a copy. Then the j-th agent of a round can run on device j modulo D. A round is a chunk of its own,
because agents change devices between rounds. That is worth it if a round takes long.
"""

from typing import Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from fedpd.base.checks import choice, count, refuse
from fedpd.core import Method, Problem
from fedpd.core.agents import AXIS, Layout, Shard, arrays
from fedpd.engine.participation import Participation, most_present

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
