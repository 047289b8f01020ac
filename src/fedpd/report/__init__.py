"""What came out: tables, figures and pages.

report.page(runs, problem)       runs in memory, as a page that a notebook shows
report.write_report(folders)     runs' folders, as `fedpd report` writes it
"""

from fedpd.report.command import write_report
from fedpd.report.figures import comparison_figure, paper_figure, save_figure
from fedpd.report.page import Page, page
from fedpd.report.tables import comparison_table, target_table

__all__ = [
    "Page",
    "comparison_figure",
    "comparison_table",
    "page",
    "paper_figure",
    "save_figure",
    "target_table",
    "write_report",
]
