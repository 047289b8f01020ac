"""Samples of many agents in one array, agent after agent, without padding: rows (M, ...) and the agents' first rows."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedpd.core.vectors import Tree

Load = Callable[[np.ndarray], Tree]  # (agents (k,)) -> their samples one after another, leaves (sum of their n_i, ...)


def first_rows(sizes: np.ndarray) -> np.ndarray:
    """Return (N,) the number of each agent's first row, if the agents' samples follow one another.

    Args:
        sizes: (N,) the numbers of samples.

    Examples:
        >>> import numpy as np
        >>> from fedpd.core.rows import first_rows
        >>> first_rows(np.array([2, 0, 3])).tolist()
        [0, 2, 2]
    """
    return np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])


def row_numbers(offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the numbers of the agents' rows, agent after agent: offsets_i, ..., offsets_i + sizes_i - 1.

    Args:
        offsets: (k,) the first row of each agent.
        sizes: (k,) the numbers of samples.

    Examples:
        >>> import numpy as np
        >>> from fedpd.core.rows import row_numbers
        >>> row_numbers(np.array([7, 0]), np.array([2, 3])).tolist()
        [7, 8, 0, 1, 2]
    """
    return np.repeat(offsets - first_rows(sizes), sizes) + np.arange(int(sizes.sum()))


def merged_axes(leaf: np.ndarray) -> np.ndarray:
    """Return (N n, ...) from (N, n, ...), also if a further axis has length 0, for which reshape(-1) fails."""
    agents, samples, *others = leaf.shape
    return leaf.reshape(agents * samples, *others)


def flat_rows(data: Tree, sizes: np.ndarray, offsets: np.ndarray | None, agents: np.ndarray) -> Tree:
    """Return the samples of some agents one after another, leaves (sum of their n_i, ...).

    Args:
        data: Leaves (N, n, ...), of which agent i has the first sizes_i; or leaves (M, ...) if there are offsets.
        sizes: (N,) the numbers of samples.
        offsets: (N,) the first row of each agent; None: the data are (N, n, ...).
        agents: (k,) the numbers of the agents, in the order of the result.
    """

    def take(leaf: Any) -> np.ndarray:
        if offsets is not None:
            return np.asarray(leaf)[rows]
        return merged_axes(np.asarray(leaf))[rows]

    length = jax.tree.leaves(data)[0].shape[1] if offsets is None else 0
    rows = row_numbers(agents.astype(np.int64) * length if offsets is None else offsets[agents], sizes[agents])
    return jax.tree.map(take, data)


def stored(rows: Tree, sizes: np.ndarray) -> tuple[Tree, np.ndarray | None]:
    """Return flat rows as a problem holds them: (N, n, ...) and None if all agents have n, else the rows and offsets.

    Args:
        rows: Leaves (M, ...), agent after agent.
        sizes: (N,) the numbers of samples.
    """
    if (sizes != sizes[0]).any() or not sizes[0]:
        return rows, first_rows(sizes)
    return jax.tree.map(lambda leaf: leaf.reshape(len(sizes), int(sizes[0]), *leaf.shape[1:]), rows), None


def rows_by_device(
    data: Tree, offsets: np.ndarray, sizes: np.ndarray, devices: int, capacity: int | None = None
) -> tuple[Tree, np.ndarray]:
    """Return flat rows in equal parts, one per device with the samples of its own agents, and the offsets in its part.

    Args:
        data: Leaves (M, ...).
        offsets: (N,) the first row of each agent; N is a multiple of `devices`.
        sizes: (N,) the numbers of samples.
        devices: The number of parts. Each has the rows of the part with the most samples; repeated rows
            fill it up, or zeros if there are no rows.
        capacity: The number of rows of each part, at least that many; None: that many.
    """
    of_parts, lengths = offsets.reshape(devices, -1), sizes.reshape(devices, -1)
    most = max(1, int(lengths.sum(axis=1).max()), capacity or 0)
    rows = np.zeros((devices, most), np.int64)
    for part, starts, own in zip(rows, of_parts, lengths, strict=True):
        numbers = row_numbers(starts, own)
        part[: len(numbers)] = numbers
    placed = np.concatenate([first_rows(own) for own in lengths])

    def take(leaf: np.ndarray) -> np.ndarray:
        if not len(leaf):  # nobody is present, so there is no row to repeat
            return np.zeros((rows.size, *leaf.shape[1:]), leaf.dtype)
        return leaf[rows.reshape(-1)]

    return jax.tree.map(take, data), placed
