"""Read run folders, and write the page, figures and CSV files of `fedpd report`."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.base.atomic import check_replaceable, replace_file
from fedpd.base.checks import choice, positive, refuse
from fedpd.clock import from_file
from fedpd.engine.views.entries import MAIN, SECONDS, shared_costs
from fedpd.experiments.recorded import Record, read_all, timed_records
from fedpd.report.figures import FORMATS, MARK, paper_figure_paths, save_paper_figures
from fedpd.report.pages import experiment_targets, page_of
from fedpd.report.reach import reach, targets, usual_target

HISTORIES = ("run", "label", "seed")  # the first columns; fedpd knows its own files by them
COSTS = ("run", "label", "quantity", "target", "seeds", "reached", "best")
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

    return _save(path, (*HISTORIES, *names, SECONDS.name), rows())


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

    return _save(path, (*COSTS, *spent), rows())


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


class Written(NamedTuple):
    """The files that `write_report` wrote, and the finding.

    Attributes:
        finding: The first sentence of the page.
        page: The path of the page.
        others: The paths of figures and CSV files.
    """

    finding: str
    page: Path
    others: list[Path]


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    target: float | None = None,
    figures: Sequence[str] = (),
    csv: bool = False,
    download: bool = False,
    clock: Path | None = None,
) -> Written:
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
        check_replaceable(histories, ",".join(HISTORIES).encode())
        check_replaceable(costs, ",".join(COSTS).encode())
    page = page_of(records, target=target, download=download)
    page.save(path)
    others = save_paper_figures(entries, drawn, figures) if figures else []
    if csv:
        known = experiment_targets(records).get(MAIN) if target is None else target
        chosen = usual_target(entries, MAIN, targets(entries, MAIN)) if known is None else known
        others += [save_histories(records, histories), save_costs(records, MAIN, chosen, costs)]
    return Written(page.finding, path, others)
