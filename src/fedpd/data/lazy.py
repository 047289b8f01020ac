"""Lazy data: a function that loads an agent's samples when a round needs them, for data larger than memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedpd.base.arrays import as_labels, owned, seal
from fedpd.base.checks import FedpdError, refuse
from fedpd.core import Tree
from fedpd.core.rows import Load
from fedpd.data.ragged import Ragged, check_finite, checked_sizes

LoadOne = Callable[[int], Tree]  # (agent) -> its samples, leaves (n_i, ...)


@dataclass(frozen=True, eq=False, repr=False)
class Lazy:
    """The samples of N agents, which are not in memory. Made by `lazy`; as a sequence it loads one entry per agent.

    Attributes:
        load: (agents (k,)) -> their samples one after another, leaves (sum of their n_i, ...). It returns the same
            samples at every call, and may be called from another thread.
        sizes: (N,) the numbers of samples.
        sample: Arrays (0, ...) with the shape and the type of a sample.
    """

    load: Load
    sizes: np.ndarray
    sample: Tree

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, agent: int) -> Any:
        if not -len(self) <= agent < len(self):
            raise IndexError(f"agent {agent} is not one of the {len(self)} agents")
        return self.rows_of(np.array([agent % len(self)]))

    def __iter__(self) -> Iterator[Any]:
        return (self[agent] for agent in range(len(self)))

    def __repr__(self) -> str:
        leaves = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in jax.tree.leaves(self.sample))
        return f"Lazy({len(self):,} agents, {int(self.sizes.sum()):,} samples of {leaves})"

    def rows_of(self, agents: np.ndarray) -> Tree:
        """Return the samples of some agents one after another, after checking them.

        Args:
            agents: (k,) the numbers of the agents.

        Raises:
            FedpdError: If the loader fails, or returns another number, shape or type of samples than it should, or a
                number that is not finite.
        """
        rows, sizes = self.load(agents), self.sizes[agents]
        _check(rows, self.sample, int(sizes.sum()), f"samples of {len(agents)} agents")
        check_finite(rows, sizes, agents)
        return rows

    def map(self, function: Callable[[Tree], Tree]) -> "Lazy":
        """Return the data with function(rows) in place of its rows.

        Args:
            function: It keeps the number and the order of the rows, and must accept 0 rows.
        """
        return replace(self, load=partial(_mapped, function, self.load), sample=function(self.sample))

    def take(self, agents: np.ndarray) -> "Lazy":
        """Return the data of the agents with these numbers, in this order."""
        return replace(self, load=partial(_chosen, self.load, agents), sizes=self.sizes[agents])

    def in_memory(self) -> Ragged:
        """Return all samples, loaded into memory."""
        rows = self.rows_of(np.arange(len(self)))
        return Ragged(jax.tree.map(owned, rows), self.sizes)


def lazy(load: LoadOne, sizes: Sequence[int] | np.ndarray) -> Lazy:
    """Return data of agents that fedpd loads cohort by cohort, so that they need not fit into memory.

    Give it to `problems.from_losses` and run `simulate(..., cohort=K)`. The results equal those of the same samples in
    memory.

    Args:
        load: (agent) -> its samples, a pytree of arrays (n_i, ...). It must return the same samples at every call, and
            it may be called from another thread than the one that runs the rounds.
        sizes: (N,) the number of samples of each agent.

    Raises:
        FedpdError: If the sizes are not whole numbers of at least 0, or `load` fails for the first agent with samples.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> three = data.lazy(lambda i: {"a": np.full(i + 1, float(i))}, sizes=[1, 2, 3])
        >>> three[2]["a"].tolist()
        [2.0, 2.0, 2.0]
    """
    numbers = checked_sizes(sizes)
    if not callable(load):
        refuse("load", load, "must be a function of an agent's number", "Give e.g. lambda i: np.load(f'{i}.npy')")
    first = int(np.argmax(numbers > 0))
    example = _loaded(load, first, int(numbers[first]))
    sample = jax.tree.map(lambda leaf: leaf[:0], example)
    return Lazy(partial(one_by_one, load, numbers, sample), numbers, sample)


def one_by_one(load: LoadOne, sizes: np.ndarray, sample: Tree, agents: np.ndarray) -> Tree:
    """Return the samples of some agents, loaded one agent after another."""
    parts = []
    for agent in agents.tolist():
        if sizes[agent]:
            part = _loaded(load, agent, int(sizes[agent]))
            _check(part, sample, int(sizes[agent]), f"samples of agent {agent}")
            parts.append(part)
    return jax.tree.map(lambda *leaves: seal(np.concatenate(leaves)), sample, *parts)


def _loaded(load: LoadOne, agent: int, size: int) -> Tree:
    """Return the samples of one agent as arrays with `size` rows."""
    try:
        loaded = load(agent)
    except Exception as error:  # the user's function may raise anything
        reason = f"load({agent}) failed with {type(error).__name__}: {error}".rstrip(".")
        raise FedpdError(f"{reason}. Correct the source of agent {agent}, or leave the agent out.") from error
    samples = jax.tree.map(lambda leaf: as_labels(leaf, f"load({agent})", "Return arrays of numbers"), loaded)
    shapes = [leaf.shape for leaf in jax.tree.leaves(samples)]
    if not shapes or () in shapes or {shape[0] for shape in shapes} != {size}:
        rule = f"must be arrays with {size} rows, as sizes[{agent}] says"
        refuse(f"shapes of load({agent})", shapes, rule, "Correct the size, or what load returns")
    return samples


def _check(rows: Tree, sample: Tree, number: int, what: str) -> None:
    """Refuse rows whose number, structure, shape or type differs from the sample's."""
    found, wanted = str(jax.tree.structure(rows)), str(jax.tree.structure(sample))
    if found != wanted:
        rule = f"must be {wanted}, as for the first agent"
        refuse(f"{what}: structure", found, rule, "Return the same keys for all agents")
    for leaf, like in zip(jax.tree.leaves(rows), jax.tree.leaves(sample), strict=True):
        if leaf.shape != (number, *like.shape[1:]):
            rule = f"must be {(number, *like.shape[1:])}"
            refuse(f"{what}: shape", leaf.shape, rule, "Bring all samples to the shape of the first agent's")
        if leaf.dtype != like.dtype:
            rule = f"must be {like.dtype}, as for the first agent"
            refuse(f"{what}: type", str(leaf.dtype), rule, f"Return {like.dtype} for all agents")


def _mapped(function: Callable[[Tree], Tree], load: Load, agents: np.ndarray) -> Tree:
    return function(load(agents))


def _chosen(load: Load, kept: np.ndarray, agents: np.ndarray) -> Tree:
    return load(kept[agents])
