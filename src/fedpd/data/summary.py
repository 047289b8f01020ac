"""Summarise federated data in numbers and in a figure: the samples and the labels of each agent."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.checks import choice, refuse
from fedpd.base.typed import explained
from fedpd.data.federated import Federated
from fedpd.data.ragged import Ragged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    def rows(self) -> dict[str, str]:
        """Return the quantities as texts by name."""
        shape = " x ".join(map(str, self.shape)) or "one number"
        found = {
            "agents": f"{self.agents:,}: {self.trained:,} to train, {self.tested:,} to test",
            "samples": f"{self.samples:,}: {self.train:,} to train, {self.test:,} to test",
            "per agent": f"{self.sizes.least:,} to {self.sizes.most:,} training samples, median {self.sizes.median:g}",
            "features": f"{shape}, {self.dtype}",
        }
        if not self.classes:
            return found
        missing = f", {self.missing} of them without a training sample" if self.missing else ""
        least, median, most = self.labels
        return found | {
            "classes": f"{self.classes}{missing}",
            "labels": f"{least} to {most} different ones per agent, median {median:g}",
            "skew": f"{self.skew:.3f}: 0 if all agents have the same shares of labels, near 1 if none share a label",
        }

    def __str__(self) -> str:
        """Return the summary as a table, one quantity per line."""
        lines = [f"  {name:<9} {words}" for name, words in self.rows().items()]
        return "\n".join([f"Federated data {self.name!r}", *lines])


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


TRAIN, TEST = "#0072B2", "#E69F00"  # Okabe and Ito
MOST_NAMES = 40  # that are legible beside an axis of this size


def draw(data: Federated) -> "Figure":
    """Return the figure that `Federated.plot` describes."""
    from matplotlib.figure import Figure  # only a figure needs matplotlib

    order = np.lexsort((-data.test_sizes, -data.sizes))
    train, test = (label_histogram(data, part)[order] for part in ("train", "test"))
    height = float(np.clip(2.9 + 0.11 * len(data.classes), 4.2, 9.5))
    figure = Figure(figsize=(11, height), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(8, 1), height_ratios=(1.3, height - 2.2))
    heat = figure.add_subplot(grid[1, 0])
    above = figure.add_subplot(grid[0, 0], sharex=heat)
    beside = figure.add_subplot(grid[1, 1], sharey=heat)
    for axes in (above, beside):
        axes.spines[["top", "right"]].set_visible(False)
    above.tick_params(labelbottom=False, bottom=False)
    beside.tick_params(labelleft=False, left=False)

    agents, width = np.arange(data.agents), 1.0 if data.agents > 150 else 0.85
    above.bar(agents, train.sum(axis=1), width=width, color=TRAIN, label="train")
    if test.any():
        above.bar(agents, test.sum(axis=1), bottom=train.sum(axis=1), width=width, color=TEST, label="test")
        above.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.97), borderaxespad=0)
    above.set_ylabel("samples")
    _heat(figure, heat, beside, train + test, data, order)
    classes = np.arange(len(data.classes))
    beside.barh(classes, train.sum(axis=0), height=0.85, color=TRAIN)
    beside.barh(classes, test.sum(axis=0), left=train.sum(axis=0), height=0.85, color=TEST)
    beside.set_xlabel("samples")
    beside.set_xlim(left=0)
    figure.suptitle(_title(data))
    return figure


def _heat(
    figure: "Figure", axes: "Axes", beside: "Axes", counts: np.ndarray, data: Federated, order: np.ndarray
) -> None:
    """Draw the counts (N, K), labels down and agents across, on a logarithmic colour scale; blank is none."""
    import matplotlib
    from matplotlib.colors import ListedColormap, LogNorm

    shown = np.ma.masked_equal(counts.T, 0)
    colours = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0.2, 1, 256)))  # one sample is not white
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=LogNorm(1, max(2, int(counts.max()))))
    image.set_interpolation("nearest")
    axes.set_xlabel("agents, the largest first")
    axes.set_ylabel("label")
    if data.agents <= MOST_NAMES:
        long = max(map(len, data.names)) > 3
        names = [data.names[i] for i in order]
        axes.set_xticks(range(data.agents), names, rotation=90 if long else 0, fontsize=8)
    labels = data.label_names or tuple(map(str, data.classes))
    step = -(-len(labels) // 80)
    axes.set_yticks(range(0, len(labels), step), labels[::step], fontsize=7 if len(labels) > 30 else 9)
    bar = figure.colorbar(image, ax=beside, fraction=0.35, pad=0.08)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000) if tick <= counts.max()]
    bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("samples (blank: none)")


def _title(data: Federated) -> str:
    summary = describe(data)
    sizes, labels = summary.sizes, summary.labels
    return (
        f"{data.name}: {data.agents:,} agents, {summary.train:,} samples to train and {summary.test:,} to test, "
        f"{summary.classes} classes\n"
        f"an agent trains on {sizes.least:,} to {sizes.most:,} samples (median {sizes.median:g}) "
        f"of {labels.least} to {labels.most} labels (median {labels.median:g})"
    )
