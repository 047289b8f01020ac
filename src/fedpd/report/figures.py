"""Figures of a comparison, fit for a paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from fedpd.experiments.runner import Result
from fedpd.report.reach import COSTS, QUANTITIES, cost_columns, known_costs
from fedpd.report.recorded import Entry

Dash = str | tuple[int, tuple[int, ...]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")  # Okabe and Ito
# A cycle whose length is coprime to the colours': 40 styles, and curves that coincide can both be seen.
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
FORMATS = ("pdf", "svg", "png")
COLUMN = 3.4  # inches, of a two-column paper
PAPER: dict[Any, Any] = {  # text stays text
    "font.size": 8, "legend.fontsize": 7, "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


def comparison_figure(results: Sequence[Result | Entry], title: str = "", quantity: str = "stationarity") -> Figure:
    """Stationarity (on a log scale) or accuracy against communications and against samples; a band spans the seeds."""
    legend_rows = -(-len(results) // 4)
    figure = Figure(figsize=(11, 4.3 + 0.24 * legend_rows), layout="constrained")
    by_communications, by_samples = figure.subplots(1, 2, sharey=True)
    for number, result in enumerate(results):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        _curve(by_communications, result, "communications", quantity, colour, dash)
        _curve(by_samples, result, "samples", quantity, colour, dash)
    by_communications.set_ylabel(QUANTITIES[quantity].words.partition(",")[0])
    for axes, cost in ((by_communications, "communications"), (by_samples, "samples")):
        _style(axes, cost, quantity)
    handles, labels = by_communications.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def paper_figure(results: Sequence[Result | Entry], cost: str, quantity: str = "stationarity") -> Figure:
    """One panel as wide as a column of a paper, its legend below. Save it within `matplotlib.rc_context(PAPER)`."""
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(COLUMN, 2.2 + 0.16 * -(-len(results) // 2)), layout="constrained")
        axes = figure.subplots()
        for number, result in enumerate(results):
            _curve(axes, result, cost, quantity, COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], 1.1)
        axes.set_ylabel(QUANTITIES[quantity].words.partition(",")[0])
        _style(axes, cost, quantity, most=30)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, handlelength=2.6)
    return figure


def save_paper_figures(entries: Sequence[Entry], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Every measure against every cost, a file each: stationarity-communications.pdf and so on."""
    measures = [name for name in ("stationarity", "loss", "test_accuracy") if name in entries[0].runs[0].history]
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for quantity in measures:
        for cost in known_costs(entries):
            figure = paper_figure(entries, cost, quantity)
            for suffix in formats:
                paths.append(folder / f"{quantity}-{cost}.{suffix}")
                with matplotlib.rc_context(PAPER):
                    figure.savefig(paths[-1], dpi=300)
    return paths


def _style(axes: Axes, cost: str, quantity: str, most: float = np.inf) -> None:
    """`most`: the ratio of the ends of an axis up to which there is room for labels between the powers of ten."""
    axes.set_xlabel(COSTS[cost].removesuffix(" together"))
    if cost != "communications":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        low, high = axes.get_xlim()
        axes.xaxis.set_minor_formatter(FuncFormatter(_twos_and_fives) if high / low <= most else NullFormatter())
    axes.set_yscale("log" if quantity == "stationarity" else "linear")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(
    axes: Axes, result: Result | Entry, cost: str, quantity: str, colour: str, dash: Dash, width: float = 1.6
) -> None:
    rows = min(len(run.history["round"]) for run in result.runs)
    x = np.mean([cost_columns(run)[cost][:rows] for run in result.runs], axis=0)
    y = np.array([run.history[quantity][:rows] for run in result.runs])
    logarithmic = quantity == "stationarity"
    drawn = (y > 0).all(axis=0) if logarithmic else True
    shown = np.isfinite(y).all(axis=0) & drawn & ((x > 0) | (cost == "communications"))
    x, y = x[shown], y[:, shown]
    middle = np.exp(np.log(y).mean(axis=0)) if logarithmic else y.mean(axis=0)
    axes.plot(x, middle, linestyle=dash, color=colour, linewidth=width, label=result.label)
    if len(y) > 1:
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _twos_and_fives(value: float, _: int | None) -> str:
    """The labels between powers of ten: 200k and 500k, so that an axis of less than a decade can be read."""
    return EngFormatter(sep="")(value) if f"{value:e}"[0] in "25" else ""


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """As PNG to look at and SVG to print."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
