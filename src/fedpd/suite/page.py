"""Remake the parts of the documentation that show results of the suite, from a file of results.

    python -m fedpd.suite.page runs/suite/cells.jsonl docs

In the pages, each part stands between two comments: `<!-- measured: NAME -->` and `<!-- end -->`. The text around them
is written by hand.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedpd.suite.comparison import (
    against_best,
    far_from_best,
    measured_everywhere,
    rivals_markdown,
    summary_markdown,
    tuned_at_most,
)
from fedpd.suite.profiles import profile_figure, table_markdown
from fedpd.suite.registry import PROBLEMS
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
        figure = profile_figure(tuned_at_most(cells, budget)[0], budget)
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
        name: "headline", "brief", "summary", "rivals", "far", "few", "few NUMBER" of methods, or "COST BUDGET", e.g.
            "vectors 64".
    """
    word, _, number = name.partition(" ")
    if word in COSTS:
        return table_markdown(tuned_at_most(cells, int(number))[0], word, int(number))
    parts: dict[str, Callable[[], str]] = {
        "summary": lambda: summary_markdown(cells, BUDGETS, "vectors"),
        "rivals": lambda: rivals_markdown(cells, SOLVE, BUDGETS),
        "far": lambda: "".join(f"- {one}\n" for one in far_from_best(cells, SOLVE, "vectors", BUDGETS[-1])),
        "few": lambda: few_markdown(cells, int(number) if number else None),
        "headline": lambda: headline(cells),
        "brief": lambda: brief(cells),
    }
    return parts[word]()


def headline(cells: Sequence[Cell]) -> str:
    """Return a list with one sentence per budget: how solve, untuned, compares with all others.

    Args:
        cells: Results.
    """
    measured = len({cell.problem for cell in cells})
    lines = [] if measured == len(PROBLEMS) else [f"- Measured so far: {measured} of {len(PROBLEMS)} problems.\n"]
    for budget in (budget for budget in BUDGETS if budget <= largest_budget(cells)):
        own, smaller = tuned_at_most(cells, budget)
        words = []
        for cost in ("vectors", "communications", "bytes", "gradients"):
            factors = np.array([row.factor for row in against_best(own, SOLVE, cost, budget)])
            words.append(f"{cost} {(factors <= 1).sum()} and {(factors <= 2).sum()}")
        tuned = f"with the best of {budget} tries" if budget else "with their own rules"
        lines.append(
            f"- Against {_rivals(own)} methods {tuned}, untuned solve is the best, and within twice the best, on so "
            f"many of {len(factors)} problems: {', '.join(words)}.{_fewer_tries(smaller)}\n"
        )
    return "".join(lines)


def brief(cells: Sequence[Cell]) -> str:
    """Return one item of a list: solve, untuned, against all others at their best.

    Args:
        cells: Results.
    """
    budget = largest_budget(cells)
    own, smaller = tuned_at_most(cells, budget)
    rows = against_best(own, SOLVE, "vectors", budget)
    factors, solved = np.array([row.factor for row in rows]), sum(np.isfinite(row.own) for row in rows)
    return (
        f"- **`fedpd solve` needs no tuning, and is not always the best.** On [{len(rows)} problems]"
        f"(docs/suite/results.md) it solves {solved}. Against {_rivals(own)} methods, "
        f"each with the best of up to {budget} tries per problem, it sends the fewest vectors of the model's size "
        f"on {(factors <= 1).sum()} and at most twice the fewest on {(factors <= 2).sum()}.{_fewer_tries(smaller)}\n"
    )


def largest_budget(cells: Sequence[Cell]) -> int:
    """Return the largest budget with which a method other than solve was run on all problems."""
    return max(
        (budget for budget in BUDGETS if any(cell.method != SOLVE for cell in measured_everywhere(cells, budget))),
        default=0,
    )


def _rivals(cells: Sequence[Cell]) -> int:
    return len({cell.method for cell in cells} - {SOLVE})


def _fewer_tries(smaller: Mapping[str, int]) -> str:
    """Return a sentence about the methods that had a smaller budget; "" if there is none."""
    groups: dict[int, list[str]] = {}
    for method, budget in smaller.items():
        groups.setdefault(budget, []).append(method)
    return "".join(f" Only {budget} tries: {', '.join(methods)}." for budget, methods in groups.items())


def few_markdown(cells: Sequence[Cell], most: int | None = None) -> str:
    """Return a table of communications on a few problems, untuned and tuned, one row per method.

    Args:
        cells: Results.
        most: The most methods: those with the fewest communications on these problems. None: all.
    """
    found = {(cell.method, cell.problem, cell.budget): cell.communications for cell in cells}
    own, _ = tuned_at_most(cells, BUDGETS[-1])
    few = [problem for problem in FEW if any(cell.problem == problem for cell in own)]
    tuned = {(cell.method, cell.problem): cell.communications for cell in own}
    labels = {cell.method for cell in own}

    def words(label: str, problem: str) -> str:
        costs = [found[label, problem, 0], *([] if label == SOLVE else [tuned[label, problem]])]
        return " / ".join("-" if not np.isfinite(cost) else f"{cost:.0f}" for cost in costs)

    def rank(label: str) -> tuple[int, float]:
        costs = np.array([tuned[label, problem] for problem in few])
        return -int(np.isfinite(costs).sum()), float(np.log(np.minimum(costs, 1e6)).sum())

    lines = [f"| method | {' | '.join(few)} |", f"|---{'|---' * len(few)}|"]
    for label in sorted(labels, key=rank)[:most]:
        lines.append(f"| {label} | {' | '.join(words(label, problem) for problem in few)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
