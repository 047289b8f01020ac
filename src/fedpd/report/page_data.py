"""Make what a page shows of runs and of their problem.

Of runs: the curves with their bands, and the costs to every target of the slider. Of a problem: its size, L, delta, and
how much its agents differ at the start x^0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.checks import FedpdError, shown
from fedpd.core import Problem
from fedpd.engine.measure.columns import KNOWN, NETWORK, Column
from fedpd.engine.measure.history import LARGE_PROBLEM
from fedpd.engine.views.entries import (
    Entry,
    cost_values,
    drawn_quantities,
    goal,
    heading,
    kept_words,
    known_costs,
    measured_rows,
    shared_quantities,
)
from fedpd.engine.views.style import DASHES, Style, styles
from fedpd.experiments.calls import build_problem
from fedpd.report.reach import best_text, departures, examples, reach, sentence, starts_at_best, targets, usual_target
from fedpd.theory.dissimilarity import start_gradients

POINTS = 400  # per curve, since a screen cannot show more; the costs use all rows
MOST_CURVES = 12  # that a page shows at first; of more methods it shows five, and all in the table of costs
ENTRIES = 10  # beyond this many curves, each gets fewer points

Numbers = list[float | None]


def page_data(entries: Sequence[Entry], wanted: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """Return the data of the page's script, as plain numbers and texts; None replaces numbers that are not finite.

    Args:
        wanted: The quantities to show first, with their targets (None, as for the others: `usual_target` chooses).
    """
    wanted = wanted or {}
    quantities = sorted(shared_quantities(entries), key=lambda column: column.name not in wanted)
    costs = known_costs(entries)
    scales = _scales(entries, costs)
    offered = {column: _targets(entries, column, wanted.get(column.name)) for column in quantities}
    measured = [_quantity(entries, column, offered[column], wanted.get(column.name)) for column in quantities]
    return {
        "quantities": measured,
        "shown": _shown(entries, quantities[0], measured[0]),
        "costs": [_shown_cost(cost, cost.name in scales) for cost in costs],
        "entries": [
            {"style": style_data(style), **_entry(entry, offered, costs, scales, len(entries))}
            for entry, style in zip(entries, styles([entry.label for entry in entries]), strict=True)
        ],
    }


BETTER = {"less": "Lower is better.", "more": "Higher is better.", None: ""}


def plain_words(column: Column) -> str:
    """Return what a column means, in a sentence without symbols, and whether less or more is better."""
    usual = f"{column.words[:1].upper()}{column.words[1:]}." if column.name in KNOWN else ""
    return f"{column.plain or usual} {BETTER[column.better]}".strip()


def is_drawable(entry: Entry) -> bool:
    """Return whether a method has a finite value of the quantity that the page begins with."""
    first = drawn_quantities([entry])[:1]
    return any(np.isfinite(run.history[column.name]).any() for column in first for run in entry.runs)


def _shown(entries: Sequence[Entry], column: Column, found: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the methods whose curves the page shows at first."""
    if len(entries) <= MOST_CURVES or not found["targets"]:
        return list(range(len(entries)))
    return examples(entries, column.name, found["targets"][found["chosen"]])


def style_data(style: Style) -> dict[str, str]:
    """Return a method's colours and dash for a page's script; `stroke` is the dash of an SVG line of width 3."""
    stroke = " ".join(f"{3 * length:g}" for length in DASHES[style.dash])
    return {"light": style.colours.light, "dark": style.colours.dark, "dash": style.dash, "stroke": stroke}


def _scales(entries: Sequence[Entry], costs: Sequence[Column]) -> dict[str, float]:
    """Return 3600, the seconds of an hour, for the simulated time if it is long; nothing otherwise."""
    long = NETWORK in costs and any(run.history[NETWORK.name][-1] >= 7200 for entry in entries for run in entry.runs)
    return {NETWORK.name: 3600.0} if long else {}


