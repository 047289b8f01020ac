"""Ragged data: the samples of all agents one after another, and how many each agent has. Nothing is padded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array, as_labels, owned, seal
from fedpd.base.checks import FedpdError, refuse
from fedpd.core import Tree
from fedpd.core.rows import first_rows, row_numbers

CHUNK = 2**20  # numbers that one check looks at, so that it needs little memory


@dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """The samples of N agents, one agent after another. Made by `ragged`; as a sequence it has one entry per agent.

    Attributes:
        rows: A pytree of arrays (M, ...).
        sizes: (N,) the numbers of samples; their sum is M.
    """

    rows: Tree
    sizes: np.ndarray

    @cached_property
    def offsets(self) -> np.ndarray:
        """(N,) the number of each agent's first row."""
        return first_rows(self.sizes)

    @property
    def sample(self) -> Tree:
        """Arrays (0, ...) with the shape and the type of a sample."""
        return jax.tree.map(lambda leaf: leaf[:0], self.rows)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, agent: int) -> Any:
        if not -len(self) <= agent < len(self):
            raise IndexError(f"agent {agent} is not one of the {len(self)} agents")
        start = int(self.offsets[agent])
        return jax.tree.map(lambda leaf: leaf[start : start + int(self.sizes[agent])], self.rows)

    def __iter__(self) -> Iterator[Any]:
        return (self[agent] for agent in range(len(self)))

    def __repr__(self) -> str:
        leaves = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(self.rows))
        return f"Ragged({len(self):,} agents, {int(self.sizes.sum()):,} samples, rows {leaves})"

    def map(self, function: Callable[[Tree], Tree]) -> "Ragged":
        """Return the data with function(rows) as its rows; the function must keep the number and order of the rows."""
        return replace(self, rows=function(self.rows))

    def take(self, agents: np.ndarray) -> "Ragged":
        """Return the data of the agents with these numbers, in this order."""
        rows = row_numbers(self.offsets[agents], self.sizes[agents])
        return Ragged(jax.tree.map(lambda leaf: seal(leaf[rows]), self.rows), self.sizes[agents])


def ragged(rows: Tree, sizes: Sequence[int] | np.ndarray) -> Ragged:
    """Return data of agents with different numbers of samples, in the memory of the samples.

    `problems.from_losses` and the other functions that take data of agents accept it. A million agents cost no
    Python object each.

    Args:
        rows: A pytree of arrays (M, ...): first the samples of agent 0, then those of agent 1, and so on. NumPy arrays
            that you could still change are copied once. Arrays of JAX and files that are mapped for reading
            (`np.load(path, mmap_mode="r")`) are not.
        sizes: (N,) the number of samples of each agent; their sum must be M.

    Raises:
        FedpdError: If the sizes are not whole numbers of at least 0, or their sum is not M.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> three = data.ragged({"a": np.arange(6.0)}, sizes=[1, 3, 2])
        >>> len(three), three[1]["a"].tolist()
        (3, [1.0, 2.0, 3.0])
    """
    numbers = checked_sizes(sizes)
    rows = jax.tree.map(lambda leaf: owned(as_labels(leaf, "rows", "Give one array per entry of a sample")), rows)
    shapes = [leaf.shape for leaf in jax.tree.leaves(rows)]
    if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
        refuse("shapes of rows", shapes, "must be arrays with the same first axis, one row per sample", "Pair them")
    if numbers.sum() != shapes[0][0]:
        rule = f"must be {shapes[0][0]}, the number of rows"
        refuse("sum of sizes", int(numbers.sum()), rule, "Give the number of samples of each agent, in the rows' order")
    return Ragged(rows, numbers)


def checked_sizes(sizes: Any) -> np.ndarray:
    """Return (N,) numbers of samples as int32, after checking that they are whole numbers of at least 0."""
    remedy = "Give one number of samples per agent"
    numbers = as_array(sizes, "sizes", remedy)
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
        refuse("sizes", f"{numbers.dtype}{list(numbers.shape)}", "must be a list of at least one whole number", remedy)
    if numbers.min() < 0:
        agent = int(numbers.argmin())
        refuse(f"sizes[{agent}]", int(numbers[agent]), "must be at least 0", remedy)
    if numbers.max() >= 2**31:
        agent = int(numbers.argmax())
        refuse(f"sizes[{agent}]", int(numbers[agent]), "must be below 2^31", remedy)
    return numbers.astype(np.int32)


def check_no_agent_is_empty(sizes: np.ndarray) -> None:
    """Refuse an agent without samples; the message says how many there are."""
    empty = np.flatnonzero(sizes == 0)
    if empty.size:
        others = f" and {empty.size - 1} more agents have" if empty.size > 1 else " has"
        raise FedpdError(f"agent {empty[0]}{others} no samples: its f_i is not defined. Leave the agent out.")


def check_finite(rows: Tree, sizes: np.ndarray, agents: np.ndarray | None = None) -> None:
    """Refuse flat rows with NaN or infinity; the message names the agent.

    Args:
        rows: Leaves (M, ...), agent after agent.
        sizes: (k,) the numbers of samples.
        agents: (k,) the numbers of the agents; None: 0 to k - 1.
    """
    for leaf in jax.tree.leaves(rows):
        if not jnp.issubdtype(leaf.dtype, np.inexact) or not leaf.size:
            continue
        step = max(1, CHUNK // max(1, leaf[0].size))
        for first in range(0, len(leaf), step):
            finite = np.isfinite(leaf[first : first + step])
            if not finite.all():
                row = first + int(np.argwhere(~finite)[0][0])
                place = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
                agent = place if agents is None else int(agents[place])
                raise FedpdError(f"data of agent {agent} holds NaN or infinity. Clean or drop those samples.")
