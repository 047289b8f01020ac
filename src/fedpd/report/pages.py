"""Write the report of runs as one HTML page, which needs no server, no network and no other file.

First comes what the page's script gets: the curves with their bands, the costs to every target of the slider, and the
size, L, delta and the agents' differences of the problem. Then its HTML, and the figures and CSV files beside it.
"""

import base64
import csv
import hashlib
import io
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from gzip import decompress
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.atomic import check_replaceable, replace_file
from fedpd.base.checks import FedpdError, choice, positive, refuse, shown
from fedpd.base.process import versions
from fedpd.base.spec import Spec
from fedpd.clock import from_file
from fedpd.core import Problem
from fedpd.engine.measure.columns import KNOWN, NETWORK, Column, column_of
from fedpd.engine.measure.history import LARGE_PROBLEM
from fedpd.engine.views.entries import (
    MAIN,
    SECONDS,
    Entry,
    cost_text,
    cost_values,
    drawn_quantities,
    end_text,
    goal,
    heading,
    kept_words,
    known_costs,
    last_costs,
    last_value,
    measured_rows,
    shared_costs,
    shared_quantities,
    short_number,
    value_text,
)
from fedpd.engine.views.style import DASHES, Style, styles
from fedpd.experiments.calls import build_problem, table_of, toml_text
from fedpd.experiments.experiment import read_outline
from fedpd.experiments.recorded import EDITED, SESSION, Record, Results, read_all, records_of, timed_records
from fedpd.report.reach import best_text, departures, examples, reach, sentence, starts_at_best, targets, usual_target
from fedpd.theory.dissimilarity import start_gradients

POINTS = 400  # per curve, since a screen cannot show more; the costs use all rows
MOST_CURVES = 12  # that a page shows at first; of more methods it shows five, and all in the table of costs
ENTRIES = 10  # beyond this many curves, each gets fewer points

BETTER = {"less": "Lower is better.", "more": "Higher is better.", None: ""}

Numbers = list[float | None]


