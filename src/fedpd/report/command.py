"""Read run folders, and write the page, figures and CSV files of `fedpd report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedpd.base.atomic import check_replaceable
from fedpd.base.checks import choice, positive, refuse
from fedpd.clock import from_file
from fedpd.engine.views.quantities import MAIN
from fedpd.experiments.recorded import read_all, timed_records
from fedpd.report.export import COSTS, HISTORIES, save_costs, save_histories
from fedpd.report.figures import FORMATS, MARK, paper_figure_paths, save_paper_figures
from fedpd.report.pages import experiment_targets, page_of
from fedpd.report.reach import targets, usual_target

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
