"""Divide data without clients among agents, by a rule of fedpd or with a partitioner of flwr-datasets.

`by_dirichlet` follows Yurochkin et al. (2019) and Li, Diao, Chen and He (NIID-Bench, 2022), or with equal sizes Hsu, Qi
and Brown (2019). `by_shards` follows McMahan et al. (2017). `by_classes`, `by_quantity` and `by_noise` follow
NIID-Bench. `by_rotation` follows Ghosh, Chung, Yin and Ramchandran (IFCA, 2020).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from zipfile import BadZipFile

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.arrays import as_array, as_labels
from fedpd.base.checks import FedpdError, at_least, choice, count, positive, refuse
from fedpd.base.errors import extra
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options, assemble
from fedpd.data.labels import Classes

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


ROW = "row"  # the column with the row numbers: partitioners divide these, and the samples are not copied


@explained
def partition(
    x: np.ndarray,
    y: Any,
    partitioner: Division | Any,
    *,
    agents: int | None = None,
    seed: int | None = None,
    test: tuple[Any, Any] | None = None,
    columns: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str = "partition",
) -> Federated:
    """Return samples divided among agents by a rule of fedpd or by a partitioner of flwr-datasets.

    The names of the agents are "0", "1", and so on, or the natural ids of a partitioner of flwr-datasets. `classes`,
    `label_names` and `dtype` are as for `from_arrays`.

    Args:
        x: Features, (n, ...).
        y: Labels, (n,): numbers or texts.
        partitioner: A rule: `data.iid()`, `data.by_dirichlet(alpha)`, `data.by_classes(number)`,
            `data.by_shards(number)`, `data.by_quantity(alpha)`, `data.by_noise(level)` or `data.by_rotation()`. Or a
            partitioner of flwr-datasets, e.g. `DirichletPartitioner(num_partitions=10, partition_by="label", alpha=0.3,
            seed=0)`, which is not changed and sees the labels as its column "label".
        agents: N, for a rule of fedpd.
        seed: The seed of a rule of fedpd, and of the division of the test samples; None: 0.
        test: (x, y) of test samples, which go to the agents in proportion to their training samples of the class. None:
            the agents have no test samples; `data.split` can set some aside, and `simulate(test=...)` takes samples of
            nobody.
        columns: More columns for a partitioner of flwr-datasets, by name, (n,) each: for example the ids that a
            NaturalIdPartitioner divides by.
        name: The name of the data in tables and figures.

    Raises:
        FedpdError: There are fewer samples than agents, the rule cannot divide them, or x and y do not fit.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> x, y = np.eye(60, 4), np.arange(60) % 3
        >>> federated = data.partition(x, y, data.by_dirichlet(0.3), agents=4, seed=0)
        >>> federated.agents, int(federated.sizes.sum()), data.label_histogram(federated).shape
        (4, 60, (4, 3))
    """
    x, y = _pair(x, y, "x and y", classes)
    seed = count("seed", 0 if seed is None else seed, "Give the seed of the division, an integer", least=0)
    rng = np.random.default_rng(seed)
    numbers = {"train": np.zeros(len(y), int)} if classes is False else {"train": np.unique(y, return_inverse=True)[1]}
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        refuse("test", type(test).__name__, "must be a pair (x, y)", "Give test=(x_test, y_test)")
    tests = None if test is None else _pair(test[0], test[1], "test", classes)
    if tests is not None and classes is not False:
        both = np.unique(np.concatenate([y, tests[1]]), return_inverse=True)[1]
        numbers = {"train": both[: len(y)], "test": both[len(y) :]}
    elif tests is not None:
        numbers["test"] = np.zeros(len(tests[1]), int)
    rule = partitioner if isinstance(partitioner, Division) else Division()
    if isinstance(partitioner, Division):
        if columns is not None:
            refuse("columns", sorted(columns), "are for partitioners of flwr-datasets", "Leave them out")
        rows = _divided(partitioner, numbers["train"], agents, classes, rng)
    else:
        if agents is not None:
            remedy = "Give num_partitions to the partitioner, or a rule such as data.by_dirichlet(0.3)"
            refuse("agents", agents, "is for the rules of fedpd", remedy)
        rows = _rows(partitioner, y, columns or {})
    parts = {"train": _samples(rule, x, y, rows, rng)}
    if tests is not None:
        number = max(int(one.max(initial=0)) for one in numbers.values()) + 1
        own = divide_alike(numbers["test"], numbers["train"], list(rows.values()), number, rng)
        parts["test"] = _samples(rule, *tests, dict(zip(rows, own, strict=True)), rng)

    def place(agent: str, part: str) -> str:
        return f"{type(partitioner).__name__.lstrip('_')}: agent {agent!r}"

    return assemble(parts["train"], parts.get("test", {}), place, Options(classes, label_names, dtype, name))


def _pair(x: Any, y: Any, what: str, classes: Classes) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of the same number of samples."""
    x, y = as_array(x, f"x of {what}" if what == "test" else "x"), as_labels(y, "y")
    if x.ndim == 0 or y.ndim == 0 or (y.ndim > 1 and classes is not False) or len(x) != len(y) or not len(y):
        refuse(f"shapes of {what}", (x.shape, y.shape), "must be (n, ...) and (n,), n > 0", "Pair x with y")
    return x, y