def _shown_cost(cost: Column, hours: bool) -> dict[str, Any]:
    words, unit = (cost.words.replace("seconds", "hours"), "h") if hours else (cost.words, cost.unit)
    return {"name": cost.name, "title": cost.symbol or cost.name, "words": words, "unit": unit, "log": cost.log}


def _targets(entries: Sequence[Entry], column: Column, also: float | None) -> list[float]:
    compares = column.better is not None and not starts_at_best(entries, column.name)
    return targets(entries, column.name, also) if compares else []


def _quantity(entries: Sequence[Entry], column: Column, offered: list[float], target: float | None) -> dict[str, Any]:
    values = [run.history[column.name] for entry in entries for run in entry.runs]
    return {
        "name": column.name,
        "words": column.words,
        "plain": plain_words(column),
        "kept": kept_words(column),
        "share": column.unit == "share",
        "range": _axis_range(entries, column),
        "log": column.log,
        "positive": all((value[np.isfinite(value)] >= 0).all() for value in values),
        **_findings(entries, column, offered, target),
    }


def _axis_range(entries: Sequence[Entry], column: Column) -> list[float] | None:
    """Return the ends of the axis of a share: the first rounds must not hide the differences of the others."""
    if column.unit != "share":
        return None
    runs = [run for entry in entries for run in entry.usable]
    late = [run.history[column.name][run.history["round"] >= max(1, run.history["round"][-1] / 20)] for run in runs]
    values = np.concatenate(late)
    values = values[np.isfinite(values)]
    if not len(values) or not np.ptp(values):
        return None
    room = 0.1 * np.ptp(values)
    return [max(0.0, float(values.min() - room)), float(values.max() + room)]


def _findings(entries: Sequence[Entry], column: Column, offered: list[float], target: float | None) -> dict[str, Any]:
    """Return the targets of a quantity, the one that the page shows first, and the finding of each by cost."""
    costs = known_costs(entries)
    if not offered:
        words = f"{heading(column)}: the page shows only curves, because less is not better nor more for this column."
        words = departures(entries, column.name) if column.better else words
        return {"targets": [], "goals": [], "chosen": 0, "findings": {cost.name: [words] for cost in costs}}
    chosen = usual_target(entries, column.name, offered) if target is None else target
    met = {one: [(entry.label, reach(entry, column.name, one)) for entry in entries] for one in offered}
    return {
        "targets": offered,
        "goals": [goal(column.name, one) for one in offered],
        "chosen": offered.index(chosen),
        "findings": {cost.name: [sentence(met[one], column.name, one, cost) for one in offered] for cost in costs},
    }


