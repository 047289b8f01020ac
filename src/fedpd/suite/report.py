"""Write the results of the suite: tables, performance profiles, and the list of problems."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from fedpd.suite.answers import known
from fedpd.suite.profiles import finding, profile_figure, table_markdown
from fedpd.suite.registry import PROBLEMS
from fedpd.suite.runner import Cell
from fedpd.suite.spending import COSTS

HEADINGS = ("problem", "N", "d", "samples", "convex", "cond.", "diff.", "f*", "data")
CAPTION = "cond.: condition number of the mean Hessian H at the minimum; diff.: max ||H_i - H||/||H|| there."


class Written(NamedTuple):
    """The files that were written, and the findings.

    Attributes:
        findings: One sentence per budget.
        files: The files.
    """

    findings: list[str]
    files: list[Path]


def write_results(cells: Sequence[Cell], budgets: Sequence[int], folder: Path) -> Written:
    """Write one page of tables and one figure per budget.

    Args:
        cells: Results.
        budgets: The tuning budgets.
        folder: Where to write.
    """
    findings, files = [], []
    for budget in sorted(set(budgets)):
        findings.append(finding(cells, budget) + ".")
        tables = "\n".join(table_markdown(cells, cost, budget) for cost in COSTS)
        page, picture = folder / f"budget-{budget}.md", folder / f"profiles-{budget}.png"
        page.write_text(f"{findings[-1]}\n\n{tables}", encoding="utf-8")
        profile_figure(cells, budget).savefig(picture, dpi=120)
        files += [page, picture]
    return Written(findings, files)


def problem_rows() -> list[tuple[str, ...]]:
    """Return the cells of the list of problems, in the order of `HEADINGS`."""
    facts = known()
    rows: list[tuple[str, ...]] = []
    for name, entry in PROBLEMS.items():
        fact = facts[name]
        sizes = (str(fact.agents), str(fact.dimension), str(fact.samples))
        condition = "-" if np.isinf(fact.condition) else f"{fact.condition:.2g}"
        numbers = (condition, f"{fact.dissimilarity:.1g}", f"{fact.value:.4g}")
        rows.append((name, *sizes, "yes" if entry.convex else "no", *numbers, entry.source))
    return rows


def list_problems() -> Table:
    """Return a table of the problems and what is known of them, for a terminal."""
    table = Table(title="Problems of the suite", title_justify="left", caption_justify="left", caption=CAPTION)
    for heading in HEADINGS:
        left = heading in ("problem", "data", "convex")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading == "problem")
    for row in problem_rows():
        table.add_row(*row)
    return table
