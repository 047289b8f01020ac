"""Rules that divide samples among agents, for `data.partition`.

`by_dirichlet` follows Yurochkin et al. (2019) and Li, Diao, Chen and He (NIID-Bench, 2022), or with equal sizes Hsu, Qi
and Brown (2019). `by_shards` follows McMahan et al. (2017). `by_classes`, `by_quantity` and `by_noise` follow
NIID-Bench. `by_rotation` follows Ghosh, Chung, Yin and Ramchandran (IFCA, 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedpd.base.checks import at_least, choice, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.data.dirichlet import divide

Sizes = Literal["differ", "equal"]
DRAWS = 1000  # the most draws until every agent has enough samples
Rows = list[np.ndarray]  # the rows of each agent


@dataclass(frozen=True)
class Division:
    """A rule that divides samples among agents; the functions of this module make them."""

    by_label = False  # whether the rule looks at the classes of the samples

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        """Return the rows of each agent.

        Args:
            labels: (n,) the numbers of the classes; all 0 if there are none.
        """
        return np.array_split(rng.permutation(len(labels)), agents)

    def features(self, x: np.ndarray, agent: int, agents: int, rng: np.random.Generator) -> np.ndarray:
        """Return the features of one of N agents as this agent sees them."""
        return x


@explained
def iid() -> Division:
    """Return the rule that gives all agents the same number of samples, drawn at random without replacement."""
    return Division()


@explained
def by_dirichlet(alpha: float = 0.3, *, sizes: Sizes = "differ", least: int = 1) -> Division:
    """Return the rule that divides the classes by a Dirichlet distribution.

    sizes="differ": the samples of class k go to the agents in shares p_k ~ Dirichlet(alpha, ..., alpha) over the N
    agents, so that the agents' sizes differ, too. sizes="equal": all agents have the same number of samples, and agent
    i draws them with shares q_i ~ Dirichlet(alpha, ..., alpha) over the K classes, as `data.dirichlet` does.

    Args:
        alpha: The concentration: 0.1 gives each agent few classes, 100 gives all agents nearly the same.
        sizes: Whether the sizes of the agents "differ" or are "equal".
        least: The least number of samples of an agent. The rule draws again until all agents have them.
    """
    positive("alpha", alpha, "Give the concentration, e.g. 0.3")
    choice("sizes", sizes, get_args(Sizes))
    count("least", least, "Give the least number of samples of an agent, e.g. 10")
    return _EqualSizes(alpha) if sizes == "equal" else _ByDirichlet(alpha, least)


@explained
def by_quantity(alpha: float = 0.5, *, least: int = 1) -> Division:
    """Return the rule that divides samples at random, in sizes that follow a Dirichlet distribution.

    Every agent gets `least` samples, and agent i the share q_i of the others, with q ~ Dirichlet(alpha, ..., alpha).

    Args:
        alpha: The concentration: 0.1 gives few agents most samples, 100 gives all agents nearly the same number.
        least: The least number of samples of an agent.
    """
    positive("alpha", alpha, "Give the concentration, e.g. 0.5")
    count("least", least, "Give the least number of samples of an agent, e.g. 10")
    return _ByQuantity(alpha, least)


@explained
def by_classes(number: int = 2) -> Division:
    """Return the rule that gives each agent samples of `number` classes only.

    Agents choose their classes one after another, at random among those that the fewest agents have so far. The samples
    of a class are divided at random in equal parts among the agents that have it.

    Args:
        number: The number of classes of an agent.
    """
    count("number", number, "Give the number of classes of an agent, e.g. 2")
    return _ByClasses(number)


@explained
def by_shards(number: int = 2) -> Division:
    """Return the rule that sorts the samples by class, cuts them into shards, and gives each agent `number` of them.

    Args:
        number: The number of shards of an agent. Most agents then have at most this many classes.
    """
    count("number", number, "Give the number of shards of an agent, e.g. 2")
    return _ByShards(number)


@explained
def by_noise(level: float) -> Division:
    """Return the rule that divides samples at random, and adds Gaussian noise to the features.

    The standard deviation grows linearly from 0 for the first agent to `level` for the last. An agent's test samples
    have noise of the same size.

    Args:
        level: The standard deviation of the last agent's noise.
    """
    return _ByNoise(at_least("level", level, 0, "Give a standard deviation, e.g. 0.1"))


@explained
def by_rotation(angles: Sequence[int] = (0, 90, 180, 270), *, axes: tuple[int, int] = (1, 2)) -> Division:
    """Return the rule that divides images at random and rotates them: agent i by angles[i mod len(angles)].

    Args:
        angles: Degrees, multiples of 90, which change no pixel.
        axes: The axes of height and width in x; (2, 3) if the channels come first.
    """
    for angle in angles:
        if angle % 90:
            refuse("angle", angle, "must be a multiple of 90 degrees, which needs no interpolation", "Give e.g. 90")
    if not len(angles):
        refuse("angles", list(angles), "must hold at least one angle", "Give e.g. (0, 90, 180, 270)")
    return _ByRotation(tuple(angles), (axes[0], axes[1]))


@dataclass(frozen=True)
class _ByDirichlet(Division):
    alpha: float
    least: int
    by_label = True

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        totals = np.bincount(labels)
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(agents, self.alpha), len(totals))  # (K, N)
            ends = np.round(np.cumsum(shares, axis=1) * totals[:, None])
            ends[:, -1] = totals  # rounding of the sum must lose no sample
            if np.isfinite(ends).all() and np.diff(ends, axis=1, prepend=0).sum(axis=0).min() >= self.least:
                break
        else:
            rule = f"in {DRAWS} draws, no division gave each of {agents} agents at least {self.least} samples"
            refuse("alpha", self.alpha, rule, 'Give a larger alpha, fewer agents, or sizes="equal"')
        pools = [rng.permutation(np.flatnonzero(labels == k)) for k in range(len(totals))]
        parts = [np.split(pool, own[:-1]) for pool, own in zip(pools, ends.astype(int), strict=True)]
        return [np.concatenate(own) for own in zip(*parts, strict=True)]


@dataclass(frozen=True)
class _EqualSizes(Division):
    alpha: float
    by_label = True

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        return divide(labels, int(labels.max()) + 1, agents, self.alpha, rng)


@dataclass(frozen=True)
class _ByQuantity(Division):
    alpha: float
    least: int

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        free = len(labels) - agents * self.least
        if free < 0:
            rule = f"{agents} agents with at least {self.least} samples need more than the {len(labels)} that there are"
            refuse("least", self.least, rule, "Give a smaller number, or fewer agents")
        shares = rng.dirichlet(np.full(agents, self.alpha))
        if not np.isfinite(shares).all():
            refuse("alpha", self.alpha, "is too small for a Dirichlet distribution", "Give e.g. 0.1")
        ends = np.round(np.cumsum(shares) * free).astype(int) + self.least * np.arange(1, agents + 1)
        return np.split(rng.permutation(len(labels)), ends[:-1])


@dataclass(frozen=True)
class _ByClasses(Division):
    number: int
    by_label = True

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        classes, remedy = int(labels.max()) + 1, "Give another number of classes per agent, or of agents"
        if self.number > classes:
            refuse("number", self.number, f"must be at most {classes}, the number of classes", remedy)
        if agents * self.number < classes:
            rule = f"{agents} agents with {self.number} classes each would leave out some of the {classes} classes"
            refuse("number", self.number, rule, remedy)
        owners: list[list[int]] = [[] for _ in range(classes)]
        for agent in range(agents):
            held = np.array([len(own) for own in owners]) + rng.random(classes)  # equal numbers in random order
            for k in np.argsort(held)[: self.number]:
                owners[k].append(agent)
        rows: list[list[np.ndarray]] = [[] for _ in range(agents)]
        for k, own in enumerate(owners):
            pool = rng.permutation(np.flatnonzero(labels == k))
            for agent, part in zip(own, np.array_split(pool, len(own)), strict=True):
                rows[agent].append(part)
        return [np.concatenate(own) for own in rows]


@dataclass(frozen=True)
class _ByShards(Division):
    number: int
    by_label = True

    def rows(self, labels: np.ndarray, agents: int, rng: np.random.Generator) -> Rows:
        order = rng.permutation(len(labels))
        shards = np.array_split(order[np.argsort(labels[order], kind="stable")], agents * self.number)
        dealt = rng.permutation(len(shards)).reshape(agents, self.number)
        return [np.concatenate([shards[one] for one in own]) for own in dealt]


@dataclass(frozen=True)
class _ByNoise(Division):
    level: float

    def features(self, x: np.ndarray, agent: int, agents: int, rng: np.random.Generator) -> np.ndarray:
        if x.dtype.kind != "f":
            rule = "must be floating-point numbers, to which noise can be added"
            refuse("type of x", str(x.dtype), rule, "Give e.g. (x / 255).astype(numpy.float32)")
        noise = rng.standard_normal(x.shape) * (self.level * agent / max(1, agents - 1))
        return (x + noise).astype(x.dtype)


@dataclass(frozen=True)
class _ByRotation(Division):
    angles: tuple[int, ...]
    axes: tuple[int, int]

    def features(self, x: np.ndarray, agent: int, agents: int, rng: np.random.Generator) -> np.ndarray:
        if max(self.axes) >= x.ndim or x.shape[self.axes[0]] != x.shape[self.axes[1]]:
            rule = f"must have equal lengths in the axes {self.axes}, so that rotated images have one shape"
            refuse("shape of x", x.shape, rule, "Give square images, or axes=(2, 3) if channels come first")
        return np.rot90(x, self.angles[agent % len(self.angles)] // 90, self.axes)
