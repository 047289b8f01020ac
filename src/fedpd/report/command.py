"""What `fedpd report` does: read the folders, write the page, and the figures and tables that were asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedpd.base.checks import choice, positive, refuse
from fedpd.report.export import save_costs, save_histories
from fedpd.report.figures import FORMATS, save_paper_figures
from fedpd.report.page import page_of
from fedpd.report.reach import targets, usual_target
from fedpd.report.recorded import read_all


class Written(NamedTuple):
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
) -> Written:
    """The page of some runs' folders at `out` (None: in the folder, or here if there are several); the rest beside."""
    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if path.suffix.lower() not in (".html", ".htm"):
        refuse("--out", str(path), "the report is a page of HTML", "Give a file name that ends in .html")
    if target is not None:
        positive("--target", target, "Give a stationarity, e.g. 1e-10")
    for suffix in figures:
        choice("--figures", suffix, FORMATS)
    records = read_all(folders)
    entries = [entry for record in records for entry in record.entries]
    page = page_of(records, target=target)
    page.save(path)
    beside = path.with_suffix("")
    others = save_paper_figures(entries, Path(f"{beside}-figures"), figures) if figures else []
    if csv:
        chosen = usual_target(entries, "stationarity", targets(entries, "stationarity")) if target is None else target
        others.append(save_histories(records, Path(f"{beside}-histories.csv")))
        others.append(save_costs(records, "stationarity", chosen, Path(f"{beside}-costs.csv")))
    return Written(page.finding, path, others)
