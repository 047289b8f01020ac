"""Write the report as one HTML page, which needs no server, no network and no other file."""

import base64
import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from gzip import decompress
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError, positive
from fedpd.base.versions import versions
from fedpd.core import Problem
from fedpd.engine.views.entries import Entry
from fedpd.engine.views.numbers import short_number
from fedpd.engine.views.quantities import MAIN
from fedpd.experiments.recorded import Record, Results, records_of
from fedpd.report.curves import is_drawable, page_data
from fedpd.report.facts import Facts, facts, rebuild
from fedpd.report.sections import divergences, ends_table, experiment_section, notices, problem_section, title

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
        >>> page = report.page({"FedPD": simulate(algorithm, problem, rounds=20, progress=False)}, problem)
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
    data["problems"] = [None if isinstance(one, str) else _pictures(one) for one in found]
    first = data["quantities"][0]
    finding = first["findings"]["communications"][first["chosen"]]
    script, plotly = _text("page.js"), plotly_script()
    filled = Template(_text("page.html")).substitute(
        title=escape(name or title(records, problems)),
        css=_text("page.css"),
        hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
        finding=escape(finding),
        notices=notices(records, len(problems)),
        ends=ends_table(entries),
        divergences=divergences(entries),
        problems="".join(problem_section(i, one, len(found)) for i, one in enumerate(found)),
        experiments="".join(experiment_section(record, len(records)) for record in records),
        version=escape(versions()["fedpd"]),
        date=f"{date.today():%d %B %Y}".lstrip("0"),
        data=_json(data),
        plotly=plotly,
        script=script,
    )
    return Page(filled, finding)


def experiment_targets(records: Sequence[Record]) -> dict[str, float]:
    """Return the targets that the experiment files set with `until`, if they all set the same ones."""
    found = [tomllib.loads(record.text).get("run", {}).get("until", {}) for record in records]
    return dict(found[0]) if all(one == found[0] for one in found) else {}


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


def _text(name: str) -> str:
    return files("fedpd.report").joinpath(name).read_text(encoding="utf-8")
