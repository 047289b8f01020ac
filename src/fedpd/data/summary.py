"""Summarise federated data: the samples and the labels of each agent."""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.checks import choice, refuse
from fedpd.base.typed import explained
from fedpd.data.federated import Federated
from fedpd.data.ragged import Ragged

Part = Literal["train", "test"]


class Spread(NamedTuple):
    """The smallest, the median and the largest number over the agents.

    Attributes:
        least: The smallest.
        median: The median.
        most: The largest.
    """

    least: int
    median: float
    most: int


class Summary(NamedTuple):
    """A summary of federated data; `sizes`, `labels` and `skew` are over the agents that have training samples.

    Attributes:
        name: The name of the data.
        agents: N.
        trained: The number of agents with training samples.
        tested: The number of agents with test samples.
        samples: The number of samples, train and test.
        train: The number of training samples.
        test: The number of test samples.
        shape: The shape of one sample's features; of a dict, the shapes by name.
        dtype: The dtype of the features; of a dict, those of all entries.
        classes: K, the number of classes.
        missing: The number of classes without a training sample.
        sizes: Training samples per agent.
        labels: Different labels per agent.
        skew: The mean over agents of the total variation distance between their labels and those of all agents: 0 if
            all agents have the same shares of labels, near 1 if no two share a label.
    """

    name: str
    agents: int
    trained: int
    tested: int
    samples: int
    train: int
    test: int
    shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    dtype: str
    classes: int
    missing: int
    sizes: Spread
    labels: Spread
    skew: float

    def __str__(self) -> str:
        """Return the summary as a table, one quantity per line."""
        shape = " x ".join(map(str, self.shape)) or "one number"
        rows = [
            ("agents", f"{self.agents:,}: {self.trained:,} to train, {self.tested:,} to test"),
            ("samples", f"{self.samples:,}: {self.train:,} to train, {self.test:,} to test"),
            (
                "per agent",
                f"{self.sizes.least:,} to {self.sizes.most:,} training samples, median {self.sizes.median:g}",
            ),
            ("features", f"{shape}, {self.dtype}"),
        ]
        if self.classes:
            missing = f", {self.missing} of them without a training sample" if self.missing else ""
            least, median, most = self.labels
            rows += [
                ("classes", f"{self.classes}{missing}"),
                ("labels", f"{least} to {most} different ones per agent, median {median:g}"),
                (
                    "skew",
                    f"{self.skew:.3f}: 0 if all agents have the same shares of labels, near 1 if none share a label",
                ),
            ]
        return "\n".join([f"Federated data {self.name!r}", *(f"  {name:<9} {words}" for name, words in rows)])


@explained
def label_histogram(data: Federated, part: Part = "train") -> np.ndarray:
    """Return how many samples of each class each agent has, (N, K) int64.

    Args:
        data: The data.
        part: "train" or "test".
    """
    samples = data.train if choice("part", part, get_args(Part)) == "train" else data.test
    classes = len(data.classes)
    if not classes:
        remedy = "Load the data without classes=False if the labels are classes"
        refuse("data", data.name, "has no classes, because its labels are numbers to predict", remedy)
    if isinstance(samples, Ragged):
        agents = np.repeat(np.arange(len(samples)), samples.sizes)
        cells = agents * classes + np.searchsorted(data.classes, samples.rows["y"])
        return np.bincount(cells, minlength=len(samples) * classes).reshape(len(samples), classes)
    return np.stack([np.bincount(np.searchsorted(data.classes, s["y"]), minlength=classes) for s in samples])


@explained
def describe(data: Federated) -> Summary:
    """Return a summary of federated data: sizes, classes, and how much the agents' labels differ.

    Args:
        data: The data.
    """
    sizes, tested = data.sizes, data.test_sizes
    histogram = (label_histogram(data) if len(data.classes) else np.zeros((data.agents, 0)))[sizes > 0]
    totals = histogram.sum(axis=0)
    shares = histogram / histogram.sum(axis=1, keepdims=True)
    apart = np.abs(shares - totals / totals.sum()).sum(axis=1) / 2 if histogram.size else np.zeros(1)
    shapes: Any = {name: shape for name, (shape, _) in data.features.items()}
    return Summary(
        name=data.name,
        agents=data.agents,
        trained=len(histogram),
        tested=int((tested > 0).sum()),
        samples=data.samples,
        train=int(sizes.sum()),
        test=int(tested.sum()),
        shape=shapes.get("", shapes),
        dtype=", ".join(sorted({str(dtype) for _, dtype in data.features.values()})),
        classes=len(data.classes),
        missing=int((totals == 0).sum()),
        sizes=_spread(sizes[sizes > 0]),
        labels=_spread((histogram > 0).sum(axis=1)),
        skew=float(apart.mean()),
    )


def _spread(numbers: np.ndarray) -> Spread:
    """Return the smallest, the median and the largest of the numbers."""
    if not numbers.size:
        return Spread(0, 0.0, 0)
    return Spread(int(numbers.min()), float(np.median(numbers)), int(numbers.max()))
