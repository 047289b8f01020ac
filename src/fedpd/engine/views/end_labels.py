"""Write the names of curves at their ends, in the curves' colours, so that a figure needs no legend."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

GAP = 0.02  # between the axes and the names, in widths of the axes


def label_ends(axes: Axes, lines: Sequence[Line2D], names: Sequence[str], height: float, points: float) -> None:
    """Write the name of each line to the right of the axes, at the height of its end, and no two at the same place.

    Args:
        axes: The axes, with their final limits.
        lines: The curves.
        names: Their names.
        height: The height of the axes in inches.
        points: The size of the text in points.
    """
    drawn = [(line, name) for line, name in zip(lines, names, strict=True) if np.size(line.get_xdata())]
    ends = np.array([_end(axes, line) for line, _ in drawn]).reshape(-1, 2)
    places = spread(ends[:, 1], 1.25 * points / 72 / height)
    for (line, name), end, place in zip(drawn, ends, places, strict=True):
        axes.annotate(
            name, (min(end[0], 1.0), end[1]), (1 + GAP, place), "axes fraction", "axes fraction",
            color=line.get_color(), fontsize=points, va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line.get_color(), "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def _end(axes: Axes, line: Line2D) -> np.ndarray:
    """Return the last point of a line, in widths and heights of the axes."""
    x, y = np.asarray(line.get_xdata(), float)[-1], np.asarray(line.get_ydata(), float)[-1]
    scaled = axes.transScale.transform([[x, y], *_corners(axes)])
    low, high = scaled[1], scaled[2]
    return np.clip((scaled[0] - low) / np.where(high > low, high - low, 1), 0, 1)


def _corners(axes: Axes) -> list[list[float]]:
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return [[left, bottom], [right, top]]


def spread(places: np.ndarray, gap: float) -> np.ndarray:
    """Return places that are at least `gap` apart, in the same order and as near to the given ones as this allows.

    Examples:
        >>> spread(np.array([0.5, 0.5, 0.9]), 0.1).round(3).tolist()
        [0.45, 0.55, 0.9]
    """
    order = np.argsort(places, kind="stable")
    moved = places[order] - gap * np.arange(len(places))
    blocks: list[tuple[float, int]] = []  # mean and size: isotonic regression by pooling neighbours that are too near
    for place in moved:
        mean, size = float(place), 1
        while blocks and blocks[-1][0] > mean:
            before, number = blocks.pop()
            mean, size = (before * number + mean * size) / (number + size), number + size
        blocks.append((mean, size))
    fitted = np.concatenate([np.full(size, mean) for mean, size in blocks]) if blocks else moved
    found = np.empty(len(places))
    found[order] = fitted + gap * np.arange(len(places))
    return found
