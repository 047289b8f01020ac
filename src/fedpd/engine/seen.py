"""Keep rows for the agents that were present at least once, in memory or in files.

Rows are numbered in the order in which the agents first came. They are in segments of equal length. A new segment is
made when the last one is full, so rows are never moved, and the memory is that of the agents seen. With a folder, a
segment is a file without a name, which the system removes when the process ends.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

IN_MEMORY, IN_FILES = 2**22, 2**30  # bytes of a segment; a file takes no room where nothing was written
NOBODY = -1


class SeenAgents:
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
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            return np.memmap(file, dtype=shape.dtype, mode="w+", shape=whole)

    def take(self, slots: np.ndarray, into: Sequence[np.ndarray], places: np.ndarray) -> None:
        """Copy the rows with these numbers to these places of some arrays."""
        for segment, rows, there in self._parts(slots, places):
            for array, source in zip(into, segment, strict=True):
                array[there] = source[rows]

    def put(self, slots: np.ndarray, values: Sequence[np.ndarray], places: np.ndarray) -> None:
        """Replace the rows with these numbers by the rows at these places of some arrays."""
        for segment, rows, there in self._parts(slots, places):
            for array, target in zip(values, segment, strict=True):
                target[rows] = array[there]

    def _parts(self, slots: np.ndarray, places: np.ndarray) -> Iterator[tuple[Sequence[np.ndarray], Any, Any]]:
        """Return each segment, with the rows in it that belong to some numbers, and their places."""
        order = np.argsort(slots, kind="stable")
        ends = np.searchsorted(slots[order], self.length * np.arange(len(self.segments) + 1))
        for i, segment in enumerate(self.segments):
            some = order[ends[i] : ends[i + 1]]
            if len(some):
                yield segment, slots[some] - i * self.length, places[some]

    def rows(self) -> tuple[np.ndarray, ...]:
        """Return a copy of all rows, each (rows, ...)."""
        arrays = tuple(np.empty((self.number, *shape.shape), shape.dtype) for shape in self.shapes)
        everyone = np.arange(self.number)
        self.take(everyone, arrays, everyone)
        return arrays