def page_data(entries: Sequence[Entry], wanted: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """Return the data of the page's script, as plain numbers and texts; None replaces numbers that are not finite.

    Args:
        wanted: The quantities to show first, with their targets (None, as for the others: `usual_target` chooses).
    """
    wanted = wanted or {}
    quantities = sorted(shared_quantities(entries), key=lambda column: column.name not in wanted)
    costs = known_costs(entries)
    long = NETWORK in costs and any(run.history[NETWORK.name][-1] >= 7200 for entry in entries for run in entry.runs)
    scales = {NETWORK.name: 3600.0} if long else {}  # the seconds of an hour, for the simulated time if it is long
    offered = {
        column: targets(entries, column.name, wanted.get(column.name))
        if column.better is not None and not starts_at_best(entries, column.name)
        else []
        for column in quantities
    }
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


def _shown_cost(cost: Column, hours: bool) -> dict[str, Any]:
    words, unit = (cost.words.replace("seconds", "hours"), "h") if hours else (cost.words, cost.unit)
    return {"name": cost.name, "title": cost.symbol or cost.name, "words": words, "unit": unit, "log": cost.log}


def _quantity(entries: Sequence[Entry], column: Column, offered: list[float], target: float | None) -> dict[str, Any]:
    values = [run.history[column.name] for entry in entries for run in entry.runs]
    usual = f"{column.words[:1].upper()}{column.words[1:]}." if column.name in KNOWN else ""
    return {
        "name": column.name,
        "words": column.words,
        "plain": f"{column.plain or usual} {BETTER[column.better]}".strip(),
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
    first, *others = (run.elapsed for run in entry.usable)
    # Seeds that ran as one program have the same seconds at each row.
    together = bool(others) and all(np.array_equal(first, one, equal_nan=True) for one in others)
    return {
        "label": entry.label,
        "seeds": len(entry.runs),
        "together": together,
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
    least, most = problem.sizes.min(), problem.sizes.max()
    measured, known = f"max ‖∇fᵢ − ∇f‖ over {whom} at the start", problem.answer.heterogeneity
    delta = f"{distances[0]:.3g} ({measured}, a lower bound)"
    rows = {
        "problem": problem.name.replace("_", " "),
        "agents N": f"{problem.agents:,}",
        "samples": f"{problem.samples:,}, {least:,}{'' if least == most else f' to {most:,}'} per agent",
        "parameters": f"{problem.dimension:,}, {'float64' if problem.double else 'float32'}",
        "smoothness L": _smoothness(problem),
        "heterogeneity δ": delta if known is None else f"{known:.3g} (known); {distances[0]:.3g}, {measured}",
        "‖∇f(x⁰)‖": f"{np.linalg.norm(gradients.mean(axis=0)):.3g}",
    }
    called = None if some.names is None else [str(name) for name in some.names]
    names = None if called is None else ([called[i] for i in farthest], [called[i] for i in chosen[order]])
    return Facts(rows, distances, alignment, shares, whom, names)


def _spread(agents: int, number: int) -> np.ndarray:
    """Return `number` of the agents, evenly spread over all of them."""
    return np.linspace(0, agents - 1, number).round().astype(int)


def _smoothness(problem: Problem) -> str:
    if problem.answer.smoothness is None and problem.dimension * problem.samples >= LARGE_PROBLEM:
        return "not estimated, because the problem is large; theory.smoothness(problem) estimates it"
    try:
        found = theory.smoothness_constants(problem, average=False)
    except FedpdError as error:
        return f"not estimated: {error}"
    return f"{found.value:.3g} ({found.kind})" + (f"; 1/L = {1 / found.value:.3g}" if found.value > 0 else "")


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


def title(records: Sequence[Record], problems: Sequence[Problem | str]) -> str:
    """Return the title of the page, with the methods and the problem."""
    methods = sum(len(record.entries) for record in records)
    what = f"{methods} methods" if methods > 1 else records[0].entries[0].label
    where = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    if isinstance(where, Problem):
        return f"{what} on {where.name.replace('_', ' ')}, {where.agents:,} agents"
    return f"{what} on {where}" if len(problems) > 1 else f"{what} in {', '.join(record.name for record in records)}"


def notices(records: Sequence[Record], problems: int) -> str:
    """Return the notices above the numbers: unfinished runs, and runs of different problems."""
    sentences = []
    for record in records:
        behind = [f"{entry.label} ({entry.done:,})" for entry in record.entries if not entry.finished]
        behind += [f"{label} (nothing yet)" for label in record.waiting]
        if behind:
            sentences.append(
                f"{record.name} is not finished. Of {record.rounds:,} rounds, these were done at the last checkpoint: "
                f"{', '.join(behind)}. Resume it with fedpd resume."
            )
        if record.edited:
            sentences.append(f"The experiment file of {record.name} {EDITED}")
    if problems > 1:
        sentences.append(f"These runs are of {problems} different problems: a factor between them says little.")
    return "".join(f'<p class="notice">{escape(sentence)}</p>' for sentence in sentences)


def ends_table(entries: Sequence[Entry]) -> str:
    """Return the table of the last values and total costs of each method."""
    quantities, costs = drawn_quantities(entries), shared_costs(entries)
    headings = ("method", "rounds", *map(heading, quantities), *(name.replace("_", " ") for name in costs))
    rows = []
    for entry in entries:
        spent = last_costs(entry.usable)
        cells = [f"{entry.done:,}", *(escape(end_text(entry, column)) + _range(entry, column) for column in quantities)]
        for name, column in costs.items():
            unknown = column is SECONDS and not np.isfinite(spent[name])
            cells.append("not recorded" if unknown else cost_text(column, spent[name]))
        rows.append(f'<th scope="row">{escape(entry.label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}')
    return _table(headings, rows)


def _table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table from its headings and the cells of its rows, which are HTML already."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _range(entry: Entry, column: Column) -> str:
    """Return the least and the most stationarity at the end over the seeds."""
    values = [last_value(run, column.name) for run in entry.usable]
    if column.name != MAIN or entry.diverged or np.isnan(values).any():
        return ""
    least, most = f"{min(values):.1e}", f"{max(values):.1e}"
    return f"<small>{least} to {most}</small>" if least != most else ""


def divergences(entries: Sequence[Entry]) -> str:
    """Return why each method diverged and what to try, once for all seeds with the same message."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.diverged is not None:
                found.setdefault((entry.label, run.diverged.message), []).append(str(run.seed))
    return "".join(
        f"<p class='note'><strong>{escape(label)}</strong>, {'seeds' if len(seeds) > 1 else 'seed'} "
        f"{', '.join(seeds)}: {escape(message)}</p>"
        for (label, message), seeds in found.items()
    )


def problem_section(i: int, found: Facts | str, problems: int) -> str:
    """Return the facts of problem i and the places of its pictures, or the reason why there are none."""
    heading = f"<h3>Problem {i + 1} of {problems}</h3>" if problems > 1 else ""
    if isinstance(found, str):
        return f"{heading}<p>The report cannot show L, δ and the picture of the agents. {escape(found)}</p>"
    pictures = {
        f"distances-{i}": f"Distance of each agent's gradient from their mean at the start, for {found.shown}. The "
        "largest distance is δ there. If all agents had the same data, all distances would be zero.",
        f"alignment-{i}": "Directions of the agents' gradients at the start. Each cell is the cosine of the angle "
        "between the gradients of two agents. If all agents had the same data, all cells would have the same colour.",
    }
    if found.labels is not None:
        pictures[f"labels-{i}"] = (
            "Labels of each agent. A column is an agent, and its colours are the shares of the labels."
        )
    figures = "".join(
        f'<figure><div class="picture" id="{name}"></div><figcaption>{escape(words)}</figcaption></figure>'
        for name, words in pictures.items()
    )
    return f'{heading}{_facts_html(found.rows.items())}<div class="pictures">{figures}</div>'


def method_settings(record: Record) -> list[dict[str, Any] | str]:
    """Return the settings of each method as a table of an experiment file; a text if a file cannot hold them."""
    tables = _tables(record.text) if record.text else {}
    found: list[dict[str, Any] | str] = []
    for entry in record.entries:
        label, spec = entry.label.removesuffix(f" ({record.name})"), getattr(entry.runs[0], "spec", "")
        if label in tables or not isinstance(spec, Spec):
            found.append(tables.get(label) or spec or "not recorded")
            continue
        try:
            found.append(table_of(spec))
        except FedpdError:  # a function or a class of the user's own
            found.append(spec.label())
    return found


def _tables(text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the methods of an experiment file by their labels; nothing if it is not valid any more."""
    try:
        labels = list(read_outline(text).methods)
    except FedpdError:
        return {}
    tables = tomllib.loads(text)["algorithm"]
    return {
        label: {key: value for key, value in table.items() if key != "label"}
        for label, table in zip(labels, tables, strict=True)
    }


def flat(settings: Mapping[str, Any] | str, place: str = "") -> dict[str, str]:
    """Return the settings of a method as texts by key, such as oracle.step."""
    if isinstance(settings, str):
        return {"settings": settings}
    found: dict[str, str] = {}
    for key, value in settings.items():
        found |= flat(value, f"{place}{key}.") if isinstance(value, Mapping) else {f"{place}{key}": str(value)}
    return found


def settings_table(records: Sequence[Record]) -> str:
    """Return the table of the settings of each method, with its rounds and seeds."""
    rows = []
    for record in records:
        for entry, settings in zip(record.entries, method_settings(record), strict=True):
            seeds = ", ".join(str(run.seed) for run in entry.runs)
            text = settings if isinstance(settings, str) else toml_text(settings)
            options = run_settings(entry.runs[0]) | {"record": None}  # the curves show what was recorded
            text += "".join(f"\n# run: {name} = {value}" for name, value in options.items() if value is not None)
            cells = f'<td class="settings"><code>{escape(text)}</code></td><td>{entry.rounds:,}</td><td>{seeds}</td>'
            rows.append(f'<th scope="row">{escape(entry.label)}</th>{cells}')
    table = _table(("method", "settings", "rounds", "seeds"), rows)
    return table.replace('<th scope="col">settings', '<th scope="col" class="settings">settings', 1)


def experiment_section(record: Record, records: int, problem: Problem | str) -> str:
    """Return the seeds, the machine, the versions and the experiment file, with which a reader can repeat a run."""
    heading = f"<h3>{escape(record.name)}</h3>" if records > 1 else ""
    seeds = ", ".join(map(str, record.seeds))
    name = "made in Python" if record.name == SESSION else record.name
    rows = {"run": name, "rounds": f"{record.rounds:,}", "seeds" if len(record.seeds) > 1 else "seed": seeds}
    about = dict(record.versions or {})
    rows |= {"machine": ", ".join(about.pop(name) for name in ("machine", "devices") if name in about)} if about else {}
    rows["versions"] = ", ".join(f"{name} {number}" for name, number in about.items()) or "not recorded"
    file = ""
    if record.text:
        file = (
            "<p>The experiment file, word for word. Save it and run it with <code>fedpd run FILE.toml</code>:</p>"
            f"<pre><code>{escape(record.text)}</code></pre>"
        )
    elif record.replies is None:  # a federation has a configuration of its own
        file = _python_section(record, problem)
    return f"{heading}{_facts_html(rows.items())}{clients_table(record)}{file}"


def clients_table(record: Record) -> str:
    """Return the table of a federation's clients: their last reply, and their own values at the newest evaluation."""
    if record.replies is None:
        return ""
    names = list(dict.fromkeys(name for own in record.by_client.values() for name in own))
    columns = [column_of(name) for name in names]
    head = ["client", "last reply", *(column.words for column in columns)]
    rows = []
    for client, number in record.replies.items():
        own = record.by_client.get(client, {})
        values = [value_text(column, own[column.name]) if column.name in own else "" for column in columns]
        reply = f"communication {number:,}" if number else "none"
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in (client, reply, *values)))
    known = "Each client measured these values on its own data, for the model of the newest evaluation."
    note = known if columns else "The clients' own values are not known: they send sums only, or were not asked."
    return f"<p>{note}</p>{_table(head, rows)}"


def run_settings(run: Any) -> dict[str, Any]:
    """Return the options of `simulate` that a run kept and that differ from their default, as texts for a reader."""
    kept = getattr(run, "settings", {})
    usual: dict[str, Any] = {"metrics_every": 1, "stragglers": 0.0, "record": [], "average": False}
    names = ("metrics_every", "stragglers", "record", "metrics_agents", "buffer", "deadline", "average")
    found = {name: kept[name] for name in names if kept.get(name) not in (None, usual.get(name))}
    if kept.get("participation") is None:
        return found
    kind, numbers = kept["participation"]
    if kind == "cohort":
        return found | {"cohort": numbers}
    return found | {"participation": numbers if kind == "probability" else f"by {kind}"}


def _one_line(text: str) -> str:
    return " ".join(text.split())  # a comment ends with its line


def _python_section(record: Record, problem: Problem | str) -> str:
    """Return the part of an experiment file that is known of runs made in Python: [run] and the methods."""
    run: dict[str, Any] = {"rounds": record.rounds, "seeds": list(record.seeds)}
    each = [run_settings(entry.runs[0]) for entry in record.entries]
    notes = "".join(
        f"# {_one_line(entry.label)} ran with {name} = {value}\n"
        for entry, own in zip(record.entries, each, strict=True)
        for name, value in own.items()
    )
    tables = zip((entry.label for entry in record.entries), method_settings(record), strict=True)
    methods = [
        f"# {_one_line(label)}: {settings}" if isinstance(settings, str) else toml_text({"label": label} | settings)
        for label, settings in tables
    ]
    about = (
        f"{problem.name}, {problem.agents:,} agents, {problem.samples:,} samples"
        if isinstance(problem, Problem)
        else "not given"
    )
    text = f"# The problem was made in Python: {about}.\n\n[run]\n{notes}{toml_text(run)}\n\n"
    text += "\n\n".join(one if one.startswith("#") else f"[[algorithm]]\n{one}" for one in methods)
    return (
        "<p>These runs were made in Python. The settings below, as tables of an experiment file, are those of "
        "<code>fedpd.simulate</code>; add a [problem] table to run them with <code>fedpd run FILE.toml</code>:</p>"
        f"<pre><code>{escape(text)}</code></pre>"
    )


def _facts_html(rows: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in rows)}</dl>"


