"""Draw the accuracies of networks from the tables of docs/networks; the runs take minutes to half an hour."""

import re
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedpd.engine.views.drawing import clear_frame, label_ends, line_styles, set_heading

FOLDER = Path(__file__).parents[2] / "docs" / "networks"
SIZE = (8.0, 4.8)  # inches
SETTINGS = re.compile(r", (?:[ηρ] = |step )[\d.]+")  # of a label, which the table shows and the figure does not

Points = list[tuple[int, float]]


def accuracies(page: str, heading: str) -> dict[str, Points]:
    """Return the curves of the first table below a heading: by label, the accuracy at each number of its first row."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    lines = re.findall(r"^\|(.*)\|$", text.split("\n## ")[0].split("\n![")[0], re.MULTILINE)
    first, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    numbers = {
        i: int(found[1]) for i, cell in enumerate(first) if (found := re.fullmatch(r"(?:rounds = )?(\d+)", cell))
    }
    curves: dict[str, Points] = {}
    label = ""
    for row in rows:
        name = SETTINGS.sub("", row[0].replace("`", ""))
        whole = label.partition(", p = ")[0]
        label = name.replace("the same", whole).replace("...", f"{whole},")
        points = [(number, float(row[i])) for i, number in numbers.items() if row[i].startswith(".")]
        curves[label + (" (diverged)" if "diverged" in row else "")] = points
    return curves


def accuracy(page: str, heading: str, title: str, cost: str) -> Figure:
    """Draw the curves of a table.

    Args:
        page: The name of a page of docs/networks.
        heading: The heading above the table.
        title: The finding.
        cost: The label of the horizontal axis.
    """
    curves = accuracies(page, heading)
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    lines = []
    for points, style in zip(curves.values(), line_styles(list(curves)), strict=True):
        lines += axes.plot(*zip(*points, strict=True), **style, linewidth=1.6, marker="o", markersize=3.5)
    axes.set(xlabel=cost, ylabel="accuracy on all test samples")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    clear_frame(axes)
    label_ends(axes, lines, list(curves), 0.78 * SIZE[1])
    set_heading(figure, title, int(12 * SIZE[0]))
    return figure
