"""Deal the agents of a round to the cores of a CPU, so that all cores have equally many.

Otherwise each device runs those agents of a round whose samples it has. Their number varies: of 50 agents on two
devices, the busier one has 28 in the mean, and it has room for 48. The devices of a CPU share the memory, so each can
read the samples of all agents without a copy. Then the j-th agent of a round can run on device j modulo D. A round is a
chunk of its own, because agents change devices between rounds. That is worth it if a round takes long.
"""

import jax
import numpy as np

from fedpd.core import Method, Problem
from fedpd.core.agents import Layout, Shard, arrays
from fedpd.engine.execution import sample_size
from fedpd.engine.participation import Participation, most_present

LONG_ROUND = 2**25  # numbers that a device reads in a round of one local step per agent, at least
COPIED_BYTES = 2**27  # of samples that cannot be shared, at most
ALIGNMENT = 64  # bytes; JAX does not copy a NumPy array on a CPU if its address is a multiple of this


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
    return most_dealt(rule, layout) * step >= LONG_ROUND and _copied_bytes(problem, layout) <= COPIED_BYTES


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