PLOTLY = "plotly-cartesian-3.7.0.min.js.gz"  # the file of plotly.js-cartesian-dist-min on npm, compressed; MIT licence


@dataclass(frozen=True)
class Page:
    """A page of HTML. A notebook shows it.

    Attributes:
        html: The text of the page.
        finding: Its first sentence: which method reached the target with the fewest communications.
    """

    html: str
    finding: str

    def __repr__(self) -> str:
        size = short_number(len(self.html.encode()), "B")
        return f"Page of {size}: {self.finding}\nSave it with page.save('report.html'), or let a notebook show it."

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        with replace_file(Path(path)) as file:
            file.write(self.html.encode())
        return Path(path)

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its style and script do not change the notebook's."""
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 60rem; border: 0"></iframe>'


def page(runs: Results, problem: Problem | None = None, *, target: float | None = None, name: str = "") -> Page:
    """Return the report of runs as a page of HTML.

    Args:
        runs: A run, an ensemble, a sweep, a tuned method, a list or a dict by label of them, a folder, or a list of
            folders. A folder is one that `save`, `fedpd run` or `fedpd compare` wrote.
        problem: The problem of the runs, to show its constants and how much its agents differ. Run folders need none.
        target: The stationarity that the page shows first; None: that of `until` in the experiment file;
            if it has none, the lowest that half of the methods reached and stayed below, but not less than 1e-10.
        name: The title of the page; "": the names of the methods and of the problem.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, report, simulate
        >>> problem = problems.random_quadratic(agents=4, dimension=3)
        >>> algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=1 / 3, iterations=4))
        >>> page = report.page(
        ...     {"FedPD": simulate(algorithm, problem, rounds=20, progress=False)}, problem
        ... )
        >>> page.finding.startswith("FedPD reached ‖∇f‖² ≤ ")
        True
    """
    return page_of(records_of(runs), problem, target=target, name=name)


