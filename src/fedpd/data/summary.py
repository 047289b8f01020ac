"""What federated data is like: who has how much of what."""

from typing import Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.checks import choice
from fedpd.data.federated import Federated

Part = Literal["train", "test"]


class Spread(NamedTuple):
    """Over the agents."""

    least: int
    median: float
    most: int


class Summary(NamedTuple):
    """`sizes`, `labels` and `skew` are of the training samples, over the agents that have any."""

    name: str
    agents: int
    trained: int  # agents with training samples
    tested: int  # agents with test samples
    samples: int  # train and test
    train: int
    test: int
    shape: tuple[int, ...]  # of one sample's features
    dtype: str  # of the features
    classes: int
    missing: int  # classes that no training sample is of
    sizes: Spread  # training samples an agent
    labels: Spread  # different labels an agent
    skew: float  # mean over agents of the total variation distance of their labels from everyone's: 0 alike, 1 apart


def label_histogram(data: Federated, part: Part = "train") -> np.ndarray:
    """(N, K) int64: how many samples of each class each agent has, in "train" or in "test"."""
    samples = data.train if choice("part", part, get_args(Part)) == "train" else data.test
    classes = len(data.classes)
    return np.stack([np.bincount(np.searchsorted(data.classes, s["y"]), minlength=classes) for s in samples])


def describe(data: Federated) -> Summary:
    sizes, tested = data.sizes, data.test_sizes
    histogram = label_histogram(data)[sizes > 0]
    totals = histogram.sum(axis=0)
    return Summary(
        name=data.name,
        agents=data.agents,
        trained=len(histogram),
        tested=int((tested > 0).sum()),
        samples=data.samples,
        train=int(sizes.sum()),
        test=int(tested.sum()),
        shape=data.shape,
        dtype=str(data.train[0]["x"].dtype),
        classes=len(data.classes),
        missing=int((totals == 0).sum()),
        sizes=_spread(sizes[sizes > 0]),
        labels=_spread((histogram > 0).sum(axis=1)),
        skew=_skew(histogram, totals),
    )


def _spread(numbers: np.ndarray) -> Spread:
    if not numbers.size:
        return Spread(0, 0.0, 0)
    return Spread(int(numbers.min()), float(np.median(numbers)), int(numbers.max()))


def _skew(histogram: np.ndarray, totals: np.ndarray) -> float:
    if not histogram.size:
        return 0.0
    shares = histogram / histogram.sum(axis=1, keepdims=True)
    return float(np.abs(shares - totals / totals.sum()).sum(axis=1).mean() / 2)
