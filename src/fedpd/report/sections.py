"""Return the static parts of the page as HTML: notices, final values, the problem, and how to repeat the runs."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from fedpd.core import Problem
from fedpd.engine.measure.columns import Column
from fedpd.engine.views.entries import Entry, last_value
from fedpd.engine.views.quantities import (
    MAIN,
    SECONDS,
    cost_text,
    drawn_quantities,
    heading,
    last_costs,
    shared_costs,
    value_text,
)
from fedpd.experiments.recorded import EDITED, Record
from fedpd.report.facts import Facts


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
    rows = "".join(_end(entry, quantities, costs) for entry in entries)
    return f"<table><thead>{_row('th', headings, scope='col')}</thead><tbody>{rows}</tbody></table>"


def _end(entry: Entry, quantities: Sequence[Column], spent: Mapping[str, Column]) -> str:
    """Return a row of the table: means over the seeds at the end, and the least and most stationarity."""
    costs = last_costs(entry.runs)
    cells = [f"{entry.done:,}"]
    for column in quantities:
        values = np.array([last_value(run, column.name) for run in entry.runs])
        with np.errstate(all="ignore"):  # a run may have diverged
            cells.append(_final(entry, values) if column.name == MAIN else value_text(column, float(values.mean())))
    for name, column in spent.items():
        unknown = column is SECONDS and not np.isfinite(costs[name])
        cells.append("not recorded" if unknown else cost_text(column, costs[name]))
    return f'<tr><th scope="row">{escape(entry.label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _final(entry: Entry, stationarity: np.ndarray) -> str:
    diverged = [run.diverged.round for run in entry.runs if run.diverged is not None]
    if diverged:
        return f"diverged at round {min(diverged)}"
    least, most = f"{stationarity.min():.1e}", f"{stationarity.max():.1e}"
    spread = f"<small>{least} to {most}</small>" if least != most else ""
    return f"{stationarity.mean():.2e}{spread}"


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
    return f'{heading}{_facts(found.rows.items())}<div class="pictures">{figures}</div>'


def experiment_section(record: Record, records: int) -> str:
    """Return the seeds, the machine, the versions and the experiment file, with which a reader can repeat a run."""
    heading = f"<h3>{escape(record.name)}</h3>" if records > 1 else ""
    seeds = ", ".join(map(str, record.seeds))
    rows = {"run": record.name, "rounds": f"{record.rounds:,}", "seeds" if len(record.seeds) > 1 else "seed": seeds}
    about = dict(record.versions or {})
    rows |= {"machine": ", ".join(about.pop(name) for name in ("machine", "devices") if name in about)} if about else {}
    rows["versions"] = ", ".join(f"{name} {number}" for name, number in about.items()) or "not recorded"
    file = ""
    if record.text:
        file = (
            "<p>The experiment file, word for word. Save it and run it with <code>fedpd run FILE.toml</code>:</p>"
            f"<pre><code>{escape(record.text)}</code></pre>"
        )
    return f"{heading}{_facts(rows.items())}{file}"


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in rows)}</dl>"


def _row(tag: str, cells: Iterable[str], **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<tr>{''.join(f'<{tag}{given}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
