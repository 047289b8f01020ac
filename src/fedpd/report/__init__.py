"""Report runs in tables, figures and pages.

report.page(runs, problem) returns a page, and report.figure(runs) a figure. A notebook shows both.
They take a run, an ensemble, a sweep, a tuned method, a list or a dict by label of them, a folder, or folders.
report.write_report(folders) writes the page of run folders, as `fedpd report` does.
"""

from typing import TYPE_CHECKING

from fedpd.base.lazy import lazy_names as _lazy_names

# The module of each public name. It is imported when the name is first used: a table does not need matplotlib.
_HOMES = {
    "Page": "fedpd.report.pages",
    "comparison_figure": "fedpd.report.figures",
    "comparison_table": "fedpd.report.tables",
    "figure": "fedpd.report.figures",
    "page": "fedpd.report.pages",
    "paper_figure": "fedpd.report.figures",
    "save_figure": "fedpd.report.figures",
    "target_table": "fedpd.report.tables",
    "write_report": "fedpd.report.pages",
}

if TYPE_CHECKING:  # written by make format: what follows is found at run time
    from fedpd.report.figures import comparison_figure as comparison_figure
    from fedpd.report.figures import figure as figure
    from fedpd.report.figures import paper_figure as paper_figure
    from fedpd.report.figures import save_figure as save_figure
    from fedpd.report.pages import Page as Page
    from fedpd.report.pages import page as page
    from fedpd.report.pages import write_report as write_report
    from fedpd.report.tables import comparison_table as comparison_table
    from fedpd.report.tables import target_table as target_table

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
__all__ = sorted(_HOMES)
