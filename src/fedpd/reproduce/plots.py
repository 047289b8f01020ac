"""Draw formulas as lines, and measurements as points."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from fedpd.engine.views.drawing import clear_frame, line_style, line_styles
from fedpd.engine.views.style import style_of

Points = Sequence[tuple[float, float]]


def lines_figure(
    lines: Mapping[str, Points],
    points: Points,
    x: str,
    y: str,
    *,
    points_label: str,
    scales: tuple[str, str] = ("log", "log"),
) -> Figure:
    """Draw lines by label, and one set of points. Lines of different methods have the methods' styles."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    methods = {style_of(label) for label in lines} - {None}
    drawn = line_styles(list(lines)) if len(methods) == len(lines) else list(map(line_style, range(len(lines))))
    for (label, line), style in zip(lines.items(), drawn, strict=True):
        axes.plot(*zip(*line, strict=True), **style, linewidth=1.6, label=label)
    if points:
        axes.plot(*zip(*points, strict=True), "o", color="black", markersize=5, label=points_label)
    axes.set(xscale=scales[0], yscale=scales[1], xlabel=x, ylabel=y)
    clear_frame(axes)
    ncols = 2 if max(map(len, lines)) > 20 else 3  # as many columns as fit
    figure.legend(loc="outside lower center", ncols=ncols, frameon=False)
    return figure
