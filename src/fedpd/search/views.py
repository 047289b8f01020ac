"""Show sweeps, tuned methods and advice as text, as a table in a notebook, and as a figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpd.base.spec import Spec
from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    Entry,
    cost_text,
    end_text,
    entries_html,
    heading,
    html_table,
    kept_words,
    last_value,
    local_work,
    short_number,
    target_text,
    unequal_work,
    value_text,
    works_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpd.search.advise import Setting
    from fedpd.search.compare import Comparison
    from fedpd.search.tuned import Tuned


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
    """Return a tuned method in a few lines: what was searched, its best setting and the result."""
    by_rule = tuned.searched == "scale"
    best = f"best factor {tuned.scales[tuned.best]:.3g}" if by_rule else f"best: {tuned.setting}"
    lines = [f"Tuned {tuned.label}: {_tries_text(tuned)}", f"  {best}: {_best_outcome(tuned)}"]
    return "\n".join(lines + [f"  {note}" for note in edge_notes([tuned])])


def _tries_text(tuned: "Tuned") -> str:
    number, scales = len(tuned.points), tuned.scales
    if tuned.searched == "scale":
        return f"{number} factors from {scales.min():.3g} to {scales.max():.3g} on its own rule"
    if not tuned.searched:
        return "nothing to search"
    return f"{number} tries of {', '.join(tuned.points[0])}"


def edge_notes(tuned: "Iterable[Tuned]") -> list[str]:
    """Return a sentence for each method whose best value lies at the edge of those that were tried."""
    return [
        f"{one.label}: the best {' and the best '.join(one.edges)} {'lies' if len(one.edges) == 1 else 'lie'} "
        "at the edge of what was tried. A better value may lie beyond. Give a larger budget or a wider range."
        for one in tuned
        if one.edges
    ]


def tuned_html(tuned: "Tuned") -> str:
    """Return a tuned method as a table with one row per try."""
    column = column_of(tuned.criterion)
    tries = zip(tuned.points, tuned.communications, tuned.values, strict=True)
    rows = [
        [
            (point_label(point) or "as given") + (" (best)" if i == tuned.best else ""),
            "not reached" if np.isnan(spent) else f"{spent:.4g}",
            value_text(column, last),
        ]
        for i, (point, spent, last) in enumerate(tries)
    ]
    head = ("setting", "communications to the target", f"{heading(column)} at the end")
    return html_table(f"Tuned {tuned.label}", head, rows, edge_notes([tuned]))


def _best_outcome(tuned: "Tuned") -> str:
    i, column = tuned.best, column_of(tuned.criterion)
    last = f"{column.name.replace('_', ' ')} {value_text(column, tuned.values[i])} at the end"
    if tuned.target is None:
        return last
    if not tuned.reached:
        return f"the target was not reached, {last}"
    work = short_number(local_work(tuned.entries()[0]))
    return f"{tuned.communications[i]:.4g} communications to the target, with {work} sample gradients each, {last}"


def sensitivity_figure(tuned: "Sequence[Tuned]", target: float | None = None, rounds: int | None = None) -> "Figure":
    """Draw the tries of each method: the communications to the target, or the value at the end if there is none.

    Args:
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
    by_target = tuned[0].target is not None
    for one, style in zip(tuned, line_styles([one.label for one in tuned]), strict=True):
        heights = one.communications if by_target else np.where(np.isfinite(one.values), one.values, np.nan)
        reached = not np.isnan(heights[one.best])
        label = drawable(one.label) + ("" if reached else " (never)")
        # Tries of several settings do not lie on a curve over one of them, so they are points.
        drawn = style if len(one.points[0]) == 1 else {"color": style["color"], "linestyle": "none"}
        order = np.argsort(one.scales)
        axes.plot(one.scales[order], heights[order], **drawn, marker="o", markersize=3.5, label=label)
        if reached:
            best = (one.scales[one.best], heights[one.best])
            axes.plot(*best, marker="o", markersize=9, markerfacecolor="none", color=style["color"])
    set_log_scale(axes, "x", base=2)
    if by_target and all(np.isnan(one.communications).all() for one in tuned):
        axes.text(0.5, 0.5, "No method reached the target.", ha="center", va="center", transform=axes.transAxes)
    if by_target and set_log_scale(axes, "y"):
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    if all(one.searched == "scale" for one in tuned):
        axes.axvline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axes.set_xlabel("factor on the step size of the method's own rule (circle: best)")
    else:
        axes.set_xlabel("first local step size, or factor on the rule (circle: best)")
    plain_ticks(axes.xaxis)
    column = column_of(tuned[0].criterion)
    goal = "the target" if target is None else goal_text(tuned, "‖∇f‖² ≤", target)
    axes.set_ylabel(f"communications to {goal}" if by_target else f"{column.name.replace('_', ' ')} at the end")
    within = "" if rounds is None else f" within {rounds} rounds"
    axes.set_title(
        f"gaps: not reached{within}" if by_target else "gaps: diverged", fontsize=9, loc="right", color="0.4"
    )
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
    if "epochs" in oracle:
        return f"{oracle['epochs']} epochs in batches of {oracle.get('batch', 1)}"
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


