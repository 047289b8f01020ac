"""Select agents, merge them, or set some of their samples aside for tests.

All functions return new data.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import jax
import numpy as np

from fedpd.base.arrays import as_array, as_labels
from fedpd.base.checks import FedpdError, count, nearest, positive, refuse
from fedpd.base.typed import explained
from fedpd.core import Tree
from fedpd.core.rows import Load, first_rows, row_numbers
from fedpd.data.federated import ByAgent, Federated, Samples
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged

POSITIONS = "Give positions, names, or one truth value per agent"
Agent = int | str  # a position in `names`, or a name


@explained
def take(data: Federated, agents: Sequence[Agent] | np.ndarray) -> Federated:
    """Return the data of some agents only, in the given order.

    Args:
        data: The data.
        agents: Positions, names, or a mask (N,) such as `data.sizes > 0`.
    """
    places = _places(data, agents)
    if not places:
        raise FedpdError(f"no agent of {data.name} is chosen. Choose at least one.")
    _check_once(data, places)
    return replace(
        data,
        names=tuple(data.names[i] for i in places) if isinstance(data.names, tuple) else data.names[places],
        train=_chosen(data.train, places),
        test=_chosen(data.test, places),
    )


def _chosen(samples: ByAgent, places: list[int]) -> ByAgent:
    """Return the samples of some agents, in the form that they have."""
    return [samples[i] for i in places] if isinstance(samples, list) else samples.take(np.asarray(places))


@explained
def merge(data: Federated, groups: Sequence[Sequence[Agent]]) -> Federated:
    """Return data with one agent per group, which has the samples of all members.

    Args:
        data: The data.
        groups: Groups of positions or names; every agent is in exactly one group.

    Returns:
        Data whose agents are named after their members, joined with "+".
    """
    places = [_places(data, group) for group in groups]
    if not all(places):
        refuse("group", (), "must have at least one agent", "Drop the empty groups")
    members = [i for group in places for i in group]
    _check_once(data, members)
    for i in sorted(set(range(data.agents)) - set(members)):
        refuse("agent", data.names[i], "is in no group", "Put every agent into a group, or remove it with take() first")
    return replace(
        data,
        names=tuple("+".join(data.names[i] for i in group) for group in places),
        train=_merged(data.train, places),
        test=_merged(data.test, places),
    )


def _merged(samples: ByAgent, groups: list[list[int]]) -> ByAgent:
    """Return the samples of groups of agents, in the form that they have."""
    if isinstance(samples, list):
        return [pool([samples[i] for i in group]) for group in groups]
    ordered = samples.take(np.array([i for group in groups for i in group]))
    first, sizes = first_rows(np.array([len(group) for group in groups])), ordered.sizes
    together = np.add.reduceat(sizes, first).astype(np.int32)
    if isinstance(ordered, Ragged):
        return Ragged(ordered.rows, together)
    return replace(ordered, load=partial(_load_groups, ordered.load, groups, first), sizes=together)


def _load_groups(load: Load, groups: list[list[int]], first: np.ndarray, agents: np.ndarray) -> Tree:
    """Return the samples of some groups, whose members follow one another from `first`."""
    return load(row_numbers(first[agents], np.array([len(groups[i]) for i in agents])))


@explained
def paper_groups(writers: int = 100, agents: int = 90) -> list[tuple[int, ...]]:
    """Return the groups for `merge` of the paper's second experiment.

    The first `writers - agents` agents hold two writers each, writers 2i and 2i + 1; the others hold one.

    Args:
        writers: The number of writers, from `agents` to 2 `agents`.
        agents: N, the number of groups.

    Examples:
        >>> from fedpd import data
        >>> data.paper_groups(5, 3)
        [(0, 1), (2, 3), (4,)]
    """
    count("agents", agents, "Give N", bits=20)
    count("writers", writers, "Give the number of writers", bits=21)
    if not agents <= writers <= 2 * agents:
        refuse("writers", writers, f"must be {agents} to {2 * agents} for {agents} agents", "Give one or two per agent")
    pairs = writers - agents
    return [(2 * i, 2 * i + 1) for i in range(pairs)] + [(i,) for i in range(2 * pairs, writers)]


@explained
def split(data: Federated, share: float = 0.1, *, seed: int = 0) -> Federated:
    """Return the data with some of each agent's training samples set aside for tests, drawn without replacement.

    Of n samples, round(share n) are set aside, but at least 1 and at most n - 1; an agent with a single sample keeps it
    for training. Which samples are drawn depends only on the seed and the agent's name, not on the other agents.
    Samples keep their order.

    Args:
        data: Data without test samples.
        share: The share to set aside, in (0, 1).
        seed: The seed of the draws.
    """
    if data.test_sizes.any():
        raise FedpdError(f"{data.name} has {data.test_sizes.sum()} test samples already. Split data that has none.")
    positive("share", share, "Give the share for tests, e.g. 0.1")
    if share >= 1:
        refuse("share", share, "must be below 1", "Give the share for tests, e.g. 0.1")
    if isinstance(data.train, Lazy):
        remedy = "Split them where they are stored, or call split(d.in_memory())"
        refuse("data", data.name, "is not in memory, and its samples cannot be divided", remedy)

    def aside_of(size: int, name: str) -> np.ndarray:
        """Return (size,) which of one agent's samples are set aside for tests."""
        number = 0 if size < 2 else int(np.clip(round(share * size), 1, size - 1))
        aside = np.zeros(size, bool)
        aside[np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(size)[:number]] = True
        return aside

    tested = [aside_of(int(size), name) for name, size in zip(data.names, data.sizes, strict=True)]
    if isinstance(data.train, Ragged):
        every, held = np.concatenate(tested), data.train
        aside = np.array([own.sum() for own in tested], np.int32)
        rows = _rows(held.rows, ~every), _rows(held.rows, every)
        return replace(data, train=Ragged(rows[0], held.sizes - aside), test=Ragged(rows[1], aside))
    pairs = list(zip(data.train, tested, strict=True))
    return replace(data, train=[_rows(own, ~aside) for own, aside in pairs], test=[_rows(*pair) for pair in pairs])


