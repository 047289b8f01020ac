"""Draw curves of runs: a quantity against a cost, with one curve per method and a band over its seeds."""

import io
from collections.abc import Sequence
from textwrap import fill
from typing import Any, Literal, TypedDict

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.mathtext import MathTextParser
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from fedpd.base.checks import at_most, choice, positive, refuse
from fedpd.engine.measure.columns import NETWORK, Column, column_of
from fedpd.engine.views.entries import COSTS, MAIN, Entry, axis_label, cost_values, shared_costs, shared_quantities
from fedpd.engine.views.style import DASHES, HUES, ORDER, Style, numbered_style, styles

Dash = str | tuple[float, tuple[float, ...]]


class LineStyle(TypedDict):
    """The colour and dash of a curve, as matplotlib's `plot` takes them."""

    color: str
    linestyle: Dash


COLOURS = tuple(HUES[name].light for name in ORDER)  # of curves that are no methods, such as formulas
WIDTH = 6.4  # inches
WIDEST = 100.0  # inches; matplotlib draws at most 65536 pixels
PAPER: dict[Any, Any] = {  # figures keep text as text
    "font.size": 8, "legend.fontsize": 7, "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip
MOST_NAMED = 12  # curves with names at their ends; a legend names more
NAME_SIZE = 9  # points of the names at the ends of curves
GAP = 0.02  # between the axes and the names at the ends of curves, in widths of the axes
AXES = {"round": column_of("round"), **COSTS, NETWORK.name: NETWORK}  # the possible horizontal axes


class NotebookFigure(Figure):
    """A matplotlib figure that a notebook shows with any backend, also without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def draw(
    entries: Sequence[Entry],
    quantity: str = MAIN,
    against: str | Sequence[str] = "communications",
    *,
    title: str = "",
    width: float = WIDTH,
) -> NotebookFigure:
    """Return a figure of a quantity against one cost, or one panel per cost.

    Args:
        quantity: A column of the histories, such as "stationarity" or "test_accuracy".
        against: "communications", "round", "samples", "bytes", "seconds" or "network_seconds", or several of them.
        title: The title; "": the label, if there is only one.
        width: The width in inches. Text has 8 points below 5 inches, as in a column of a paper, and 10 above.
    """
    column = column_of(choice("quantity", quantity, [one.name for one in shared_quantities(entries)]))
    names = [against] if isinstance(against, str) else list(against)
    costs = [AXES[choice("against", name, AXES)] for name in names]
    if NETWORK in costs and NETWORK.name not in shared_costs(entries):
        refuse("against", NETWORK.name, "a run has no clock", "Give it one: run.timed(fedpd.clock.network(...))")
    remedy = "Give the width of the figure in inches, e.g. 3.4 for a column of a paper"
    at_most("width", positive("width", width, remedy), WIDEST, remedy)
    single = len(entries) == 1
    with matplotlib.rc_context(PAPER if width < 5 else {"pdf.fonttype": 42, "svg.fonttype": "none"}):
        figure = NotebookFigure(layout="constrained")
        panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
        line, most = (1.1, 30.0) if width / len(costs) < 5 else (1.6, 60.0)
        for axes, cost in zip(panels, costs, strict=True):
            panel(axes, entries, cost, column, width=line, most=most)
        panels[0].set_ylabel(axis_label(column))
        beside = width >= 5 and 1 < len(entries) <= MOST_NAMED
        lines = _legend(figure, panels[0], entries, column, width, named=not single and not beside)
        height = max(0.62 * width / len(costs), 2.1 if width < 5 else 2.8)
        figure.set_size_inches(width, height + 0.19 * lines)
        if beside:
            name_curves(panels[-1], entries, 0.8 * height)
        heading = drawable(title or (entries[0].label + _diverged(entries[0]) if single else ""), 300)
        if heading:
            set_heading(figure, heading, int(12 * width))
    return figure


def _legend(figure: Figure, axes: Axes, entries: Sequence[Entry], column: Column, width: float, *, named: bool) -> int:
    """Put the legend below the figure, in as many columns as fit, and return its number of lines."""
    handles, labels = axes.get_legend_handles_labels()
    if not named:
        handles, labels = [], []
    seeds = max((len(entry.usable) for entry in entries if _seeds_differ(entry, column)), default=0)
    if seeds:
        handles.append(Patch(color="0.5", alpha=0.25, linewidth=0))
        labels.append(f"range of {seeds} seeds")
    if not labels:
        return 0
    longest = max(map(len, labels))
    ncols = max(1, min(len(labels), int(width / (0.45 + 0.07 * longest))))
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False, handlelength=2.6)
    return -(-len(labels) // ncols)


def _seeds_differ(entry: Entry, column: Column) -> bool:
    """Return whether the seeds differ, so that there is a band. Those of a method without randomness agree."""
    first, *others = (run.history[column.name] for run in entry.usable)
    return any(not np.array_equal(first, other, equal_nan=True) for other in others)


def line_style(number: int) -> LineStyle:
    """Return the colour and dash of the curve of this number, for curves that are no methods; 40 of them differ."""
    return _drawn(numbered_style(number))


def line_styles(labels: Sequence[str]) -> list[LineStyle]:
    """Return the colour and dash of each method's curve; see `fedpd.engine.views.style`."""
    return [_drawn(style) for style in styles(labels)]


def _drawn(style: Style) -> LineStyle:
    dash = DASHES[style.dash]
    return {"color": style.colours.light, "linestyle": (0, dash) if dash else "-"}


def drawable(text: str, longest: int = 60) -> str:
    """Return a text of the user's as matplotlib can draw it: on one line, not too long, with valid mathematics only.

    Examples:
        >>> from fedpd.engine.views.drawing import drawable
        >>> drawable("p=0.5"), len(drawable("x" * 300))
        ('p=0.5', 60)
    """
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    try:
        MathTextParser("path").parse(text)
    except (ValueError, RuntimeError):
        text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text  # matplotlib leaves such a label out


def set_heading(figure: Figure, text: str, width: int) -> None:
    """Write the finding above a figure, in lines of at most `width` characters."""
    figure.suptitle(fill(text, width, break_on_hyphens=False), fontsize="medium")


def plain_ticks(axis: Axis) -> None:
    """Label an axis with numbers such as 0.5 and 200, also a logarithmic one."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def clear_frame(axes: Axes) -> None:
    """Draw a faint grid and no frame at the top and the right."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def set_log_scale(axes: Axes, which: Literal["x", "y"], **options: Any) -> bool:
    """Make an axis logarithmic if a positive number is drawn on it, and return whether there is one.

    A logarithmic axis without a positive number cannot be drawn: a run may diverge before its first measured round.
    """
    drawn = [np.asarray(line.get_xdata() if which == "x" else line.get_ydata(), float) for line in axes.lines]
    found = any((np.isfinite(values) & (values > 0)).any() for values in drawn)
    if found:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", **options)
    return found


def panel(
    axes: Axes, entries: Sequence[Entry], cost: Column, column: Column, width: float = 1.6, most: float = 60.0
) -> None:
    """Draw all curves. Labels stand between powers of ten if the ends of the axis differ by at most `most`."""
    for entry, style in zip(entries, line_styles([entry.label for entry in entries]), strict=True):
        _curve(axes, entry, cost, column, style, width)
    axes.set_xlabel(cost.words.removesuffix(" together"))
    if cost is NETWORK:
        _show_hours(axes)
    if cost.log and set_log_scale(axes, "x"):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        low, high = axes.get_xlim()
        axes.xaxis.set_minor_formatter(FuncFormatter(_twos_and_fives) if high / low <= most else NullFormatter())
    elif np.issubdtype(cost.dtype, np.integer):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if column.log:
        set_log_scale(axes, "y")
    if column.unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if not any(np.size(line.get_xdata()) for line in axes.lines):
        axes.text(0.5, 0.5, "no value that can be drawn", transform=axes.transAxes, ha="center", color="0.4")
        axes.set(xticks=[], yticks=[])
    clear_frame(axes)


def _show_hours(axes: Axes) -> None:
    """Label an axis of simulated seconds in hours or minutes if it is long."""
    end = float(axes.get_xlim()[1])
    word, size = ("hours", 3600) if end >= 7200 else ("minutes", 60) if end >= 120 else ("seconds", 1)
    ticks = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10]).tick_values(0, end / size)
    axes.xaxis.set_major_locator(FixedLocator([size * tick for tick in ticks if 0 <= size * tick <= end]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axes.set_xlabel(f"{word} on your network")


def _curve(axes: Axes, entry: Entry, cost: Column, column: Column, style: LineStyle, width: float) -> None:
    runs = entry.usable
    rows = min(len(run.history["round"]) for run in runs)
    x = np.mean([{**cost_values(run), "round": run.history["round"]}[cost.name][:rows] for run in runs], axis=0)
    y = np.array([run.history[column.name][:rows] for run in runs], float)
    drawn = np.isfinite(y).all(axis=0) & np.isfinite(x)
    drawn &= (y > 0).all(axis=0) if column.log else True
    drawn &= x > 0 if cost.log else True
    x, y = x[drawn], y[:, drawn]
    middle = np.exp(np.log(y).mean(axis=0)) if column.log else y.mean(axis=0)
    marker = "o" if len(x) == 1 else ""  # a line needs two points
    axes.plot(
        x, middle, **style, marker=marker, markersize=4, linewidth=width, label=drawable(entry.label) + _diverged(entry)
    )
    if len(y) > 1:
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)
    if entry.diverged and len(x):
        axes.scatter(x[-1:], middle[-1:], marker="X", s=64, color=style["color"], zorder=3, clip_on=False)


def name_curves(axes: Axes, entries: Sequence[Entry], height: float) -> None:
    """Write the methods' names at the ends of their curves; `height` is that of the axes in inches."""
    named = {
        drawable(entry.label) + _diverged(entry): drawable(entry.label, 32) + _diverged(entry) for entry in entries
    }
    lines = [line for line in axes.lines if line.get_label() in named]
    label_ends(axes, lines, [named[str(line.get_label())] for line in lines], height)


def _diverged(entry: Entry) -> str:
    """Return the addition to a label in the legend, such as " (diverged)" or " (1 of 3 diverged)"."""
    return f" ({entry.divergence})" if entry.divergence else ""


def _twos_and_fives(value: float, _: int | None) -> str:
    """Return the labels between powers of ten, 200k and 500k, so that an axis of less than a decade can be read."""
    return EngFormatter(sep="")(value) if f"{value:e}"[0] in "25" else ""


def label_ends(axes: Axes, lines: Sequence[Line2D], names: Sequence[str], height: float) -> None:
    """Write the name of each line to the right of the axes, at the height of its end, and no two at the same place.

    Args:
        axes: The axes, with their final limits.
    """
    drawn = [(line, name) for line, name in zip(lines, names, strict=True) if np.size(line.get_xdata())]
    ends = np.array([_end(axes, line) for line, _ in drawn]).reshape(-1, 2)
    places = spread(ends[:, 1], 1.25 * NAME_SIZE / 72 / height)
    for (line, name), end, place in zip(drawn, ends, places, strict=True):
        axes.annotate(
            name, (min(end[0], 1.0), end[1]), (1 + GAP, place), "axes fraction", "axes fraction",
            color=line.get_color(), fontsize=NAME_SIZE, va="center", ha="left", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line.get_color(), "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def _end(axes: Axes, line: Line2D) -> np.ndarray:
    """Return the last point of a line, in widths and heights of the axes."""
    x, y = np.asarray(line.get_xdata(), float)[-1], np.asarray(line.get_ydata(), float)[-1]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    end, low, high = axes.transScale.transform([[x, y], [left, bottom], [right, top]])
    return np.clip((end - low) / np.where(high > low, high - low, 1), 0, 1)


def spread(places: np.ndarray, gap: float) -> np.ndarray:
    """Return places that are at least `gap` apart, in the same order and as near to the given ones as this allows.

    Examples:
        >>> import numpy as np
        >>> from fedpd.engine.views.drawing import spread
        >>> spread(np.array([0.5, 0.5, 0.9]), 0.1).round(3).tolist()
        [0.45, 0.55, 0.9]
    """
    order = np.argsort(places, kind="stable")
    moved = places[order] - gap * np.arange(len(places))
    blocks: list[tuple[float, int]] = []  # mean and size: isotonic regression by pooling neighbours that are too near
    for place in moved:
        mean, size = float(place), 1
        while blocks and blocks[-1][0] > mean:
            before, number = blocks.pop()
            mean, size = (before * number + mean * size) / (number + size), number + size
        blocks.append((mean, size))
    fitted = np.concatenate([np.full(size, mean) for mean, size in blocks]) if blocks else moved
    found = np.empty(len(places))
    found[order] = fitted + gap * np.arange(len(places))
    return found