def _divided(
    rule: Division, labels: np.ndarray, agents: int | None, classes: Classes, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return {agent: the row numbers of its samples} by a rule of fedpd."""
    number = count("agents", agents, "Give N, e.g. agents=100")
    if number > len(labels):
        refuse("agents", number, f"must be at most {len(labels)}, the number of samples", "Give fewer agents")
    if rule.by_label and classes is False:
        remedy = "Divide with data.iid(), data.by_quantity(alpha) or data.by_noise(level)"
        refuse("classes", classes, "leaves no classes, by which this rule divides", remedy)
    rows = {str(i): np.sort(own) for i, own in enumerate(rule.rows(labels, number, rng))}
    empty = [agent for agent, own in rows.items() if not len(own)]
    if empty:
        refuse("agents", number, f"leaves agent {empty[0]} without a sample", "Give fewer agents")
    return rows


def _samples(
    rule: Division, x: np.ndarray, y: np.ndarray, rows: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, dict[str, np.ndarray]]:
    """Return the samples of each agent, with the features as the agent sees them."""
    return {
        agent: {"x": rule.features(x[own], i, len(rows), rng), "y": y[own]}
        for i, (agent, own) in enumerate(rows.items())
    }


def _rows(partitioner: Any, y: np.ndarray, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> dict[str, np.ndarray]:
    """Return {agent: the row numbers of its samples} by a partitioner, which divides a table of labels and columns."""
    with extra("data", "data.partition"):
        import datasets
        from flwr_datasets.partitioner import Partitioner

    taken = {ROW, "label"} & set(columns)
    if taken:
        refuse("columns", sorted(taken), "are names of columns that exist already", "Choose other names")
    for column, values in columns.items():
        if len(values) != len(y):
            refuse(f"column {column!r}", len(values), f"must have {len(y)} entries, one per sample", "Give all")
    held = {column: as_labels(values, f"column {column!r}") for column, values in columns.items()}
    table = datasets.Dataset.from_dict({ROW: np.arange(len(y))} | ({"label": y} if y.ndim == 1 else {}) | held)
    if not isinstance(partitioner, Partitioner):
        rule = "must be a rule of fedpd.data, or one of flwr_datasets.partitioner"
        refuse("partitioner", type(partitioner).__name__, rule, "Give e.g. data.by_dirichlet(0.3)")
    if partitioner.is_dataset_assigned():
        refuse("partitioner", type(partitioner).__name__, "has a data set already", "Make a new one")
    fresh = copy.deepcopy(partitioner)
    fresh.dataset = table
    try:
        parts = [fresh.load_partition(i) for i in range(fresh.num_partitions)]
    except Exception as error:  # partitioners raise errors of many types, such as KeyError for a missing column
        reason = f"{type(partitioner).__name__} cannot divide columns {table.column_names}: {error!r}"
        remedy = "Labels are in 'label', other columns in columns=. Ask for fewer agents if samples are too few"
        raise FedpdError(f"{reason}. {remedy}.") from error
    if any(ROW not in part.column_names for part in parts):
        rule = "divides columns, not samples"
        refuse("partitioner", type(partitioner).__name__, rule, "Give one that divides samples")
    ids = getattr(fresh, "partition_id_to_natural_id", {})
    return {str(ids.get(i, i)): np.asarray(part[ROW][:], np.int64) for i, part in enumerate(parts)}


WRITE = "Write it with numpy.savez(file, x=x, y=y)"
TRAIN, TEST = (("x", "y"), ("x_train", "y_train")), (("x_test", "y_test"),)  # the names of the arrays


@explained
def npz(
    source: str | Path,
    rule: Division,
    *,
    agents: int,
    seed: int = 0,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return the samples of an .npz file, divided among agents by a rule.

    The file has the arrays x and y, or x_train and y_train. If it also has x_test and y_test, the agents get these test
    samples in proportion to their training samples of each class. `classes`, `label_names` and `dtype` are as for
    `from_arrays`.

    Args:
        source: The file.
        rule: How to divide the samples, as for `partition`, e.g. `data.by_dirichlet(0.3)`.
        agents: N.
        seed: The seed of the division.
        name: The name of the data in tables and figures; None: that of the file.

    Raises:
        FedpdError: The file cannot be read, or lacks an array; or the samples cannot be divided.
    """
    if not isinstance(rule, Division):
        refuse("rule", type(rule).__name__, "must be a rule of fedpd.data", "Give e.g. data.by_dirichlet(0.3)")
    arrays = read_npz(source)
    train, test = (next((pair for pair in pairs if set(pair) <= set(arrays)), None) for pairs in (TRAIN, TEST))
    if train is None:
        refuse(f"arrays of {source}", sorted(arrays), "must hold x and y, or x_train and y_train", WRITE)
    return partition(
        arrays[train[0]],
        arrays[train[1]],
        rule,
        agents=agents,
        seed=seed,
        test=None if test is None else (arrays[test[0]], arrays[test[1]]),
        classes=classes,
        label_names=label_names,
        dtype=dtype,
        name=name or Path(source).stem,
    )


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. It runs no code of the file.

    Raises:
        FedpdError: There is no such file, or it is another one.
    """
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, EOFError, TypeError, BadZipFile) as error:
        raise FedpdError(f"{str(path)!r} cannot be read as an .npz file: {error}. {WRITE}.") from None


def divide(labels: np.ndarray, classes: int, agents: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each agent, N arrays of equal length; `labels` (n,) are the numbers of the classes."""
    pools = [rng.permutation(np.flatnonzero(labels == k)).tolist() for k in range(classes)]
    shares = rng.dirichlet(np.full(classes, alpha), agents)
    if not np.isfinite(shares).all():
        raise FedpdError(f"alpha = {alpha}: is too small for a Dirichlet distribution. Give e.g. 0.1.")
    cumulative = _cumulative(shares, pools)
    turns = rng.permutation(np.repeat(np.arange(agents), len(labels) // agents))  # one sample each, in random order
    rows: list[list[int]] = [[] for _ in range(agents)]
    for agent, draw in zip(turns, rng.random(len(turns)), strict=True):
        k = int(np.searchsorted(cumulative[agent], draw, side="right"))
        rows[agent].append(pools[k].pop())
        if not pools[k]:
            cumulative = _cumulative(shares, pools)
    return [np.sort(own) for own in rows]


def _cumulative(shares: np.ndarray, pools: list[list[int]]) -> np.ndarray:
    """Return (N, K) the cumulative shares of the classes that have samples left; equal ones for who wants none."""
    left = np.array([bool(pool) for pool in pools])
    kept = np.where(left, shares, 0)
    kept = np.where(kept.sum(axis=1, keepdims=True) > 0, kept, left)
    if not left.any():
        return kept  # nobody draws any more
    cumulative = np.cumsum(kept, axis=1)
    cumulative /= cumulative[:, -1:]
    cumulative[:, np.flatnonzero(left)[-1] :] = 1.0  # so that rounding never leads to a class without samples
    return cumulative


def divide_alike(
    tests: np.ndarray, labels: np.ndarray, rows: list[np.ndarray], classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of test samples of each agent, in proportion to its training samples of every class.

    Args:
        tests: The classes of the test samples.
        labels: The classes of the training samples.
        rows: The training rows of each agent.
    """
    own = np.stack([np.bincount(labels[one], minlength=classes) for one in rows])
    found: list[list[int]] = [[] for _ in rows]
    for k in range(classes):
        pool = rng.permutation(np.flatnonzero(tests == k))
        weights = own[:, k] if own[:, k].any() else np.ones(len(rows))
        ends = np.round(np.cumsum(weights) / weights.sum() * len(pool)).astype(int)
        for agent, part in enumerate(np.split(pool, ends[:-1])):
            found[agent] += part.tolist()
    return [np.sort(np.array(one, int)) for one in found]
