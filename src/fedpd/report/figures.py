"""Figures of a comparison, fit for a paper."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from fedpd.runner import Result

Dash = str | tuple[int, tuple[int, ...]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")  # Okabe and Ito
# A cycle whose length is coprime to the colours': 40 styles, and curves that coincide can both be seen.
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))


QUANTITIES = {"stationarity": "stationarity  ‖∇f(x₀)‖²", "test_accuracy": "accuracy on all test samples"}


def comparison_figure(results: Sequence[Result], title: str = "", quantity: str = "stationarity") -> Figure:
    """Stationarity (on a log scale) or accuracy against communications and against samples; a band spans the seeds."""
    legend_rows = -(-len(results) // 4)
    figure = Figure(figsize=(11, 4.3 + 0.24 * legend_rows), layout="constrained")
    by_communications, by_samples = figure.subplots(1, 2, sharey=True)
    for number, result in enumerate(results):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        _curve(by_communications, result, "communications", quantity, colour, dash)
        _curve(by_samples, result, "samples", quantity, colour, dash)
    by_communications.set_ylabel(QUANTITIES[quantity])
    by_communications.set_xlabel("communications with the server")
    by_samples.set_xlabel("sample gradients computed, all agents")
    by_samples.set_xscale("log")
    by_samples.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_samples.xaxis.set_minor_formatter(FuncFormatter(_twos_and_fives))
    for axes in (by_communications, by_samples):
        axes.set_yscale("log" if quantity == "stationarity" else "linear")
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = by_communications.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def _curve(axes: Axes, result: Result, cost: str, quantity: str, colour: str, dash: Dash) -> None:
    rows = min(len(run.history["round"]) for run in result.runs)
    x = np.mean([run.history[cost][:rows] for run in result.runs], axis=0)
    y = np.array([run.history[quantity][:rows] for run in result.runs])
    logarithmic = quantity == "stationarity"
    drawn = (y > 0).all(axis=0) if logarithmic else True
    shown = np.isfinite(y).all(axis=0) & drawn & ((x > 0) | (cost == "communications"))
    x, y = x[shown], y[:, shown]
    middle = np.exp(np.log(y).mean(axis=0)) if logarithmic else y.mean(axis=0)
    axes.plot(x, middle, linestyle=dash, color=colour, linewidth=1.6, label=result.label)
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