def _rows(samples: Samples, rows: np.ndarray) -> Samples:
    """Return the samples of the given rows."""
    return {"x": jax.tree.map(lambda leaf: leaf[rows], samples["x"]), "y": samples["y"][rows]}


@explained
def pool(samples: Sequence[Samples]) -> Samples:
    """Return the samples of several agents as one set; `pool(data.test)` is a test set of all agents.

    Args:
        samples: The samples of each agent, with features of one shape.
    """
    parts: list[Any] = [
        {
            "x": jax.tree.map(lambda leaf: as_array(leaf, "x"), one["x"], is_leaf=lambda x: not isinstance(x, dict)),
            "y": as_labels(one["y"], "y"),
        }
        for one in samples
    ]
    shapes = [(leaf.shape, own["y"].shape) for own in parts for leaf in jax.tree.leaves(own["x"])]
    if any(not x or x[:1] != y[:1] for x, y in shapes):
        refuse("shapes of x and y", shapes, "must have one row per sample", "Pair x with y")
    if len(parts) == 1:
        return jax.tree.map(np.copy, parts[0])
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _check_once(data: Federated, places: list[int]) -> None:
    """Refuse an agent that is named twice."""
    repeated = [i for i, times in Counter(places).items() if times > 1]
    if repeated:
        refuse("agent", data.names[repeated[0]], "is named twice", "Name every agent once, so that no sample repeats")


def _places(data: Federated, agents: Sequence[Agent] | np.ndarray) -> list[int]:
    """Return the positions of the given agents."""
    if isinstance(agents, np.ndarray | jax.Array):
        agents = as_labels(agents, "agents", POSITIONS)
    if isinstance(agents, np.ndarray) and agents.dtype == bool:
        if agents.shape != (data.agents,):
            refuse("shape of the mask", agents.shape, f"must be ({data.agents},)", "Give one truth value per agent")
        return [int(i) for i in np.flatnonzero(agents)]
    known = {name: i for i, name in enumerate(data.names)}
    return [_place(data, known, agent) for agent in agents]


def _place(data: Federated, known: dict[str, int], agent: Agent) -> int:
    """Return the position of one agent."""
    if isinstance(agent, str):
        if agent not in known:
            refuse("agent", agent, f"there is no such agent in {data.name}", nearest(agent, data.names[:20]))
        return known[agent]
    if not isinstance(agent, Integral) or isinstance(agent, bool | np.bool_) or not 0 <= agent < data.agents:
        refuse("agent", agent, f"must be a position from 0 to {data.agents - 1}", "Give such a position, or the name")
    return int(agent)
