"""Draw many methods: the cost of each to a target as a sorted row of dots, beside five curves."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedpd.engine.measure.columns import Column
from fedpd.engine.views.drawing import NotebookFigure, clear_frame, drawable, line_styles, name_curves, panel
from fedpd.engine.views.entries import Entry
from fedpd.engine.views.numbers import short_number
from fedpd.engine.views.quantities import COSTS, axis_label, goal
from fedpd.report.reach import Reached, best_text, examples, ranked, reach

COST = COSTS["communications"]


def dot_figure(entries: Sequence[Entry], column: Column, target: float) -> NotebookFigure:
    """Return a figure with one row per method, the lowest cost first, and the curves of five of them.

    Args:
        entries: The runs by label.
        column: The quantity that has the target.
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