def page_of(
    records: Sequence[Record],
    problem: Problem | None = None,
    *,
    target: float | None = None,
    name: str = "",
    download: bool = False,
) -> Page:
    """Return the report of records. It builds and measures the problems of run folders again."""
    tables = [dict(record.problem) for record in records if record.problem is not None]
    problems: list[Problem | str] = [] if problem is None else [problem]
    if problem is None:
        problems += [rebuild(one, download=download) for i, one in enumerate(tables) if one not in tables[:i]]
        problems += ["The problem was not given to report.page."] if len(tables) < len(records) else []
    own = [record if record.problem is not None else record._replace(versions=versions()) for record in records]
    return _assemble(own, problems, target, name)


def _assemble(records: Sequence[Record], problems: Sequence[Problem | str], target: float | None, name: str) -> Page:
    if target is not None:
        positive("target", target, "Give a stationarity, e.g. 1e-10")
    entries = [entry for record in records for entry in record.entries]
    found = [one if isinstance(one, str) else _facts(one) for one in problems]
    for entry in entries:
        if not is_drawable(entry):
            raise FedpdError(
                f"{entry.label}: its history has no finite stationarity, so there is nothing to draw. If it is "
                "a federation with evaluate-every = 0, evaluate its model. Otherwise check the problem's data for NaN."
            )
    data = page_data(entries, experiment_targets(records) if target is None else {MAIN: target})
    settings = [flat(one) for record in records for one in method_settings(record)]
    for one, own in zip(data["entries"], settings, strict=True):
        one["settings"] = own
    data["problems"] = [None if isinstance(one, str) else _pictures(one) for one in found]
    first = data["quantities"][0]
    finding = first["findings"]["communications"][first["chosen"]]
    script, plotly = package_text("page.js"), plotly_script()
    filled = Template(package_text("page.html")).substitute(
        title=escape(name or title(records, problems)),
        css=package_text("page.css"),
        hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
        finding=escape(finding),
        notices=notices(records, len(problems)),
        ends=ends_table(entries),
        divergences=divergences(entries),
        problems="".join(problem_section(i, one, len(found)) for i, one in enumerate(found)),
        settings=settings_table(records),
        experiments="".join(experiment_section(record, len(records), problems[-1]) for record in records),
        version=escape(versions()["fedpd"]),
        date=f"{date.today():%d %B %Y}".lstrip("0"),
        data=_json(data),
        plotly=plotly,
        script=script,
    )
    return Page(filled, finding)


