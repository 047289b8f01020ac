"""Remake the parts of the documentation that compare methods on the suite, from a file of results.

    python -m tools.suite_pages runs/suite/cells.jsonl docs

In the pages, each part stands between two comments: `<!-- measured: NAME -->` and `<!-- end -->`. The text around them
is written by hand. A method is compared with the best of all others on each problem, whatever tuning the others had.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpd.report.tables import markdown_table
from fedpd.suite.problems import PROBLEMS
from fedpd.suite.race import BUDGETS, COSTS
from fedpd.suite.results import costs_of, profile_figure, table_markdown
from fedpd.suite.runner import SOLVE, Cell, read_cells

ORDER = list(PROBLEMS)


class Against(NamedTuple):
    """One method and its best rival on a problem, for one cost."""

    problem: str
    own: float  # what the method spent; infinite where it failed
    rival: str  # the other method that spent the least; "" if none reached the target
    least: float  # what the rival spent

    @property
    def factor(self) -> float:
        """The cost of the method over that of its best rival; NaN if both failed."""
        if not np.isfinite(self.own) and not np.isfinite(self.least):
            return float("nan")
        return self.own / self.least if np.isfinite(self.own) else float("inf")


def measured_everywhere(cells: Sequence[Cell], budget: int) -> list[Cell]:
    """Return the cells of a budget, of those methods only that were run on all problems that there are cells of."""
    own = [cell for cell in cells if cell.budget == budget]
    problems: dict[str, set[str]] = {}
    for cell in own:
        problems.setdefault(cell.method, set()).add(cell.problem)
    every = {cell.problem for cell in cells}
    return sorted((cell for cell in own if problems[cell.method] == every), key=lambda cell: ORDER.index(cell.problem))


def tuned_at_most(cells: Sequence[Cell], budget: int) -> tuple[list[Cell], dict[str, int]]:
    """Return cells of a budget, and the methods that had a smaller one, because they were not run with this one.

    Args:
        budget: The tuning budget. A method that was not run with it on all problems is judged by the largest budget
            below it with which it was.
    """
    found, smaller = measured_everywhere(cells, budget), dict[str, int]()
    for less in sorted((other for other in BUDGETS if other < budget), reverse=True):
        known = {cell.method for cell in found}
        more = [cell for cell in measured_everywhere(cells, less) if cell.method not in known]
        smaller |= dict.fromkeys((cell.method for cell in more), less)
        found += [cell._replace(budget=budget) for cell in more]
    return found, smaller


def against_best(cells: Sequence[Cell], method: str, cost: str, budget: int) -> list[Against]:
    """Return what a method and the best of the others spent on each problem."""
    problems, methods, spent = costs_of(cells, cost, budget)
    at = methods.index(method)
    others = np.delete(spent, at, axis=1)
    names = [name for name in methods if name != method]
    rows = []
    for name, own, row in zip(problems, spent[:, at], others, strict=True):
        best = int(np.argmin(row))
        rows.append(Against(name, float(own), names[best] if np.isfinite(row[best]) else "", float(row[best])))
    return rows


def summary_markdown(cells: Sequence[Cell], budgets: Sequence[int], cost: str) -> str:
    """Return a table with one row per method: on how many problems it is best, within twice the best, and solves."""
    counts: dict[str, dict[int, str]] = {}
    for budget in budgets:
        judged, smaller = tuned_at_most(cells, budget)
        _, methods, spent = costs_of(judged, cost, budget)
        least = spent.min(axis=1, keepdims=True)
        for method, own in zip(methods, spent.T, strict=True):
            known = np.isfinite(own)
            best, near = ((known & (own <= factor * least[:, 0])).sum() for factor in (1, 2))
            note = f" ({smaller[method]} tries)" if method in smaller else ""
            counts.setdefault(method, {})[budget] = f"{best}, {near}, {known.sum()}{note}"
    order = sorted(counts, key=lambda name: -int(counts[name].get(budgets[-1], "0, 0, 0").split(", ")[1]))
    heads = [f"{budget} tries" if budget else "its own rule" for budget in budgets]
    rows = [(method, *(counts[method].get(budget, "-") for budget in budgets)) for method in order]
    return markdown_table((f"{COSTS[cost]}: best, within twice, solved", *heads), rows)


def rivals_markdown(cells: Sequence[Cell], method: str, budgets: Sequence[int]) -> str:
    """Return a table with one row per problem: what a method spent, and the best rival in vectors of each budget."""
    rows = {budget: against_best(tuned_at_most(cells, budget)[0], method, "vectors", budget) for budget in budgets}
    own = {cell.problem: cell for cell in cells if cell.method == method and cell.budget == budgets[0]}
    heads = [f"best rival, {budget} tries" if budget else "best rival, untuned" for budget in budgets]
    lines = []
    for at, row in enumerate(rows[budgets[0]]):
        cell = own[row.problem]
        spent = (cell.communications, cell.vectors, cell.bytes / 1000, cell.gradients)
        words = "; ".join(f"{number:.0f}" for number in spent) if np.isfinite(row.own) else "fails"
        rivals = [rows[budget][at] for budget in budgets]
        told = [f"{one.least:.0f}, {one.rival}" if one.rival else "none" for one in rivals]
        last = rows[budgets[-1]][at].factor
        factor = "-" if np.isnan(last) else "fails" if np.isinf(last) else f"{last:.1f}"
        lines.append((row.problem, words, *told, factor))
    return markdown_table(("problem", method, *heads, "factor"), lines)


def far_from_best(cells: Sequence[Cell], method: str, cost: str, budget: int) -> list[str]:
    """Return one sentence per problem on which a method is not within twice its best rival."""
    sentences = []
    for row in against_best(tuned_at_most(cells, budget)[0], method, cost, budget):
        if row.factor <= 2 or np.isnan(row.factor):
            continue
        rival = f"{row.rival} with {row.least:.0f}"
        told = "fails" if np.isinf(row.factor) else f"takes {row.own:.0f}, {row.factor:.1f} times {rival}"
        sentences.append(f"{row.problem}: {told}" + (f"; the best is {rival}." if np.isinf(row.factor) else "."))
    return sentences


PART = re.compile(r"(<!-- measured: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FEW = ("quadratic-equal-1e4", "ridge-diabetes", "logistic-cancer", "softmax-digits", "network-wine", "paper-strong")


def main(file: str, docs: str) -> None:
    """Write the figures, and the measured parts of all pages and of the README beside the folder."""
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
    """Return a list with one sentence per budget: how solve, untuned, compares with all others."""
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
    """Return one item of a list: solve, untuned, against all others at their best."""
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

    rows = [(label, *(words(label, problem) for problem in few)) for label in sorted(labels, key=rank)[:most]]
    return markdown_table(("method", *few), rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
