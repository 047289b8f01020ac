"""Draw figures of a comparison for a paper."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedpd.base.atomic import make_folder
from fedpd.base.checks import choice
from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.views.drawing import (
    MOST_NAMED,
    PAPER,
    WIDTH,
    NotebookFigure,
    clear_frame,
    draw,
    drawable,
    line_styles,
    name_curves,
    panel,
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
from fedpd.report.reach import Reached, best_text, examples, finding, ranked, reach, targets, usual_target

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
