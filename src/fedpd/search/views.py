"""Show sweeps, tuned methods and advice as text, as a table in a notebook, and as a figure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpd.base.spec import Spec
from fedpd.engine.measure.columns import column_of
from fedpd.engine.views.entries import (
    MAIN,
    Entry,
    end_text,
    last_value,
    local_work,
    short_number,
    unequal_work,
    value_text,
    works_of,
)
from fedpd.engine.views.notebook import entries_html, html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpd.search.advise import Setting
    from fedpd.search.tune import Tuned


AMOUNTS = {"rounds": "rounds", "communications": "communications", "samples": "sample gradients", "transfer": "bytes"}


def plain_setting(value: Any) -> Any:
    """Return a setting as a number or a text, for labels and frames."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return value
    spec = getattr(value, "spec", None)
    return spec.label() if isinstance(spec, Spec) else str(value)


def point_label(point: Mapping[str, Any]) -> str:
    """Return a point of a grid as text, such as "eta=0.1, p=0.5"."""
    plain = {name: plain_setting(value) for name, value in point.items()}
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in plain.items())


def sweep_text(entries: Sequence[Entry], names: Sequence[str], seeds: Sequence[int]) -> str:
    """Return a sweep in three lines: its size, its best point, and how many points diverged."""
    diverged, best = sum(entry.diverged for entry in entries), _best(entries)
    lines = [
        f"Sweep over {', '.join(names)}: {len(entries)} points, seeds {', '.join(str(seed) for seed in seeds)}",
        f"  {max(entry.rounds for entry in entries):,} rounds",
    ]
    if best is not None:
        lines.append(f"  lowest stationarity {end_text(best, column_of(MAIN))} at {best.label}")
        lines += [f"  {note}" for note in _work_notes(entries)]
    return "\n".join(lines + ([f"  {diverged} of {len(entries)} points diverged"] if diverged else []))


def sweep_html(entries: Sequence[Entry], names: Sequence[str], seeds: Sequence[int]) -> str:
    """Return a sweep as a table with one row per point."""
    caption, best = f"Sweep over {', '.join(names)}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", _best(entries)
    notes = [] if best is None else [f"Lowest stationarity: {best.label}", *_work_notes(entries)]
    return entries_html(caption, entries, ", ".join(names), notes)


def _work_notes(entries: Sequence[Entry]) -> list[str]:
    unequal = unequal_work(works_of(entries))
    return [unequal] if unequal else []


def _best(entries: Sequence[Entry]) -> Entry | None:
    """Return the entry with the lowest mean stationarity at the end, of those without a diverged seed."""
    whole = [entry for entry in entries if all(run.diverged is None for run in entry.runs)]
    return min(whole, key=lambda entry: np.mean([last_value(run, MAIN) for run in entry.runs]), default=None)


def tuned_text(tuned: "Tuned") -> str:
    """Return a tuned method in two lines, with its best factor and the result."""
    tried = f"{len(tuned.scales)} factors from {tuned.scales.min():.3g} to {tuned.scales.max():.3g} on its own rule"
    return f"Tuned {tuned.label}: {tried}\n  best factor {tuned.scales[tuned.best]:.3g}: {_best_outcome(tuned)}"


def tuned_html(tuned: "Tuned") -> str:
    """Return a tuned method as a table with one row per factor."""
    tries = zip(tuned.scales, tuned.communications, tuned.stationarity, strict=True)
    rows = [
        [
            f"{scale:.3g}" + (" (best)" if i == tuned.best else ""),
            "not reached" if np.isnan(spent) else f"{spent:.4g}",
            value_text(column_of(MAIN), last),
        ]
        for i, (scale, spent, last) in enumerate(tries)
    ]
    head = ("factor on the method's rule", "communications to the target", "stationarity ‖∇f‖² at the end")
    return html_table(f"Tuned {tuned.label}", head, rows)


def _best_outcome(tuned: "Tuned") -> str:
    i = tuned.best
    last = value_text(column_of(MAIN), tuned.stationarity[i])
    if np.isnan(tuned.communications[i]):
        return f"the target was not reached, stationarity {last} at the end"
    work = short_number(local_work(tuned.entries()[0]))
    return (
        f"{tuned.communications[i]:.4g} communications to the target, with {work} sample gradients each, "
        f"stationarity {last} at the end"
    )


