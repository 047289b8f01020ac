"""Remake the parts of the documentation that show results of the suite, from a file of results.

    python -m fedpd.suite.page runs/suite/cells.jsonl docs

In the pages, each part stands between two comments: `<!-- measured: NAME -->` and `<!-- end -->`. The text around them
is written by hand.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedpd.suite.comparison import against_best, far_from_best, measured_everywhere, rivals_markdown, summary_markdown
from fedpd.suite.profiles import profile_figure, table_markdown
from fedpd.suite.runner import SOLVE, Cell, read_cells
from fedpd.suite.spending import COSTS
from fedpd.suite.tries import BUDGETS

PART = re.compile(r"(<!-- measured: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FEW = ("quadratic-equal-1e4", "ridge-diabetes", "logistic-cancer", "softmax-digits", "network-wine", "paper-strong")


def main(file: str, docs: str) -> None:
    """Write the figures, and the measured parts of all pages and of the README beside the folder.

    Args:
        file: The file of results.
        docs: The folder of the documentation.
    """
    cells, folder = read_cells(Path(file)), Path(docs)
    for budget in BUDGETS:
        figure = profile_figure(measured_everywhere(cells, budget), budget)
        figure.savefig(folder / "images" / f"suite_{budget}.png", dpi=110)
    for page in (folder.parent / "README.md", *sorted(folder.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        new = PART.sub(lambda found: f"{found[1]}{made(cells, found[2])}{found[4]}", text)
        if new != text:
            page.write_text(new, encoding="utf-8")


def made(cells: Sequence[Cell], name: str) -> str:
    """Return a measured part of a page.

    Args:
        cells: Results.
        name: "summary", "rivals", "far", "few", "headline", or "COST BUDGET", e.g. "vectors 64".
    """
    cost, _, budget = name.partition(" ")
    if cost in COSTS:
        return table_markdown(measured_everywhere(cells, int(budget)), cost, int(budget))
    parts: dict[str, Callable[[], str]] = {
        "summary": lambda: summary_markdown(cells, BUDGETS, "vectors"),
        "rivals": lambda: rivals_markdown(cells, SOLVE, BUDGETS),
        "far": lambda: "".join(f"- {one}\n" for one in far_from_best(cells, SOLVE, "vectors", BUDGETS[-1])),
        "few": lambda: few_markdown(cells),
        "headline": lambda: headline(cells),
    }
    return parts[name]()


def headline(cells: Sequence[Cell]) -> str:
    """Return a list with one sentence per budget: how solve, untuned, compares with all others.

    Args:
        cells: Results.
    """
    lines = []
    for budget in BUDGETS:
        own = measured_everywhere(cells, budget)
        words = []
        for cost in ("vectors", "communications", "bytes", "gradients"):
            factors = np.array([row.factor for row in against_best(own, SOLVE, cost, budget)])
            words.append(f"{cost} {(factors <= 1).sum()} and {(factors <= 2).sum()}")
        rivals = len({cell.method for cell in own}) - 1
        tuned = f"with the best of {budget} tries" if budget else "with their own rules"
        lines.append(
            f"- Against {rivals} methods {tuned}, untuned solve is the best, and within twice the best, on so many of "
            f"{len(factors)} problems: {', '.join(words)}.\n"
        )
    return "".join(lines)


def few_markdown(cells: Sequence[Cell]) -> str:
    """Return a table of communications on a few problems, untuned and tuned, one row per method.

    Args:
        cells: Results.
    """
    found = {(cell.method, cell.problem, cell.budget): cell.communications for cell in cells}
    tuned = BUDGETS[-1]
    labels = {cell.method for cell in measured_everywhere(cells, tuned)}

    def words(label: str, problem: str) -> str:
        costs = [found[label, problem, budget] for budget in ((0,) if label == SOLVE else (0, tuned))]
        return " / ".join("-" if not np.isfinite(cost) else f"{cost:.0f}" for cost in costs)

    def rank(label: str) -> tuple[int, float]:
        costs = np.array([found[label, problem, tuned] for problem in FEW])
        return -int(np.isfinite(costs).sum()), float(np.log(np.minimum(costs, 1e6)).sum())

    lines = [f"| method | {' | '.join(FEW)} |", f"|---{'|---' * len(FEW)}|"]
    for label in sorted(labels, key=rank):
        lines.append(f"| {label} | {' | '.join(words(label, problem) for problem in FEW)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
