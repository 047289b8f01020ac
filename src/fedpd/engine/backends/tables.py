"""Make the table of a chunk of rounds: the rows of the agents that are present in any of them, and who they are."""

from typing import Any, NamedTuple

import numpy as np

from fedpd.engine.backends.agent_rows import AgentRows
from fedpd.engine.backends.cohort_rounds import NEVER, Attendance, Table
from fedpd.engine.backends.dealing import is_dealt, most_dealt
from fedpd.engine.backends.lazy_rows import most_rounds
from fedpd.engine.loop import LONGEST_CHUNK
from fedpd.engine.participation import most_present
from fedpd.engine.plan import Plan

TABLE_BYTES = 2**24  # of the rows of a chunk; at least one round


class Width(NamedTuple):
    """The sizes of the arrays of a chunk.

    Attributes:
        rounds: The longest chunk.
        columns: Agents per round and device.
        rows: Rows of the table per device, without the last, which is nobody's.
        block: The agents whose data a device has.
        devices: The number of devices.
        dealt: Whether the agents of a round are dealt to the devices, which all have the data of all agents.
    """

    rounds: int
    columns: int
    rows: int
    block: int
    devices: int
    dealt: bool = False


class Call(NamedTuple):
    """The arrays of one variant for one chunk, and where its rows belong."""

    table: Table
    attendance: Attendance
    slots: np.ndarray  # rows of the seen agents
    places: np.ndarray  # their rows in the table


def gather(seen: AgentRows, here: np.ndarray, width: Width, shapes: Any) -> Call:
    """Return the table of the agents of a chunk, and who is present in its rounds.

    Args:
        seen: The rows of all agents seen, to which this adds the agents that come for the first time.
        here: (rounds, C) the agents of each round; N where nobody is.
        width: The sizes of the arrays.
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
    return Call(Table(tuple(rows[:-1]), rows[-1]), Attendance(agents, slots, data), numbers, places)


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
