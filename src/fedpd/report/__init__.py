"""Report runs in tables, figures and pages.

report.page(runs, problem) returns a page, and report.figure(runs) a figure; a notebook shows both by itself.
They take a run, an ensemble, a sweep, a dict of them by label, a folder, or a list of folders.
report.write_report(folders) writes the page of run folders, as `fedpd report` does.
"""

from fedpd.report.command import write_report
from fedpd.report.figures import comparison_figure, figure, paper_figure, save_figure
from fedpd.report.pages import Page, page
from fedpd.report.tables import comparison_table, target_table

__all__ = [
    "Page",
    "comparison_figure",
    "comparison_table",
    "figure",
    "page",
    "paper_figure",
    "save_figure",
    "target_table",
    "write_report",
]
