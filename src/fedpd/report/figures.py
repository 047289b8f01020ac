"""Draw figures of a comparison for a paper, and of the theory: where skipping saves, and how much of it is allowed."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from fedpd.base.atomic import make_folder
from fedpd.base.checks import choice
from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.views.drawing import (
    COLOURS,
    MOST_NAMED,
    PAPER,
    WIDTH,
    Dash,
    NotebookFigure,
    clear_frame,
    draw,
    drawable,
    line_styles,
    name_curves,
    panel,
    plain_ticks,
    set_heading,
)
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    Entry,
    axis_label,
    drawn_quantities,
    goal,
    known_costs,
    shared_costs,
    shared_quantities,
    short_number,
)
from fedpd.experiments.recorded import Results, entries_of
from fedpd.problems.quadratic import random_quadratic
from fedpd.report.reach import Reached, best_text, examples, finding, ranked, reach, targets, usual_target
from fedpd.theory import max_eta, rates
from fedpd.theory.skipping import Drift, communications_map

COST = COSTS["communications"]


def dot_figure(entries: Sequence[Entry], column: Column, target: float) -> NotebookFigure:
    """Return a figure with one row per method, the lowest cost first, and the curves of five of them.

    Args:
        target: Its target. A method that did not reach it has an open mark and its best value in words.
    """
    order = ranked(entries, column.name, target)
    met = [(entries[i], reach(entries[i], column.name, target)) for i in order]
    height = 1.4 + 0.19 * len(entries)
    figure = NotebookFigure(figsize=(11, height), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1), height_ratios=(5.2, max(height - 5.2, 0.1)))
    dots, curves = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    _dots(dots, met, column, target)
    shown = [entries[i] for i in examples(entries, column.name, target)]
    panel(curves, shown, COST, column)
    curves.axhline(target, color="0.4", linewidth=0.8, linestyle=":")
    curves.set_ylabel(axis_label(column))
    curves.set_title(f"{len(shown)} of them, from the fewest communications to the most", fontsize="medium", loc="left")
    name_curves(curves, shown, 4.0)
    return figure


def _dots(axes: Axes, met: Sequence[tuple[Entry, Reached]], column: Column, target: float) -> None:
    spent = [found.costs[COST.name] for _, found in met if found.costs is not None]
    most = max((high for _, _, high in spent), default=1.0)
    drawn = line_styles([entry.label for entry, _ in met])
    for row, ((_, found), style) in enumerate(zip(met, drawn, strict=True)):
        if found.costs is None:
            best = best_text(found, column.name, target)
            axes.plot([1.9 * most], [row], "o", markerfacecolor="none", color=style["color"], markersize=5)
            axes.annotate(
                f"no: best {best}", (1.9 * most, row), (6, 0), textcoords="offset points", va="center", fontsize=7
            )
            continue
        mean, low, high = found.costs[COST.name]
        axes.plot([low, high], [row, row], color=style["color"], linewidth=1.2)
        axes.plot([mean], [row], "o", color=style["color"], markersize=6)
        axes.annotate(
            short_number(mean) if mean >= 1e5 else f"{mean:,.4g}", (high, row), (6, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    axes.set_yticks(range(len(met)), [drawable(entry.label, 28) for entry, _ in met], fontsize=8)
    for tick, style in zip(axes.get_yticklabels(), drawn, strict=True):
        tick.set_color(style["color"])
    axes.set(ylim=(len(met) - 0.4, -0.6), xscale="log", xlabel=f"communications until {goal(column.name, target)}")
    axes.set_xlim(right=5 * most)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    clear_frame(axes)


FORMATS = ("pdf", "svg", "png")
MARK = "fedpd report"  # the program that made a figure, as its file names it
MARKS = {"pdf": {"Creator": MARK}, "svg": {"Creator": MARK}, "png": {"Software": MARK}}
COLUMN = 3.4  # inches, of a two-column paper


def figure(
    results: Results,
    quantity: str = MAIN,
    against: str | Sequence[str] = "communications",
    *,
    title: str = "",
    width: float = WIDTH,
) -> NotebookFigure:
    """Return a figure of a quantity against its costs, with one curve per method and a band over its seeds.

    Args:
        results: A run, an ensemble, a sweep, a tuned method, a list or a dict by label of them, a folder, or a list of
            folders. A folder is one that `save`, `fedpd run` or `fedpd compare` wrote.
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".
        against: "communications", "round", "samples", "bytes", "seconds", or "network_seconds" if the runs have a
            clock; or several of them, one panel each.
        title: The title; "": the label, if there is only one, and otherwise the finding, if the figure is at least 5
            inches wide.
        width: The width in inches, e.g. 3.4 for a column of a paper.

    Returns:
        A matplotlib figure, which a notebook shows. Save it with `figure.savefig("figure.pdf")`.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, report, simulate
        >>> algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=1 / 3, iterations=4))
        >>> runs = simulate(
        ...     algorithm, problems.random_quadratic(agents=4, dimension=3), rounds=20, seed=[0, 1, 2]
        ... )
        >>> report.figure({"FedPD": runs}, width=3.4).axes[0].get_xlabel()
        'communications with the server'
    """
    entries = entries_of(results)
    if not title and len(entries) > 1 and width >= 5:
        title = found(entries, _measured(entries, quantity))
    return draw(entries, quantity, against, title=title, width=width)


def found(entries: Sequence[Entry], column: Column, target: float | None = None) -> str:
    """Return the finding for the title of a figure; "" for a quantity of which neither less nor more is better."""
    if column.better is None:
        return ""
    goal = usual_target(entries, column.name, targets(entries, column.name)) if target is None else target
    return finding(entries, column.name, goal).removesuffix(".")


def comparison_figure(
    results: Results, title: str = "", quantity: str = MAIN, *, target: float | None = None
) -> Figure:
    """Return a figure of a quantity against communications and samples, with one curve per method and a band.

    More than 12 methods are a row of dots each, at their communications to a target, beside the curves of five of them.

    Args:
        results: What `figure` takes.
        title: The title over both panels; "": the finding.
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".
        target: The value that the finding is about; None: the hardest that half of the methods reached.
    """
    entries = entries_of(results)
    column = _measured(entries, quantity)
    heading = title or found(entries, column, target)
    if len(entries) > MOST_NAMED and column.better is not None:
        goal = usual_target(entries, quantity, targets(entries, quantity)) if target is None else target
        figure = dot_figure(entries, column, goal)
    else:
        figure = NotebookFigure(figsize=(11, 4.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, cost in zip(panels, ("communications", "samples"), strict=True):
            panel(axes, entries, COSTS[cost], column)
        panels[0].set_ylabel(axis_label(column))
        name_curves(panels[1], entries, 3.5)
    if heading:
        set_heading(figure, drawable(heading, 300), 130)
    return figure


def paper_figure(results: Results, cost: str, quantity: str = MAIN) -> Figure:
    """Return a figure of a quantity against a cost, as wide as a column of a paper, with the legend below.

    Args:
        results: What `figure` takes.
        cost: "communications", "samples", "bytes" or "seconds"; "network_seconds" if the runs have a clock.
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".

    Returns:
        A figure. Save it within `matplotlib.rc_context(fedpd.report.figures.PAPER)`, so that text stays text.
    """
    entries = entries_of(results)
    column, costs = _measured(entries, quantity), shared_costs(entries)
    spent = costs[choice("cost", cost, costs)]
    with matplotlib.rc_context(PAPER):
        figure = NotebookFigure(figsize=(COLUMN, 2.2 + 0.16 * -(-len(entries) // 2)), layout="constrained")
        axes = figure.subplots()
        panel(axes, entries, spent, column, width=1.1, most=30)
        axes.set_ylabel(axis_label(column))
        figure.legend(loc="outside lower center", ncols=2, frameon=False, handlelength=2.6)
    return figure


def _pairs(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    return [(quantity.name, cost.name) for quantity in drawn_quantities(entries) for cost in known_costs(entries)]


def paper_figure_paths(entries: Sequence[Entry], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Return the files that `save_paper_figures` writes, such as stationarity-communications.pdf."""
    return [folder / f"{quantity}-{cost}.{suffix}" for quantity, cost in _pairs(entries) for suffix in formats]


