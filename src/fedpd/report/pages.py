"""Write the report of runs as one HTML page, which needs no server, no network and no other file.

`fedpd report` also writes figures and CSV files beside it.
"""

import base64
import csv
import hashlib
import io
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from gzip import decompress
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.atomic import check_replaceable, replace_file
from fedpd.base.checks import FedpdError, choice, positive, refuse
from fedpd.base.process import versions
from fedpd.base.spec import Spec
from fedpd.clock import from_file
from fedpd.core import Problem
from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.views.entries import (
    MAIN,
    SECONDS,
    Entry,
    cost_text,
    drawn_quantities,
    end_text,
    heading,
    last_costs,
    last_value,
    shared_costs,
    short_number,
    value_text,
)
from fedpd.experiments.calls import table_of, toml_text
from fedpd.experiments.experiment import read_outline
from fedpd.experiments.recorded import EDITED, SESSION, Record, Results, read_all, records_of, timed_records
from fedpd.report.page_data import Facts, facts, is_drawable, page_data, rebuild
from fedpd.report.reach import reach, targets, usual_target


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
    costs = last_costs(entry.usable)
    cells = [f"{entry.done:,}", *(escape(end_text(entry, column)) + _range(entry, column) for column in quantities)]
    for name, column in spent.items():
        unknown = column is SECONDS and not np.isfinite(costs[name])
        cells.append("not recorded" if unknown else cost_text(column, costs[name]))
    return f'<tr><th scope="row">{escape(entry.label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _range(entry: Entry, column: Column) -> str:
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
    labels = [entry.label.removesuffix(f" ({record.name})") for entry in record.entries]
    return [
        tables[label] if label in tables else _settings_of(getattr(entry.runs[0], "spec", ""))
        for label, entry in zip(labels, record.entries, strict=True)
    ]


def _tables(text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of the methods of an experiment file by their labels; nothing if it is not valid any more."""
    try:
        labels = [method.label for method in read_outline(text).methods]
    except FedpdError:
        return {}
    tables = tomllib.loads(text)["algorithm"]
    return {
        label: {key: value for key, value in table.items() if key != "label"}
        for label, table in zip(labels, tables, strict=True)
    }


def _settings_of(spec: Spec | str) -> dict[str, Any] | str:
    if not isinstance(spec, Spec):
        return spec or "not recorded"
    try:
        return table_of(spec)
    except FedpdError:  # a function or a class of the user's own
        return spec.label()


def flat(settings: Mapping[str, Any] | str, place: str = "") -> dict[str, str]:
    """Return the settings of a method as texts by key, such as oracle.step."""
    if isinstance(settings, str):
        return {"settings": settings}
    found: dict[str, str] = {}
    for key, value in settings.items():
        inner = flat(value, f"{place}{key}.") if isinstance(value, Mapping) else {f"{place}{key}": str(value)}
        found |= inner
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
            rows.append(f'<tr><th scope="row">{escape(entry.label)}</th>{cells}</tr>')
    head = '<tr><th scope="col">method</th><th scope="col" class="settings">settings</th>'
    head += '<th scope="col">rounds</th><th scope="col">seeds</th></tr>'
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


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
        rows.append(_row("td", [client, reply, *values]))
    known = "Each client measured these values on its own data, for the model of the newest evaluation."
    note = known if columns else "The clients' own values are not known: they send sums only, or were not asked."
    return f"<p>{note}</p><table><thead>{_row('th', head, scope='col')}</thead><tbody>{''.join(rows)}</tbody></table>"


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


def _row(tag: str, cells: Iterable[str], **attributes: str) -> str:
    given = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<tr>{''.join(f'<{tag}{given}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


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
    found: list[Problem | str] = []
    if problem is None:
        found = [rebuild(one, download=download) for i, one in enumerate(tables) if one not in tables[:i]]
    else:
        found = [problem]
    if problem is None and len(tables) < len(records):
        found.append("The problem was not given to report.page.")
    own = [record if record.problem is not None else record._replace(versions=versions()) for record in records]
    return _assemble(own, found, target, name)


def _assemble(records: Sequence[Record], problems: Sequence[Problem | str], target: float | None, name: str) -> Page:
    if target is not None:
        positive("target", target, "Give a stationarity, e.g. 1e-10")
    entries = [entry for record in records for entry in record.entries]
    found = [one if isinstance(one, str) else _facts(one) for one in problems]
    data = page_data(_measured(entries), experiment_targets(records) if target is None else {MAIN: target})
    settings = [flat(one) for record in records for one in method_settings(record)]
    for shown, own in zip(data["entries"], settings, strict=True):
        shown["settings"] = own
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


def _measured(entries: list[Entry]) -> list[Entry]:
    for entry in entries:
        if not is_drawable(entry):
            raise FedpdError(
                f"{entry.label}: its history has no finite stationarity, so there is nothing to draw. If it is "
                "a federation with evaluate-every = 0, evaluate its model. Otherwise check the problem's data for NaN."
            )
    return entries


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
