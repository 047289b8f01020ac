"""Draw curves in a terminal. A character has two by four dots of braille, so a few lines show a shape."""

from collections.abc import Sequence

import numpy as np
from rich.text import Text

COLOURS = ("cyan", "bright_red", "green", "magenta", "yellow", "bright_blue", "white", "bright_black")
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of Unicode's braille patterns

Curve = tuple[np.ndarray, np.ndarray]  # x and y, finite


def plot(curves: Sequence[Curve], width: int, height: int) -> tuple[list[Text], tuple[float, float, float, float]]:
    """Return the lines of a plot and the ends of its axes (left, right, bottom, top). Curve i has colour i."""
    points = [(x, y) for x, y in curves if len(x)]
    left, right = _ends([x for x, _ in points])
    bottom, top = _ends([y for _, y in points])
    cells = np.zeros((height, width), int)
    owner = np.full((height, width), -1)
    for number, (x, y) in enumerate(curves):
        columns = (np.asarray(x, float) - left) / (right - left) * (2 * width - 1)
        rows = (top - np.asarray(y, float)) / (top - bottom) * (4 * height - 1)
        for column, row in _dots(columns, rows):
            cells[row // 4, column // 2] |= DOTS[row % 4, column % 2]
            owner[row // 4, column // 2] = number
    lines = []
    for marks, owners in zip(cells, owner, strict=True):
        line = Text()
        for mark, who in zip(marks, owners, strict=True):
            line.append(chr(0x2800 + mark) if mark else " ", COLOURS[who % len(COLOURS)] if mark else "")
        lines.append(line)
    return lines, (left, right, bottom, top)


def _ends(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    if not columns:
        return 0.0, 1.0
    low, high = float(min(c.min() for c in columns)), float(max(c.max() for c in columns))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _dots(columns: np.ndarray, rows: np.ndarray) -> set[tuple[int, int]]:
    """Return the dots on the straight lines between the points."""
    dots = {(round(column), round(row)) for column, row in zip(columns, rows, strict=True)}
    for i in range(len(columns) - 1):
        steps = int(max(abs(columns[i + 1] - columns[i]), abs(rows[i + 1] - rows[i]))) + 2
        between = (np.linspace(ends[i], ends[i + 1], steps) for ends in (columns, rows))
        dots |= {(round(column), round(row)) for column, row in zip(*between, strict=True)}
    return dots