def sensitivity_figure(tuned: "Sequence[Tuned]", target: float | None = None, rounds: int | None = None) -> "Figure":
    """Draw the communications to the target against the factor on each method's own step size.

    Args:
        tuned: The tries of each method.
        target: The value to reach, for the label of the axis.
        rounds: The rounds of each try, for the note about gaps.
    """
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    from fedpd.engine.views.drawing import (
        NotebookFigure,
        clear_frame,
        drawable,
        line_styles,
        plain_ticks,
        set_heading,
        set_log_scale,
    )

    figure = NotebookFigure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for one, style in zip(tuned, line_styles([one.label for one in tuned]), strict=True):
        reached = not np.isnan(one.communications[one.best])
        label = drawable(one.label) + ("" if reached else " (never)")
        axes.plot(one.scales, one.communications, **style, marker="o", markersize=3.5, label=label)
        if reached:
            best = (one.scales[one.best], one.communications[one.best])
            axes.plot(*best, marker="o", markersize=9, markerfacecolor="none", color=style["color"])
    set_log_scale(axes, "x", base=2)
    if all(np.isnan(one.communications).all() for one in tuned):
        axes.text(0.5, 0.5, "No method reached the target.", ha="center", va="center", transform=axes.transAxes)
    if set_log_scale(axes, "y"):
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    axes.axvline(1.0, color="0.7", linewidth=0.8, zorder=0)
    plain_ticks(axes.xaxis)
    axes.set_xlabel("factor on the step size of the method's own rule (circle: best)")
    goal = "the target" if target is None else goal_text(tuned, "‖∇f‖² ≤", target)
    axes.set_ylabel(f"communications to {goal}")
    within = "" if rounds is None else f" within {rounds} rounds"
    axes.set_title(f"gaps: not reached{within}", fontsize=9, loc="right", color="0.4")
    unequal = unequal_work(works_of(entry for one in tuned for entry in one.entries()))
    if unequal:
        set_heading(figure, drawable(unequal, 200), 100)
    clear_frame(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def goal_text(tuned: "Sequence[Tuned]", stationarity: str, target: float) -> str:
    """Return the target as text, such as "test accuracy >= 0.9"; `stationarity` is its usual symbol with <=."""
    column = column_of(tuned[0].criterion)
    if column.name == MAIN:
        return f"{stationarity} {target:g}"
    return f"{column.symbol or column.name} {'>=' if column.better == 'more' else '<='} {target:g}"


def amount_text(setting: "Setting", number: float) -> str:
    """Return a cost of a setting, such as "1,200" or "more than 1,200" if the target was not reached."""
    text = f"{number:,.0f}" if number < 1e7 else f"{number:.2g}"
    return text if setting.reached else f"more than {text}"


def number_text(value: Any, digits: int = 4) -> str:
    """Return a setting that is a number or a word, such as "auto"."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def _local_step(setting: "Setting") -> str:
    step = setting.table["oracle"].get("step")
    return "by line search" if step is None else number_text(step)


def _local_steps(setting: "Setting") -> str:
    oracle = setting.table["oracle"]
    if "iterations" not in oracle:
        return f"as {oracle['name']} needs"
    most = f"{oracle['iterations']}"
    return f"{most}, or until ||grad L_i||^2 <= {oracle['tolerance']:.1e}" if "tolerance" in oracle else most


SETTINGS: dict[str, Callable[[Any], str]] = {  # what a setting consists of
    "eta": lambda setting: number_text(setting.table["eta"]),
    "local step 1/(L + 1/eta)": _local_step,
    "local steps Q": _local_steps,
    "skip probability p": lambda setting: number_text(setting.table.get("p", 0.0), 3),
    "memory, in rounds": lambda setting: str(setting.table.get("memory", 0)),
}


def advice_text(epsilon: float, settings: "Mapping[str, Setting]", failed: "Sequence[Setting]" = ()) -> str:
    """Return advice in one line per setting, with the trials that failed at the end."""
    lines = [f"Advice for ||grad f||^2 <= {epsilon:g}"]
    for name, setting in settings.items():
        spent = f"{amount_text(setting, setting.communications)} communications"
        spent += f", {amount_text(setting, setting.samples)} sample gradients"
        lines.append(f"  {name}: {_short_setting(setting)}: {spent}")
    if "recommended" not in settings:
        lines.append("  recommended: none, because no trial reached the target")
    return "\n".join(lines + [f"  failed: {_short_setting(one)}: {one.how}" for one in failed])


def _short_setting(setting: "Setting") -> str:
    table = setting.table
    more = f"memory = {table['memory']}" if "memory" in table else f"p = {number_text(table.get('p', 0.0), 3)}"
    return f"FedPD with eta = {number_text(table['eta'])}, {more}"


def advice_html(epsilon: float, settings: "Mapping[str, Setting]") -> str:
    """Return advice as a table with one column per setting, and the reasons below."""
    values = settings.values()
    rows = [[words, *(text(one) for one in values)] for words, text in SETTINGS.items()]
    rows += [[words, *(amount_text(one, getattr(one, name)) for one in values)] for name, words in AMOUNTS.items()]
    notes = [f"{name}: {setting.how}" for name, setting in settings.items()]
    return html_table(f"Advice: FedPD to ‖∇f‖² ≤ {epsilon:g}", ("", *settings), rows, notes)


def advice_figure(epsilon: float, settings: "Mapping[str, Setting]") -> "Figure":
    """Draw the costs of each setting to reach epsilon, on one logarithmic axis."""
    from fedpd.engine.views.drawing import NotebookFigure, clear_frame, line_style, set_log_scale

    figure = NotebookFigure(figsize=(6.4, 2.8), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(AMOUNTS))[::-1]
    for number, (name, setting) in enumerate(settings.items()):
        amounts = [getattr(setting, one) for one in AMOUNTS]
        label = name if setting.reached else f"{name}: more than"
        axes.plot(amounts, places, "so^"[number], color=line_style(number)["color"], label=label)
    axes.set_yticks(places, list(AMOUNTS.values()))
    axes.set_ylim(-0.6, len(AMOUNTS) - 0.4)
    set_log_scale(axes, "x")
    axes.set_xlabel(f"spent until ‖∇f‖² ≤ {epsilon:g}")
    clear_frame(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