def experiment_targets(records: Sequence[Record]) -> dict[str, float | None]:
    """Return the targets of comparisons, or that experiment files set with `until`, if all have the same ones."""
    found = [record.asked or _asked(tomllib.loads(record.text).get("run", {})) for record in records]
    return dict(found[0]) if all(one == found[0] for one in found) else {}


def _asked(run: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what a [run] table asks for: its targets, or else the accuracy that it wants measured."""
    if run.get("until"):
        return dict(run["until"])
    if "test" in run:
        return {"central_accuracy": None}
    return {"test_accuracy": None} if "accuracy" in run.get("record", []) else {}


def _facts(problem: Problem) -> Facts | str:
    found = facts(problem)
    finite = np.isfinite(found.distances).all() and np.isfinite(found.alignment).all()
    return found if finite else "The agents' gradients at the start are not all finite."


def _pictures(found: Facts) -> dict[str, Any]:
    return {
        "distances": [float(f"{distance:.4g}") for distance in found.distances],
        "alignment": np.round(found.alignment, 2).tolist(),
        "labels": None if found.labels is None else np.round(found.labels, 3).tolist(),
        "farthest": None if found.names is None else found.names[0],
        "names": None if found.names is None else found.names[1],
    }


def _json(data: Any) -> str:
    """Return JSON that cannot end the script element around it, whatever the labels contain."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _digest(script: str) -> str:
    """Return the hash by which the page's security policy allows this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def plotly_script() -> str:
    """Return plotly.js with cartesian charts only: 1.4 MB, where the whole library has 4.9 MB."""
    return decompress(files("fedpd.report").joinpath(PLOTLY).read_bytes()).decode("utf-8")


def package_text(name: str) -> str:
    """Return a text file of this package, such as page.css."""
    return files("fedpd.report").joinpath(name).read_text(encoding="utf-8")


HISTORY_COLUMNS = ("run", "label", "seed")  # the first columns; fedpd knows its own files by them
COST_COLUMNS = ("run", "label", "quantity", "target", "seeds", "reached", "best")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a text that begins with one of them


def save_histories(records: Sequence[Record], path: Path) -> Path:
    """Write all rows of all runs, with the seconds at each row. A column that a run did not record is empty."""
    histories = [(record, entry, run) for record in records for entry in record.entries for run in entry.runs]
    names = list(dict.fromkeys(name for _, _, run in histories for name in run.history))

    def rows() -> Iterable[Sequence[Any]]:
        for record, entry, run in histories:
            length = len(run.history["round"])
            columns = [run.history[name].tolist() if name in run.history else [""] * length for name in names]
            for values in zip(*columns, run.elapsed.tolist(), strict=True):
                yield record.name, entry.label, run.seed, *values

    return _save(path, (*HISTORY_COLUMNS, *names, SECONDS.name), rows())


def save_costs(records: Sequence[Record], quantity: str, target: float, path: Path) -> Path:
    """Write the costs of each method to reach the target: mean, least and most over the seeds."""
    names = shared_costs([entry for record in records for entry in record.entries])
    spent = [f"{cost}_{which}" for cost in names for which in ("mean", "least", "most")]

    def rows() -> Iterable[Sequence[Any]]:
        for record in records:
            for entry in record.entries:
                met = reach(entry, quantity, target)
                costs = [""] * len(spent) if met.costs is None else [n for cost in names for n in met.costs[cost]]
                yield record.name, entry.label, quantity, target, len(entry.runs), met.seeds, met.best, *costs

    return _save(path, (*COST_COLUMNS, *spent), rows())


def _cell(value: Any) -> Any:
    """Return a cell that a spreadsheet shows and does not run: a text that begins like a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _save(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_cell, names))
    writer.writerows(map(_cell, row) for row in rows)
    with replace_file(path) as file:
        file.write(text.getvalue().encode())
    return path