def _entry(
    entry: Entry,
    offered: Mapping[Column, list[float]],
    costs: Sequence[Column],
    scales: Mapping[str, float],
    entries: int,
) -> dict[str, Any]:
    rows = min(len(run.history["round"]) for run in entry.usable)
    kept = _drawn_rows(entry, offered, rows, POINTS if entries <= ENTRIES else POINTS // 2)
    each = [cost_values(run) for run in entry.usable]
    spent = [{name: values / scales.get(name, 1) for name, values in one.items()} for one in each]
    return {
        "label": entry.label,
        "seeds": len(entry.runs),
        "together": _ran_together(entry),
        "diverged": entry.diverged,
        "divergence": entry.divergence,
        "round": entry.usable[0].history["round"][:rows][kept].tolist(),
        "x": {c.name: _finite(np.mean([values[c.name][:rows] for values in spent], axis=0)[kept]) for c in costs},
        "y": {column.name: _band(entry, column, rows, kept) for column in offered},
        "reached": {
            column.name: [_cells(entry, column.name, target, costs, scales) for target in found]
            for column, found in offered.items()
        },
    }


def _ran_together(entry: Entry) -> bool:
    """Return whether several seeds ran as one program: they then have the same seconds at each row."""
    first, *others = (run.elapsed for run in entry.usable)
    return bool(others) and all(np.array_equal(first, one, equal_nan=True) for one in others)


def _drawn_rows(entry: Entry, columns: Iterable[Column], rows: int, points: int) -> np.ndarray:
    """Return which of the first `rows` to draw: for each column, about `points` of those in which it was measured."""
    found = []
    for column in columns:
        measured = np.unique(np.concatenate([measured_rows(run, column.name) for run in entry.usable]))
        measured = measured[measured < rows]
        found.append(measured[thinned(len(measured), points)])
    return np.unique(np.concatenate(found))


def thinned(rows: int, points: int) -> np.ndarray:
    """Return the rows to draw, evenly spread and with more early rows, for linear and logarithmic axes."""
    if rows <= points:
        return np.arange(rows)
    even = np.linspace(0, rows - 1, points * 3 // 4)
    early = np.geomspace(1, rows - 1, points // 4)
    return np.unique(np.round(np.concatenate([even, early])).astype(int))


def _band(entry: Entry, column: Column, rows: int, kept: np.ndarray) -> dict[str, Numbers]:
    """Return the mean, the least and the most over the seeds that did not diverge; the mean is geometric if `log`."""
    y = np.array([run.history[column.name][:rows][kept] for run in entry.usable], np.float64)
    if len(y) == 1:
        return {"mean": _finite(y[0])}
    with np.errstate(all="ignore"):  # a run may have diverged
        geometric = column.log and (y > 0).all()
        mean = np.exp(np.log(y).mean(axis=0)) if geometric else y.mean(axis=0)
    return {"mean": _finite(mean), "low": _finite(y.min(axis=0)), "high": _finite(y.max(axis=0))}


def _cells(
    entry: Entry, name: str, target: float, costs: Sequence[Column], scales: Mapping[str, float]
) -> dict[str, Any]:
    met = reach(entry, name, target)
    if met.costs is None:
        return {"seeds": met.seeds, "best": best_text(met, name, target)}
    spent = [np.array(met.costs[cost.name]) / scales.get(cost.name, 1) for cost in costs]
    return {"costs": [_finite(numbers, 12) for numbers in spent]}  # the script rounds them, once


def _finite(numbers: np.ndarray, digits: int = 5) -> Numbers:
    """Return the numbers rounded to more digits than a curve shows; None replaces those that JSON cannot write."""
    return [float(f"{number:.{digits}g}") if np.isfinite(number) else None for number in numbers]


MOST_NUMBERS = 25_000_000  # parameters x agents of the gradients in memory; beyond, only some agents are measured
MOST_SHOWN = 100  # agents or labels in a picture; more cannot be seen


class Facts(NamedTuple):
    """The facts about a problem that the report shows."""

    rows: Mapping[str, str]  # names and values, such as "smoothness L" and "1.3 (exact)"
    distances: np.ndarray  # ||grad f_i(x^0) - grad f(x^0)|| of n agents, the largest first (n,)
    # cosines of the angles between the gradients of m agents at x^0, similar agents side by side (m, m)
    alignment: np.ndarray
    labels: np.ndarray | None  # the shares of K labels of these agents (K, m); None if the data have no labels
    shown: str  # which agents were measured, such as "all 100 agents"
    # the names of the n agents in the order of `distances`, and of the m agents; None: the data have none
    names: tuple[list[str], list[str]] | None = None


def rebuild(table: Mapping[str, Any], *, download: bool = False) -> Problem | str:
    """Return the problem of an experiment file, or the reason why it is not built, such as missing data."""
    data = table.get("data")
    if not download and isinstance(data, Mapping) and data.get("name") == "hub" and not _is_folder(data.get("source")):
        source = shown(data.get("source"))
        return f"Its data {source} come from the network, and a report fetches nothing unless you give --download."
    try:
        return build_problem(table)
    except (FedpdError, OSError) as error:
        return str(error)


def _is_folder(source: Any) -> bool:
    try:
        return isinstance(source, str) and Path(source).is_dir()
    except (OSError, ValueError):
        return False


def facts(problem: Problem) -> Facts:
    """Return the facts about a problem, measured at its start; for a very large problem, from some agents only."""
    number = min(problem.agents, max(2, MOST_NUMBERS // problem.dimension))
    every = number == problem.agents
    some = problem if every else problem.subset(_spread(problem.agents, number))
    gradients = start_gradients(some)
    centred = gradients - gradients.mean(axis=0)
    each = np.linalg.norm(centred, axis=1)
    farthest = np.argsort(-each, kind="stable")
    distances = each[farthest]
    chosen = _spread(some.agents, min(some.agents, MOST_SHOWN))
    alignment, order = _alignment(gradients[chosen])
    shares = _label_shares(some.subset(chosen[order]))
    whom = f"all {problem.agents:,} agents" if every else f"{some.agents:,} of {problem.agents:,} agents"
    rows = {
        "problem": problem.name.replace("_", " "),
        "agents N": f"{problem.agents:,}",
        "samples": f"{problem.samples:,}, {_each(problem.sizes)}",
        "parameters": f"{problem.dimension:,}, {'float64' if problem.double else 'float32'}",
        "smoothness L": _smoothness(problem),
        "heterogeneity δ": _heterogeneity(problem, distances, whom),
        "‖∇f(x⁰)‖": f"{np.linalg.norm(gradients.mean(axis=0)):.3g}",
    }
    called = None if some.names is None else [str(name) for name in some.names]
    names = None if called is None else ([called[i] for i in farthest], [called[i] for i in chosen[order]])
    return Facts(rows, distances, alignment, shares, whom, names)


def _spread(agents: int, number: int) -> np.ndarray:
    """Return `number` of the agents, evenly spread over all of them."""
    return np.linspace(0, agents - 1, number).round().astype(int)


def _each(sizes: np.ndarray) -> str:
    equal = sizes.min() == sizes.max()
    return f"{sizes.min():,} per agent" if equal else f"{sizes.min():,} to {sizes.max():,} per agent"


def _smoothness(problem: Problem) -> str:
    if problem.answer.smoothness is None and problem.dimension * problem.samples >= LARGE_PROBLEM:
        return "not estimated, because the problem is large; theory.smoothness(problem) estimates it"
    try:
        found = theory.smoothness_constants(problem, average=False)
    except FedpdError as error:
        return f"not estimated: {error}"
    return f"{found.value:.3g} ({found.kind})" + (f"; 1/L = {1 / found.value:.3g}" if found.value > 0 else "")


def _heterogeneity(problem: Problem, distances: np.ndarray, whom: str) -> str:
    measured = f"max ‖∇fᵢ − ∇f‖ over {whom} at the start"
    if problem.answer.heterogeneity is not None:
        return f"{problem.answer.heterogeneity:.3g} (known); {distances[0]:.3g}, {measured}"
    return f"{distances[0]:.3g} ({measured}, a lower bound)"


def _alignment(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines (m, m) and the order of the agents, by their angle in the plane of the two main directions."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    units = gradients / np.where(norms > 0, norms, 1)
    cosines = units @ units.T
    _, vectors = np.linalg.eigh(cosines)
    plane = vectors[:, -2:] if len(cosines) > 1 else np.zeros((len(cosines), 2))
    order = np.argsort(np.arctan2(plane[:, 0], plane[:, -1]), kind="stable")
    return cosines[np.ix_(order, order)], order


def _label_shares(problem: Problem) -> np.ndarray | None:
    """Return the shares (K, m) of each agent's labels, if the samples have whole numbers called y."""
    shown = problem.data.get("y") if isinstance(problem.data, dict) and problem.load is None else None
    if shown is None or shown.ndim != (2 if problem.offsets is None else 1) or shown.dtype.kind not in "iu":
        return None
    labels = replace(problem, data=shown).rows_of(np.arange(problem.agents))[0]
    classes = int(labels.max()) + 1
    if labels.min() < 0 or not 2 <= classes <= MOST_SHOWN:
        return None
    agents = np.repeat(np.arange(problem.agents), problem.sizes)
    counts = np.bincount(agents * classes + labels, minlength=problem.agents * classes).reshape(-1, classes)
    return (counts / problem.sizes[:, None]).T
