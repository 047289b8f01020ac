"""Draw figures of a comparison, fit for a paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from fedpd.base.checks import choice
from fedpd.engine.columns import Column, column_of
from fedpd.report.quantities import (
    COSTS,
    MAIN,
    axis_label,
    cost_values,
    drawn_quantities,
    known_costs,
    shared_quantities,
)
from fedpd.report.recorded import Entry, Results, entries_of

Dash = str | tuple[int, tuple[int, ...]]


class LineStyle(TypedDict):
    """The colour and dash of a curve, as matplotlib's `plot` takes them."""

    color: str
    linestyle: Dash


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")  # Okabe and Ito
# A cycle whose length is coprime to the colours': 40 styles, and curves that coincide can both be seen.
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
FORMATS = ("pdf", "svg", "png")
COLUMN = 3.4  # inches, of a two-column paper
PAPER: dict[Any, Any] = {  # text stays text
    "font.size": 8, "legend.fontsize": 7, "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


def comparison_figure(results: Results, title: str = "", quantity: str = MAIN) -> Figure:
    """Draw a quantity against communications and against samples, one curve per method; a band spans the seeds.

    Args:
        results: A mapping of labels to a `Run` or an `Ensemble`, or the results of an experiment.
        title: The title over both panels.
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".
    """
    entries = entries_of(results)
    column = _measured(entries, quantity)
    figure = Figure(figsize=(11, 4.3 + 0.24 * -(-len(entries) // 4)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, cost in zip(panels, ("communications", "samples"), strict=True):
        _panel(axes, entries, COSTS[cost], column)
    panels[0].set_ylabel(axis_label(column))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def paper_figure(results: Results, cost: str, quantity: str = MAIN) -> Figure:
    """Draw a quantity against a cost in one panel as wide as a column of a paper, with the legend below.

    Args:
        results: A mapping of labels to a `Run` or an `Ensemble`, or the results of an experiment.
        cost: "communications", "samples", "bytes" or "seconds".
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".

    Returns:
        A figure. Save it within `matplotlib.rc_context(fedpd.report.figures.PAPER)`, so that text stays text.
    """
    entries = entries_of(results)
    column, spent = _measured(entries, quantity), COSTS[choice("cost", cost, COSTS)]
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(COLUMN, 2.2 + 0.16 * -(-len(entries) // 2)), layout="constrained")
        axes = figure.subplots()
        _panel(axes, entries, spent, column, width=1.1, most=30)
        axes.set_ylabel(axis_label(column))
        figure.legend(loc="outside lower center", ncols=2, frameon=False, handlelength=2.6)
    return figure


def save_paper_figures(entries: Sequence[Entry], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Save every quantity against every cost, one file each, such as stationarity-communications.pdf."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for quantity in drawn_quantities(entries):
        for cost in known_costs(entries):
            figure = paper_figure(entries, cost.name, quantity.name)
            for suffix in formats:
                paths.append(folder / f"{quantity.name}-{cost.name}.{suffix}")
                with matplotlib.rc_context(PAPER):
                    figure.savefig(paths[-1], dpi=300)
    return paths


def line_style(number: int) -> LineStyle:
    """Return the colour and dash of the curve of this number; 40 of them differ."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def clear_frame(axes: Axes) -> None:
    """Draw a faint grid and no frame at the top and the right."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _measured(entries: Sequence[Entry], quantity: str) -> Column:
    return column_of(choice("quantity", quantity, [column.name for column in shared_quantities(entries)]))


def _panel(
    axes: Axes, entries: Sequence[Entry], cost: Column, column: Column, width: float = 1.6, most: float = np.inf
) -> None:
    """Draw all curves. Labels stand between powers of ten if the ends of the axis differ by at most `most`."""
    for number, entry in enumerate(entries):
        _curve(axes, entry, cost, column, line_style(number), width)
    axes.set_xlabel(cost.words.removesuffix(" together"))
    if cost.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        low, high = axes.get_xlim()
        axes.xaxis.set_minor_formatter(FuncFormatter(_twos_and_fives) if high / low <= most else NullFormatter())
    axes.set_yscale("log" if column.log else "linear")
    clear_frame(axes)


def _curve(axes: Axes, entry: Entry, cost: Column, column: Column, style: LineStyle, width: float) -> None:
    rows = min(len(run.history["round"]) for run in entry.runs)
    x = np.mean([cost_values(run)[cost.name][:rows] for run in entry.runs], axis=0)
    y = np.array([run.history[column.name][:rows] for run in entry.runs])
    drawn = np.isfinite(y).all(axis=0) & np.isfinite(x)
    drawn &= (y > 0).all(axis=0) if column.log else True
    drawn &= x > 0 if cost.log else True
    x, y = x[drawn], y[:, drawn]
    middle = np.exp(np.log(y).mean(axis=0)) if column.log else y.mean(axis=0)
    axes.plot(x, middle, **style, linewidth=width, label=entry.label)
    if len(y) > 1:
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def _twos_and_fives(value: float, _: int | None) -> str:
    """Return the labels between powers of ten, 200k and 500k, so that an axis of less than a decade can be read."""
    return EngFormatter(sep="")(value) if f"{value:e}"[0] in "25" else ""


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Save a figure as PNG to look at and SVG to print, and return both paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
