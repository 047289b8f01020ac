"""Keep rows for the agents that were present at least once, in memory or in files.

Rows are numbered in the order in which the agents first came. They are in segments of equal length. A new segment is
made when the last one is full, so rows are never moved, and the memory is that of the agents seen. With a folder, a
segment is a file without a name, which the system removes when the process ends.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedpd.base.atomic import nameless_file

IN_MEMORY, IN_FILES = 2**22, 2**30  # bytes of a segment; a file takes no room where nothing was written
NOBODY = -1


class Segment(NamedTuple):
    """Some rows, and the number of the first of them."""

    arrays: tuple[np.ndarray, ...]
    first: int


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
        for segment, some in self._parts(slots):
            for array, source in zip(into, segment.arrays, strict=True):
                array[places[some]] = source.take(slots[some] - segment.first, axis=0)

    def put(self, slots: np.ndarray, values: Sequence[np.ndarray], places: np.ndarray) -> None:
        """Replace the rows with these numbers, which ascend, by the rows at these places of some arrays."""
        for segment, some in self._parts(slots):
            for array, target in zip(values, segment.arrays, strict=True):
                target[slots[some] - segment.first] = array.take(places[some], axis=0)

    def _parts(self, slots: np.ndarray) -> Iterator[tuple[Segment, slice]]:
        """Return each segment that holds some of the rows with these numbers, and which of the numbers it holds."""
        firsts = self.length * np.arange(len(self.segments) + 1)
        ends = np.searchsorted(slots, firsts).tolist()
        for i, arrays in enumerate(self.segments):
            if ends[i] < ends[i + 1]:
                yield Segment(arrays, i * self.length), slice(ends[i], ends[i + 1])

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