PAGE = b"default-src 'none'; script-src "  # near the beginning of every page, see page.html


class WrittenReport(NamedTuple):
    """The files that `write_report` wrote, and the finding."""

    finding: str  # the first sentence of the page
    page: Path  # the path of the page
    others: list[Path]  # the paths of figures and CSV files


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    target: float | None = None,
    figures: Sequence[str] = (),
    csv: bool = False,
    download: bool = False,
    clock: Path | None = None,
) -> WrittenReport:
    """Write the page of run folders, and figures and CSV files beside it.

    Args:
        folders: Run folders, finished or not.
        out: The file to write; None: report.html in the folder, or in the current folder if there are several.
        target: The stationarity that the page shows first.
        figures: File formats of figures for a paper: "pdf", "svg", "png".
        csv: Whether to write the histories and the costs to the target as CSV.
        download: Whether the problem's data may be fetched from the network, to measure the problem.
        clock: A file with a clock, to show the simulated time of all runs on a network; see `fedpd.clock.from_file`.
    """
    from fedpd.report.figures import FORMATS, MARK, paper_figure_paths, save_paper_figures  # a page needs no matplotlib

    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if path.suffix.lower() not in (".html", ".htm"):
        refuse("--out", str(path), "must end in .html, because the report is HTML", "Give e.g. report.html")
    check_replaceable(path, PAGE)
    if target is not None:
        positive("--target", target, "Give a stationarity, e.g. 1e-10")
    for suffix in figures:
        choice("--figures", suffix, FORMATS)
    records = read_all(folders) if clock is None else timed_records(read_all(folders), from_file(clock))
    entries = [entry for record in records for entry in record.entries]
    beside = path.with_suffix("")
    histories, costs, drawn = Path(f"{beside}-histories.csv"), Path(f"{beside}-costs.csv"), Path(f"{beside}-figures")
    for one in paper_figure_paths(entries, drawn, figures):
        check_replaceable(one, MARK.encode())
    if csv:
        check_replaceable(histories, ",".join(HISTORY_COLUMNS).encode())
        check_replaceable(costs, ",".join(COST_COLUMNS).encode())
    page = page_of(records, target=target, download=download)
    page.save(path)
    others = save_paper_figures(entries, drawn, figures) if figures else []
    if csv:
        known = experiment_targets(records).get(MAIN) if target is None else target
        chosen = usual_target(entries, MAIN, targets(entries, MAIN)) if known is None else known
        others += [save_histories(records, histories), save_costs(records, MAIN, chosen, costs)]
    return WrittenReport(page.finding, path, others)
