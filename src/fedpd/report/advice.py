"""Show advice and tuning: tables, a figure, and the experiment files that run the recommended settings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from fedpd.algorithms import variants
from fedpd.base.spec import Spec
from fedpd.engine.measure.columns import column_of
from fedpd.engine.measure.history import first_row
from fedpd.engine.views.entries import COSTS, cost_text, cost_values, short_number, unequal_work, value_text, works_of
from fedpd.experiments.calls import build_algorithm, toml_text
from fedpd.report.tables import text_table
from fedpd.search.advise import Advice, Setting, makes_progress
from fedpd.search.tuned import Tuned
from fedpd.search.views import SETTINGS, amount_text, goal_text, number_text
from fedpd.search.views import sensitivity_figure as sensitivity_figure

LARGE_FEATURE = 30.0  # a root mean square of a feature above this is large
SPREAD = 100.0  # so is a larger ratio between two features
MOST_SCALED = 1e12  # beyond this, the scaled Hessian is singular too, and scaling mends nothing
ILL = 1e4  # a condition number above this is large


def constants_table(advice: Advice) -> Table:
    """Return a table of the measured constants of the problem, and how each was measured."""
    smoothness, similarity, hessians = advice.smoothness, advice.similarity, advice.hessians
    bound = "for all x" if np.isfinite(advice.delta) else "no bound for all x is known: skipping is not guaranteed"
    where = "at the start" if hessians.points == 1 else "at the start and where a trial ended"
    at_least, at_most = ("", "") if hessians.exact else ("at least ", "at most ")
    meaning = f"largest |eigenvalue| of the mean Hessian H, {hessians.largest:.4g}, over the smallest; {where}"
    if hessians.least < 0:
        meaning += f"; the least eigenvalue is {at_most}{hessians.least:.4g}"
    condition = "unknown" if hessians.condition is None else f"{at_least}{hessians.condition:.4g}"
    rows = [
        ("L", f"{smoothness.value:.4g}", f"smoothness of the f_i; {smoothness.how}"),
        ("delta, measured", f"{similarity.centred:.4g}", f"max ||grad f_i - grad f||; {similarity.how}"),
        ("delta, bound", f"{advice.delta:.4g}", bound),
        ("max ||H_i - H||", f"{at_least}{hessians.dissimilarity:.4g}", f"how much the Hessians differ; {where}"),
        ("condition number", condition, meaning),
        ("f(x^0) - inf f", f"{advice.gap:.4g}", f"at most; {advice.gap_how}"),
    ]
    headings = ("constant", "value", "meaning")
    return text_table("The problem", headings, rows, right=("value",), fold=headings)


def settings_table(advice: Advice) -> Table:
    """Return a table of the settings, side by side."""
    rows = [
        (name, *(text(setting) for setting in advice.shown.values()))
        for name, text in (SETTINGS | COSTS_OF_SETTINGS).items()
    ]
    title = f"FedPD to ||grad f||^2 <= {advice.epsilon:g}"
    return text_table(title, ("", *advice.shown), rows, right=advice.shown, fold=advice.shown)


COSTS_OF_SETTINGS: dict[str, Callable[[Setting], str]] = {
    "communications saved": lambda setting: (  # a trial that failed saved nothing
        f"{1 - setting.communications / max(setting.rounds, 1):.1%}" if setting.reached else "-"
    ),
    "rounds": lambda setting: amount_text(setting, setting.rounds),
    "communications": lambda setting: amount_text(setting, setting.communications),
    "sample gradients": lambda setting: amount_text(setting, setting.samples),
    "bytes, up and down": lambda setting: amount_text(setting, setting.transfer),
    "because": lambda setting: setting.how,
}


def advice_notes(advice: Advice) -> list[str]:
    """Return the notes on the settings, as sentences."""
    notes = [*_comparison(advice), *advice.hints, *_scaling(advice)]
    notes += [
        "Theorem 1 proves the guaranteed setting for any L-smooth f_i, so it is pessimistic by orders of magnitude."
        + (" The recommended setting is a heuristic that fedpd tried on this problem." if advice.recommended else ""),
        f"The paper's own rule for p, C(p) <= epsilon/(3 delta^2), gives {advice.paper_p:.3g} at the measured delta; "
        'it drops a constant and leaves an error floor. drift="corrected" and p="auto" skip without one.',
    ]
    if advice.smoothness.exact:
        notes.append("L is exact, so a large eta saves more here than skipping, and every round communicates.")
    else:
        known = "an upper bound" if advice.smoothness.bound else "an estimate that includes a safety factor"
        auto = 'p="auto" skips the communications that this wastes.'
        without = 'Not all agents take part, so p="auto" does not apply.'
        heuristic = advice.recommended or advice.failed[-1]
        said = auto if "p" in heuristic.table else without
        notes.append(f"L is {known}, so eta may be too small. {said}")
    return notes


def _comparison(advice: Advice) -> list[str]:
    """Return which of the settings that were tried needs fewer communications, and which failed."""
    recommended, untuned = advice.recommended, advice.untuned
    notes = [f"Tried, and not recommended: eta = {number_text(one.table['eta'])}; {one.how}." for one in advice.failed]
    if recommended is None:
        notes.append(_none_found(advice))
    if untuned is None and any(one.table["eta"] == "auto" for one in advice.failed):
        notes.append(f"The untuned setting (fedpd solve) did not reach {advice.epsilon:g} in its trial.")
    elif untuned is None:
        notes.append(
            "fedpd solve was not tried. It needs all agents, with all their steps, in every round, and room for the "
            "memory of all agents."
        )
    elif recommended is None:
        notes.append(f"Use the untuned setting (fedpd solve): it needs {untuned.communications:.0f} communications.")
    else:
        ours, theirs = untuned.communications, recommended.communications
        better = "the untuned setting (fedpd solve)" if ours < theirs else "the recommended setting"
        verdict = "Both settings need as many communications" if ours == theirs else f"Use {better}"
        costs = (
            f"{one.communications:.0f}, {cost_text(COSTS['bytes'], one.transfer)} and {short_number(one.samples)}"
            for one in (untuned, recommended)
        )
        spent = "Communications, bytes and sample gradients: untuned {}, recommended {}.".format(*costs)
        works = {"untuned": untuned, "recommended": recommended}
        unequal = unequal_work({name: one.samples / max(one.communications, 1) for name, one in works.items()})
        notes.append(f"{verdict}. {spent}" + (f" {unequal}." if unequal else ""))
    return notes


def _none_found(advice: Advice) -> str:
    """Return what to do if no trial of the heuristic setting reached epsilon."""
    last = advice.failed[-1]
    if makes_progress(last):
        return (
            f"No setting is recommended: none reached {advice.epsilon:g} in its trial. The last one made progress, so "
            "more rounds (pilot) or a larger epsilon may do."
        )
    return (
        "No setting is recommended: all trials diverged or made no progress, the last with eta = "
        f"{number_text(last.table['eta'])}. Scale the features, start from another model, or use the guaranteed one."
    )


def _scaling(advice: Advice) -> list[str]:
    """Return a note if scaling mends a large condition number, or if features have very different or large sizes."""
    condition, scaled, features = advice.hessians.condition, advice.hessians.scaled, advice.features
    if condition is not None and scaled is not None and condition > ILL and scaled <= min(condition / 10, MOST_SCALED):
        return [
            f"Scale the features: data.standardise. The condition number is {condition:.2g}, and {scaled:.2g} if every "
            "parameter is scaled so that the mean Hessian has ones on its diagonal."
        ]
    if features is None or (features[1] <= LARGE_FEATURE and features[1] <= SPREAD * features[0]):
        return []
    return [
        f"Scale the features: data.standardise. Their root mean squares range from {features[0]:.2g} to "
        f"{features[1]:.2g}, so the curvature L changes a lot from model to model, and a step size fits only a few."
    ]


def advised_tables(advice: Advice) -> list[dict[str, Any]]:
    """Return the settings for an experiment file. One that failed its trial is left out, or else needs more rounds."""
    return [one.table for one in reversed(advice.shown.values()) if makes_progress(one)]


def experiment_text(problem: str, run: Mapping[str, object], tables: Sequence[dict[str, object]]) -> str:
    """Return an experiment file from the lines of its problem, its [run] table, and the tables of its methods."""
    methods = "\n\n".join(f"[[algorithm]]\n{toml_text(table)}" for table in tables)
    return f"[problem]\n{problem}\n\n[run]\n{toml_text(run)}\n\n{methods}\n"


def tuning_table(tuned: Sequence[Tuned], target: float | None) -> Table:
    """Return a table of the best settings of each method; for rules, beside the step size of the rule itself."""
    works = works_of(entry for one in tuned for entry in one.entries())
    unequal, words = unequal_work(works), column_of(tuned[0].criterion).name.replace("_", " ")
    goal = (
        f"{words} at the end" if target is None else f"communications to {goal_text(tuned, '||grad f||^2 <=', target)}"
    )
    title = f"Best settings, by {goal}"
    rows = []
    for one in tuned:
        better = column_of(one.criterion).better or "less"
        first = first_row(one.runs[0].history[one.criterion], target, better) if target and one.reached else None
        row, costs = -1 if first is None else first, cost_values(one.runs[0])
        rows.append(
            (
                one.label,
                step_text(one.method, one.table) if one.method else one.setting,
                f"{one.scales[one.best]:.3g}" + ("!" if one.edges else ""),
                _outcome(one),
                _by_rule(one),
                f"{cost_text(COSTS['samples'], costs['samples'][row])},\n{short_number(works[one.label])}",
                cost_text(COSTS["bytes"], costs["bytes"][row]),
            )
        )
    outcome = "at the end" if target is None else "comm."
    headings = ("method", "setting", "x rule", outcome, "by the\nrule", "samples,\nper comm.", "bytes")
    return text_table(
        f"{title}. {unequal}." if unequal else title,
        headings,
        rows,
        right=headings[2:],
        whole=("setting",) if all(one.method for one in tuned) else (),
        fold=headings,
        caption="x rule: the factor on the method's own rule, or the first local step; with !: at the edge of what was "
        "tried. never: not reached, with the best value at the end. samples, per comm.: sample gradients of all "
        "agents, in all and per communication",
    )


def _outcome(one: Tuned) -> str:
    """Return the communications to the target; without one, or if it was not reached, the value at the end."""
    if one.reached:
        return f"{one.communications[one.best]:.4g}"
    last = value_text(column_of(one.criterion), one.values[one.best])
    return last if one.target is None else f"never: {last}"


def _by_rule(one: Tuned) -> str:
    own = int(np.argmin(np.abs(np.log(one.scales))))
    if one.searched != "scale" or not np.isclose(one.scales[own], 1.0):
        return "-"
    return "never" if np.isnan(one.communications[own]) else f"{one.communications[own]:.4g}"


Path = tuple[str, ...]  # the keys that lead to a setting, from the method inwards


def scaled_setting(label: str) -> Path:
    """Return the keys of the setting that the factor of a method's rule multiplies or divides.

    The function makes the method by its rule with the factors 1 and 2, and compares the settings. If several settings
    double or halve, it returns the outermost.

    Examples:
        >>> from fedpd.report.advice import scaled_setting
        >>> scaled_setting("FedPD-GD"), scaled_setting("Cooperative SGD")
        (('eta',), ('oracle', 'step'))
    """
    once, twice = (dict(_numbers(variants()[label].rule(1.0, 2, factor).spec)) for factor in (1.0, 2.0))
    scaled = [
        path
        for path, one in once.items()
        if (two := twice.get(path, one)) != one and (math.isclose(two, 2 * one) or math.isclose(two, one / 2))
    ]
    return min(scaled, key=len)


def step_text(label: str, table: Mapping[str, Any]) -> str:
    """Return the step size of a method's table by its own symbol, such as "eta = 1.4"."""
    *outer, last = scaled_setting(label)
    spec = build_algorithm(table, rounds=1).spec  # a table leaves out settings that have their default
    for key in outer:
        spec = spec[key]
    value = f"{spec[last]:.3g}"
    return f"{outer[-1]} = {value}/sqrt" if spec.name == "inverse_sqrt" else f"{last} = {value}"


def _numbers(spec: Spec, path: Path = ()) -> Iterator[tuple[Path, float]]:
    for key, value in spec.settings:
        if isinstance(value, Spec):
            yield from _numbers(value, (*path, key))
        elif type(value) in (int, float):
            yield (*path, key), value