def save_paper_figures(entries: Sequence[Entry], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Save every quantity against every cost, one file each, and return the paths."""
    make_folder(folder)
    for quantity, cost in _pairs(entries):
        figure = paper_figure(entries, cost, quantity)
        for suffix in formats:
            with matplotlib.rc_context(PAPER):
                figure.savefig(folder / f"{quantity}-{cost}.{suffix}", dpi=300, metadata=MARKS[suffix])
    return paper_figure_paths(entries, folder, formats)


def _measured(entries: Sequence[Entry], quantity: str) -> Column:
    return column_of(choice("quantity", quantity, [column.name for column in shared_quantities(entries)]))


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Save a figure as PNG to look at and SVG to print, and return both paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


ROWS: tuple[tuple[Drift, str], ...] = (("corrected-exact", "exact mean dual"), ("corrected", "estimated mean dual"))
ETAS = np.geomspace(0.02, 2, 33)  # eta L
STRETCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 38, 45, 54, 64)
FURTHEST = 6.0  # octaves from 1 that have different colours
LINES = (-5.0, -4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # octaves
BANDS = (  # the colour of each octave on a light page, from the largest saving to the largest cost, and on a dark one
    ("#0b3c6f", "#9fd2ff"), ("#1f61a5", "#6fb4ee"), ("#3f8ec0", "#4b93d0"), ("#7ab6d6", "#3573a8"),
    ("#b3d6e8", "#28557d"), ("#e0ecf3", "#1f3a54"), ("#fae7dc", "#4a2a28"), ("#f9c6ac", "#703530"),
    ("#ee977b", "#964036"), ("#d6604d", "#b64d3e"), ("#b52030", "#cf6551"), ("#700620", "#e3846d"),
)  # fmt: skip


def example_families() -> dict[str, np.ndarray]:
    """Return the Hessians of three families of 6 agents in 4 dimensions, eigenvalues in [0.1, 1], by their title.

    The differences between the agents grow from family to family.
    """
    shares = {"equal Hessians": 0.0, "Hessians half different": 0.5, "Hessians all different": 1.0}
    made = {
        name: random_quadratic(6, 4, convexity=0.1, heterogeneity=share, seed=3).data for name, share in shares.items()
    }
    return {name: np.asarray(data["hessian"])[:, 0] for name, data in made.items()}


def skipping_map_figure(
    families: Mapping[str, np.ndarray] | None = None,
    etas: Sequence[float] | np.ndarray = ETAS,
    stretches: Sequence[int] = STRETCHES,
) -> Figure:
    """Return a figure of the communications with k local rounds per communication, relative to k = 1.

    Each factor of 2 has its own colour. There is one column of panels per family and one row per estimate of the mean
    dual. Skipping saves communications where a panel is blue, and costs some where it is red.

    Args:
        families: The Hessians (N, d, d) of each family of quadratics, by its title; None: `example_families()`.
        etas: Values of eta L, where L is the largest eigenvalue of a family.
    """
    families = example_families() if families is None else families
    figure = Figure(figsize=(3.6 * len(families) + 1.4, 7.2), layout="constrained")
    grid = figure.subplots(len(ROWS), len(families), sharex=True, sharey=True, squeeze=False)
    for axes_row, (drift, estimate) in zip(grid, ROWS, strict=True):
        for axes, hessians in zip(axes_row, families.values(), strict=True):
            L = float(np.linalg.eigvalsh(hessians).max())
            mesh = _map(axes, etas, stretches, communications_map(hessians, np.asarray(etas) / L, stretches, drift))
        axes_row[0].set_ylabel(estimate)
    for axes, name in zip(grid[0], families, strict=True):
        axes.set_title(name, fontsize=10)
    grid[-1, len(families) // 2].set_xlabel("η L, step of a local round")
    figure.supylabel("k, local rounds per communication", fontsize=10)
    figure.suptitle("Skipping saves communications left of the thick line; a smaller η saves more", fontsize=12)
    bar = figure.colorbar(mesh, ax=grid, aspect=40, pad=0.015)
    bar.set_label("communications, relative to k = 1 at the same η\n← skipping saves     skipping costs →")
    bar.set_ticks([*LINES, 0.0], labels=[str(Fraction(2.0**octave)) for octave in (*LINES, 0.0)])
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _map(axes: Axes, etas: Any, stretches: Sequence[int], relative: np.ndarray) -> Any:
    """Draw one panel, with a colour per factor of 2, the break-even line and the best k of every eta."""
    inside = FURTHEST - 1e-6  # the outermost colours include all larger factors
    lengths, octaves = np.asarray(stretches), np.clip(np.log2(relative), -inside, inside)
    edges = np.linspace(-FURTHEST, FURTHEST, len(BANDS) + 1)
    mesh = axes.contourf(etas, lengths, octaves, levels=edges, colors=[light for light, _ in BANDS])
    mesh.set(edgecolor="face", linewidth=0.4)  # no gaps between neighbours
    skipping = lengths > 1  # k = 1 equals itself, and has no border
    axes.contour(etas, lengths[skipping], octaves[skipping], levels=[0.0], colors="black", linewidths=2)
    axes.plot([], [], color="black", linewidth=2, label="break-even")
    best = lengths[relative.argmin(axis=0)]
    axes.step(etas, best, color="black", linewidth=1.2, linestyle=":", where="mid", label="best k at this η")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]))
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16, 32, 64]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        plain_ticks(axis)
    return mesh


def skip_probability_figure(L: float = 1.0, eta: float | None = None, ratios: np.ndarray | None = None) -> Figure:
    """Return the paper's Figure 1, p against epsilon/delta^2: its rule, two approximations, and the guaranteed p.

    Args:
        eta: The penalty parameter; None: the paper's choice, half the bound of Theorem 1.
    """
    eta = max_eta(L) / 2 if eta is None else eta
    curves = rates.savings(np.geomspace(1e-3, 1e8, 200) if ratios is None else ratios, L, eta)
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    shown: tuple[tuple[np.ndarray, str, Dash], ...] = (
        (curves.exact, "the paper's rule, C(p) ≤ ε/(3δ²), solved", "-"),
        (curves.linear, "its linear approximation", "--"),
        (curves.logarithmic, "its logarithmic approximation", "-."),
        (curves.guaranteed, "guaranteed, whatever the fᵢ", "-"),
    )
    for (values, label, dash), colour in zip(shown, COLOURS, strict=False):
        axes.plot(curves.ratio, values, linestyle=dash, color=colour, linewidth=1.9, label=label)
    axes.set(xscale="log", ylim=(-0.02, 1.04))
    axes.set_xlabel("ε/δ², target accuracy over differences between agents")
    axes.set_ylabel("p, share of communications that may be skipped")
    axes.set_title(f"η L = {eta * L:.3g}", fontsize=10)
    clear_frame(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