def comparison_rows(found: "Comparison") -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the headings and the rows of a comparison: each method with its value at the end and its local work."""
    column, finals = column_of(found.criterion), found.finals()
    worst = "test_accuracy_worst"
    spread = all(worst in run.history for one in found.methods for run in one.runs)
    rows = []
    for one in found.methods:
        cells = [one.label, _mean_text(column, finals[one.label])]
        if spread:
            lowest = [last_value(run, worst) for run in one.runs if run.diverged is None]
            cells.append(value_text(column_of(worst), float(np.mean(lowest))) if lowest else "-")
        work = short_number(local_work(one.entries()[0]))
        rows.append([*cells, work, f"{len(one.points)}"])
    more = ("worst 10 % of agents",) if spread else ()
    head = ("method", f"{heading(column)} at the end", *more, "samples per comm.", "tries")
    return head, rows


def setting_lines(found: "Comparison") -> list[str]:
    """Return the method with its best setting of each label."""
    return [f"{one.label}: {one.setting}" for one in found.methods]


def _mean_text(column: Column, values: np.ndarray) -> str:
    """Return the mean and the standard deviation over the seeds that did not diverge, and how many did."""
    finite = values[np.isfinite(values)]
    lost = len(values) - len(finite)
    if not len(finite):
        return "diverged"
    text = value_text(column, float(finite.mean()))
    if len(finite) > 1:
        text += f" ± {value_text(column, float(finite.std(ddof=1)))}"
    return text + (f" ({lost} of {len(values)} diverged)" if lost else "")


def target_rows(found: "Comparison") -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the headings and the rows of the costs of each method to each target, as means over the seeds."""
    rows = []
    for target in found.targets:
        spent = {name: found.costs(target, name) for name in COSTS}
        for one in found.methods:
            texts = []
            for name, column in COSTS.items():
                values = spent[name][one.label]
                reached = values[~np.isnan(values)]
                text = cost_text(column, float(reached.mean())) if len(reached) else "-"
                if name == "communications" and len(reached) < len(values):
                    text += f" ({len(reached)} of {len(values)} seeds)"
                texts.append(text)
            rows.append([target_text(found.criterion, target), one.label, *texts])
    return ("to", "method", *(name.replace("_", " ") for name in COSTS)), rows


def comparison_title(found: "Comparison") -> str:
    """Return the title of a comparison; it begins with unequal local work if there is any, and ends with edges."""
    unequal = unequal_work(works_of(found.entries()))
    title = f"{len(found.methods)} methods on {found.problem}, {found.work}, at most {found.budget} tries each"
    edges = sum(bool(one.edges) for one in found.methods)
    title = f"{unequal}: {title}" if unequal else title
    return f"{title}; {edges} with the best settings at the edge of what was tried" if edges else title


def comparison_notes(found: "Comparison") -> list[str]:
    """Return how a comparison was made, and what a reader has to know."""
    seeds = ", ".join(map(str, found.seeds))
    notes = [f"Settings were chosen by: {found.chosen}.", f"Results are of seeds {seeds}, on all training samples."]
    if found.targets:
        notes.append(kept_words(column_of(found.criterion)))
    return notes + edge_notes(found.methods)


def comparison_text(found: "Comparison") -> str:
    """Return a comparison as text: two tables and the notes."""
    parts = [comparison_title(found), plain_table(*comparison_rows(found))]
    if found.targets:
        parts.append(plain_table(*target_rows(found)))
    return "\n\n".join([*parts, "\n".join(setting_lines(found)), "\n".join(comparison_notes(found))])


def comparison_html(found: "Comparison") -> str:
    """Return a comparison as two tables."""
    first = html_table(
        comparison_title(found), *comparison_rows(found), [*setting_lines(found), *comparison_notes(found)]
    )
    if not found.targets:
        return first
    return first + html_table("Costs until the target was reached and kept, means over the seeds", *target_rows(found))


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of text with aligned columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
