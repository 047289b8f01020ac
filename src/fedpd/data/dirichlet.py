"""Divide a data set without clients among agents whose shares of the classes follow a Dirichlet distribution.

The division follows Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (2019): all agents have the same number of training samples, and agent i draws its samples with its own
shares of the classes, q_i ~ Dirichlet(alpha, ..., alpha). Where a class is used up, the other shares grow. Test samples
go to agents in proportion to their training samples of the class, so that the accuracy over all test samples is that of
the usual test set, and an agent's own accuracy is on its own mixture of classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.data.arrow import Shape, as_tuple, check_columns, read_labels, reshape
from fedpd.data.federated import Federated, Options, assemble, place_in
from fedpd.data.hub import class_names, features_of, read_splits
from fedpd.data.labels import Classes


@explained
def dirichlet(
    source: str | Path,
    *,
    features: str | Sequence[str],
    label: str,
    agents: int = 100,
    alpha: float = 0.3,
    seed: int = 0,
    split: str | tuple[str, str] | None = None,
    shape: Shape | None = None,
    config: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return a data set of Hugging Face, divided among agents whose shares of the classes differ.

    The arguments that are not listed are those of `hub`.

    Args:
        source: The name of a data set on the Hub, such as "uoft-cs/cifar10", or a folder of a `save_to_disk`.
        label: The column of classes.
        agents: N; all agents get the same number of training samples, and a rest of fewer than N is left out.
        alpha: The concentration of the shares: 0.1 gives each agent few classes, 100 gives all agents nearly the same.
        seed: The seed of the division.

    Raises:
        FedpdError: If the data set cannot be loaded, or has fewer training samples than agents.
    """
    count("agents", agents, "Give N, e.g. 100")
    positive("alpha", alpha, "Give the concentration, e.g. 0.3")
    count("seed", seed, "Give the seed of the division, an integer", least=0)
    if classes is False:
        refuse("classes", classes, "must not be False, because the classes divide the data", "Use data.partition")
    parts = read_splits("data.dirichlet", str(source), config, revision, cache, split)
    x, y = {}, {}
    for part, rows in parts.items():
        check_columns(rows.column_names, [*as_tuple(features), label], str(source))
        x[part] = reshape(features_of(rows, features, str(source)), shape, str(source))
        y[part] = read_labels(rows.select_columns([label]).with_format("arrow")[:], label, str(source), None)
    if len(y["train"]) < agents:
        rule = f"must be at most {len(y['train'])}, the number of training samples"
        refuse("agents", agents, rule, "Give fewer agents")
    found: dict[str, Any] = _divided(x, y, agents, alpha, seed)

    called = class_names(parts, label) if label_names is None else label_names
    options = Options(classes, called, dtype, name or Path(source).name)
    return assemble(found["train"], found.get("test", {}), place_in(source), options)


def _divided(
    x: dict[str, np.ndarray], y: dict[str, np.ndarray], agents: int, alpha: float, seed: int
) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Return the training and the test samples of each agent."""
    values = np.unique(np.concatenate(list(y.values())))
    rng = np.random.default_rng(seed)
    labels = {part: np.searchsorted(values, own) for part, own in y.items()}
    train = divide(labels["train"], len(values), agents, alpha, rng)
    rows = {"train": train}
    if "test" in y:
        rows["test"] = divide_alike(labels["test"], labels["train"], train, len(values), rng)
    return {part: {str(i): {"x": x[part][own], "y": y[part][own]} for i, own in enumerate(rows[part])} for part in rows}


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
