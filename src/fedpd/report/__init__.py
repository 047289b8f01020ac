"""What came out: tables and figures."""

from fedpd.report.figures import comparison_figure, save_figure
from fedpd.report.tables import comparison_table, target_table

__all__ = ["comparison_figure", "comparison_table", "save_figure", "target_table"]
