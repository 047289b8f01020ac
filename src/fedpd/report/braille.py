"""Draw curves in a terminal. A character has two by four dots of braille, so a few lines show a shape."""

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from fedpd.engine.views.style import Style

DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of Unicode's braille patterns

PATTERNS = {"solid": "1", "dash": "11100", "dashdot": "11110010", "dot": "100", "longdashdot": "1111110010010"}

Curve = tuple[np.ndarray, np.ndarray]  # x and y, finite


def plot(
    curves: Sequence[Curve], styles: Sequence[Style], width: int, height: int
) -> tuple[list[Text], tuple[float, float, float, float]]:
    """Return the lines of a plot, and the ends of its axes (left, right, bottom, top)."""
    points = [(x, y) for x, y in curves if len(x)]
    left, right = _ends([x for x, _ in points])
    bottom, top = _ends([y for _, y in points])
    cells = np.zeros((height, width), int)
    owner = np.full((height, width), -1)
    for number, ((x, y), style) in enumerate(zip(curves, styles, strict=True)):
        columns = (np.asarray(x, float) - left) / (right - left) * (2 * width - 1)
        rows = (top - np.asarray(y, float)) / (top - bottom) * (4 * height - 1)
        for column, row in _dots(columns, rows, style.dash):
            cells[row // 4, column // 2] |= DOTS[row % 4, column % 2]
            owner[row // 4, column // 2] = number
    lines = []
    for marks, owners in zip(cells, owner, strict=True):
        line = Text()
        for mark, who in zip(marks, owners, strict=True):
            line.append(chr(0x2800 + mark) if mark else " ", styles[who].colours.terminal if mark else "")
        lines.append(line)
    return lines, (left, right, bottom, top)


def _ends(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    if not columns:
        return 0.0, 1.0
    low, high = float(min(c.min() for c in columns)), float(max(c.max() for c in columns))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sample(style: Style) -> Text:
    """Return a short piece of a curve in its colour and dash, for the row of a table."""
    lines, _ = plot([(np.arange(9.0), np.zeros(9))], [style], 3, 1)
    return lines[0]


def _dots(columns: np.ndarray, rows: np.ndarray, dash: str) -> list[tuple[int, int]]:
    """Return the dots on the straight lines between the points, without those in the gaps of the dash."""
    dots = {(round(column), round(row)): None for column, row in zip(columns, rows, strict=True)}
    path: dict[tuple[int, int], None] = {} if len(columns) > 1 else dots
    for i in range(len(columns) - 1):
        steps = int(max(abs(columns[i + 1] - columns[i]), abs(rows[i + 1] - rows[i]))) + 2
        between = (np.linspace(ends[i], ends[i + 1], steps) for ends in (columns, rows))
        path |= {(round(column), round(row)): None for column, row in zip(*between, strict=True)}
    pattern = PATTERNS[dash]
    return [dot for place, dot in enumerate(path) if pattern[place % len(pattern)] == "1"]
