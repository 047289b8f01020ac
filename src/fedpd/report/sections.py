"""The parts of the page that do not move: notices, where each method ended, the problem, how to repeat it."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from fedpd.core import Problem
from fedpd.report.facts import Facts
from fedpd.report.reach import cost_columns
from fedpd.report.recorded import Entry, Record
from fedpd.report.tables import quantity


def title(records: Sequence[Record], problems: Sequence[Problem | str]) -> str:
    methods = sum(len(record.entries) for record in records)
    what = f"{methods} methods" if methods > 1 else records[0].entries[0].label
    where = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    if isinstance(where, Problem):
        return f"{what} on {where.name.replace('_', ' ')}, {where.agents:,} agents"
    return f"{what} on {where}" if len(problems) > 1 else f"{what} in {', '.join(record.name for record in records)}"


def notices(records: Sequence[Record], problems: int) -> str:
    """What a reader has to know before the numbers."""
    said = []
    for record in records:
        behind = [f"{entry.label} ({entry.done:,})" for entry in record.entries if not entry.finished]
        behind += [f"{label} (nothing yet)" for label in record.waiting]
        if behind:
            said.append(
                f"{record.name} is not finished: of {record.rounds:,} rounds there are so far, at the last checkpoint: "
                f"{', '.join(behind)}. To go on with it: fedpd resume."
            )
    if problems > 1:
        said.append(f"These runs are of {problems} different problems: a factor between them says little.")
    return "".join(f'<p class="notice">{escape(sentence)}</p>' for sentence in said)


def ends_table(entries: Sequence[Entry]) -> str:
    judged = all("test_accuracy" in run.history for entry in entries for run in entry.runs)
    names = ("method", "rounds", "stationarity ‖∇f‖²", "loss f", *(("test accuracy",) if judged else ()))
    head = _row("th", (*names, "communications", "samples", "bytes", "seconds"), scope="col")
    return f"<table><thead>{head}</thead><tbody>{''.join(_end(entry, judged) for entry in entries)}</tbody></table>"


def _end(entry: Entry, judged: bool) -> str:
    """Means over the seeds at their last rows; the stationarity with its spread."""
    last = {name: np.array([run.history[name][-1] for run in entry.runs]) for name in entry.runs[0].history}
    costs = {name: np.mean([cost_columns(run)[name][-1] for run in entry.runs]) for name in cost_columns(entry.runs[0])}
    stationarity = last["stationarity"]
    diverged = [run.diverged.round for run in entry.runs if run.diverged is not None]
    with np.errstate(all="ignore"):
        least, most = f"{stationarity.min():.1e}", f"{stationarity.max():.1e}"
        spread = f"<small>{least} to {most}</small>" if least != most else ""
        reached = f"diverged at round {min(diverged)}" if diverged else f"{stationarity.mean():.2e}{spread}"
        accuracy = (f"{last['test_accuracy'].mean():.1%}",) if judged else ()
        loss = f"{last['loss'].mean():.4g}"
    known = np.isfinite(costs["seconds"])
    cells = (
        f"{entry.done:,}",
        reached,
        loss,
        *accuracy,
        f"{costs['communications']:,.0f}",
        quantity(costs["samples"]),
        quantity(costs["bytes"], "B"),
        f"{costs['seconds']:.3g} s" if known else "not recorded",
    )
    return f'<tr><th scope="row">{escape(entry.label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def divergences(entries: Sequence[Entry]) -> str:
    """What each method that diverged was told, once for all seeds that were told the same."""
    said: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.diverged is not None:
                said.setdefault((entry.label, run.diverged.message), []).append(str(run.seed))
    return "".join(
        f"<p class='note'><strong>{escape(label)}</strong>, {'seeds' if len(seeds) > 1 else 'seed'} "
        f"{', '.join(seeds)}: {escape(message)}</p>"
        for (label, message), seeds in said.items()
    )


def problem_section(i: int, found: Facts | str, problems: int) -> str:
    heading = f"<h3>Problem {i + 1} of {problems}</h3>" if problems > 1 else ""
    if isinstance(found, str):
        return f"{heading}<p>L, δ and the picture of the agents are not here. {escape(found)}</p>"
    pictures = {
        f"distances-{i}": f"How far each agent's gradient is from the mean of all, at the start, of {found.shown}: "
        "the largest is δ there. All zero would be data that is alike.",
        f"alignment-{i}": "Which way the agents' gradients point at the start: each cell is the cosine of the angle "
        "between two agents' gradients. Alike data is one colour.",
    }
    if found.labels is not None:
        pictures[f"labels-{i}"] = "Which labels each agent has: a column is an agent, its colours the labels' shares."
    figures = "".join(
        f'<figure><div class="picture" id="{name}"></div><figcaption>{escape(words)}</figcaption></figure>'
        for name, words in pictures.items()
    )
    return f'{heading}{_facts(found.rows.items())}<div class="pictures">{figures}</div>'


def experiment_section(record: Record, records: int) -> str:
    heading = f"<h3>{escape(record.name)}</h3>" if records > 1 else ""
    seeds = ", ".join(map(str, record.seeds))
    rows = {"run": record.name, "rounds": f"{record.rounds:,}", "seeds" if len(record.seeds) > 1 else "seed": seeds}
    about = dict(record.versions or {})
    rows |= {"machine": ", ".join(about.pop(name) for name in ("machine", "devices") if name in about)} if about else {}
    rows["versions"] = ", ".join(f"{name} {number}" for name, number in about.items()) or "not recorded"
    file = ""
    if record.text:
        file = (
            "<p>The experiment file, word for word; save it and run it with <code>fedpd run FILE.toml</code>:</p>"
            f"<pre><code>{escape(record.text)}</code></pre>"
        )
    return f"{heading}{_facts(rows.items())}{file}"


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in rows)}</dl>"


def _row(tag: str, cells: Iterable[str], **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<tr>{''.join(f'<{tag}{given}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
