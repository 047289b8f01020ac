"""Ways to divide the rows of a data set among agents: by label, by size, at random, by a Dirichlet distribution."""

import numpy as np

Rows = list[np.ndarray]  # the row numbers of each agent


def by_label(labels: np.ndarray, agents: int) -> Rows:
    """Return rows sorted by label (or target) and cut into equal parts, so that an agent has as few labels as possible.

    Args:
        labels: (n,) labels or targets.
        agents: N.
    """
    return np.array_split(np.argsort(labels, kind="stable"), agents)


def at_random(samples: int, agents: int, seed: int = 0) -> Rows:
    """Return shuffled rows in equal parts.

    Args:
        samples: n.
        agents: N.
        seed: The seed of the shuffle.
    """
    return np.array_split(np.random.default_rng(seed).permutation(samples), agents)


def by_size(samples: int, agents: int, least: int = 2, power: float = 1.0, seed: int = 0) -> Rows:
    """Return shuffled rows in parts whose sizes fall like 1/i^power: few large agents and many small ones.

    Args:
        samples: n.
        agents: N.
        least: The rows of the smallest agent, at least.
        power: How fast the sizes fall; 0 makes them equal.
        seed: The seed of the shuffle.
    """
    share = 1 / np.arange(1, agents + 1) ** power
    ends = least * np.arange(1, agents) + np.round((samples - least * agents) * np.cumsum(share / share.sum()))[:-1]
    return np.split(np.random.default_rng(seed).permutation(samples), ends.astype(int))


def by_dirichlet(labels: np.ndarray, agents: int, alpha: float, seed: int = 0) -> Rows:
    """Return rows of which each label is divided among agents in shares drawn from a Dirichlet distribution.

    Each agent gets one row of any label first, so that no agent is empty.

    Args:
        labels: (n,) labels.
        agents: N.
        alpha: The smaller, the more the agents differ.
        seed: The seed of all draws.
    """
    rng = np.random.default_rng(seed)
    first, rest = np.split(rng.permutation(len(labels)), [agents])
    parts = [[row] for row in first]
    for label in np.unique(labels):
        own = rest[labels[rest] == label]
        ends = np.round(len(own) * np.cumsum(rng.dirichlet(np.full(agents, alpha)))[:-1]).astype(int)
        for part, more in zip(parts, np.split(own, ends), strict=True):
            part.extend(more)
    return [np.array(part) for part in parts]
