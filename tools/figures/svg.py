"""Save a figure as a pair of SVG files for light and dark pages, with a digest of what was drawn."""

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedpd.engine.views.style import HUES
from fedpd.report.figures import BANDS

INK, SOFT = "#1b1f24", "#59636e"  # of texts and axes on a light page
DARK = {INK: "#e8ebee", SOFT: "#a3adb8", "#ffffff": "#1e2129"}
DARK |= {hue.light: hue.dark for hue in HUES.values()} | dict(BANDS)
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "path", "svg.hashsalt": "fedpd", "font.family": ["sans-serif"], "text.color": INK,
    "axes.edgecolor": SOFT, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "grid.color": "#b0b0b0",
}  # fmt: skip
CLOSE = 0.1  # of a point, which nobody sees
MARK = re.compile(r"drawn:([0-9a-f]{16})")


def digest(figure: Figure) -> str:
    """Return a hash of what a figure shows: its texts, and its numbers to four digits.

    It does not depend on the version of matplotlib or on the fonts of the machine, as the file does.
    """
    seen: list[str] = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        seen += [axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        seen += [text.get_text() for text in axes.texts]
        for line in axes.lines:
            seen += [str(line.get_color()), _numbers(line.get_xdata()), _numbers(line.get_ydata())]
        seen += [_numbers(patch.get_path().vertices) for patch in axes.patches]
        seen += [
            _numbers(image.get_array()) for image in (*axes.images, *axes.collections) if image.get_array() is not None
        ]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _numbers(values: Any) -> str:
    flat: np.ndarray = np.ma.filled(np.ma.asarray(values, float), np.nan).ravel()
    return " ".join(f"{value:.3e}" for value in flat)


def save(figure: Figure, path: Path) -> None:
    """Write PATH.svg and PATH-dark.svg."""
    file = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Source": f"drawn:{digest(figure)}"}
        )
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_shortened(found[1])}"', file.getvalue())
    text = re.sub(r'( [xy]="|translate\()([^")]*)', lambda found: found[1] + _rounded(found[2]), text)
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text).replace("DejaVuSans-", "D-")
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.svg").write_text(text, encoding="utf-8")
    path.with_name(f"{path.name}-dark.svg").write_text(darkened(text), encoding="utf-8")


def _rounded(numbers: str, digits: int = 1) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{round(float(found[0]), digits):g}", numbers)


def _shortened(path: str) -> str:
    """Return a path with fewer digits, and without the points that a straight line passes at 0.1 or less."""
    if re.search(r"[A-KN-Y]", path):  # curves, which glyphs and dots have
        return _rounded(path, 2)
    parts = []
    for part in path.split("M")[1:]:
        points = np.array(re.findall(r"-?[\d.]+", part), float).reshape(-1, 2)
        joined = "\nL ".join(f"{x} {y}" for x, y in points[_corners(points)])
        parts.append(f"M {joined}" + ("\nz" if "z" in part else ""))
    return _rounded("\n".join(parts))


def _corners(points: np.ndarray) -> list[int]:
    """Return the points of a line that have to stay (Ramer, Douglas and Peucker)."""
    kept, todo = {0, len(points) - 1}, [(0, len(points) - 1)]
    while todo:
        first, last = todo.pop()
        between = points[first + 1 : last] - points[first]
        if not len(between):
            continue
        along = points[last] - points[first]
        share = np.clip(between @ along / max(along @ along, 1e-12), 0, 1)
        away = np.linalg.norm(between - share[:, None] * along, axis=1)
        if away.max() > CLOSE:
            middle = first + 1 + int(away.argmax())
            kept.add(middle)
            todo += [(first, middle), (middle, last)]
    return sorted(kept)


def darkened(text: str) -> str:
    """Return an SVG with the colours for dark pages. Black fills are not in the text: they are the default of SVG."""
    known = {light.lower(): dark for light, dark in DARK.items()}
    text = text.replace("<svg ", f'<svg fill="{known["#000000"]}" ', 1)
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: known.get(found[0].lower(), found[0]), text)


def recorded_digest(path: Path) -> str:
    """Return the digest that a saved figure holds, or "" if there is none."""
    file = path.with_name(f"{path.name}.svg")
    found = MARK.search(file.read_text(encoding="utf-8")) if file.exists() else None
    return found[1] if found else ""
