"""Draw federated data: how many samples each agent has, and with which labels."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from fedpd.data.federated import Federated
from fedpd.data.summary import describe, label_histogram

TRAIN, TEST = "#0072B2", "#E69F00"  # Okabe and Ito
COLOURS = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0.2, 1, 256)))  # one sample is not white
MOST_NAMES = 40  # that are legible beside an axis of this size


def draw(data: Federated) -> Figure:
    """Return the figure that `Federated.plot` describes."""
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


def _heat(figure: Figure, axes: Axes, beside: Axes, counts: np.ndarray, data: Federated, order: np.ndarray) -> None:
    """Draw the counts (N, K), labels down and agents across, on a logarithmic colour scale; blank is none."""
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(shown, aspect="auto", cmap=COLOURS, norm=LogNorm(1, max(2, int(counts.max()))))
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
