"""Compare one method with the best of all others on each problem, whatever tuning the others had."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpd.suite.profiles import costs_of
from fedpd.suite.registry import PROBLEMS
from fedpd.suite.runner import Cell
from fedpd.suite.spending import COSTS
from fedpd.suite.tries import BUDGETS

ORDER = list(PROBLEMS)


class Rival(NamedTuple):
    """The method that spends the least of a cost on a problem, and what it spends; "" if none reached the target."""

    method: str
    spent: float


class Row(NamedTuple):
    """One method and its best rival on a problem, for one cost.

    Attributes:
        problem: The problem.
        own: What the method spent; infinite where it failed.
        rival: The best of the other methods.
    """

    problem: str
    own: float
    rival: Rival

    @property
    def factor(self) -> float:
        """The cost of the method over that of its best rival; NaN if both failed."""
        if not np.isfinite(self.own) and not np.isfinite(self.rival.spent):
            return float("nan")
        return self.own / self.rival.spent if np.isfinite(self.own) else float("inf")


def measured_everywhere(cells: Sequence[Cell], budget: int) -> list[Cell]:
    """Return the cells of a budget, of those methods only that were run on all problems that there are cells of.

    Args:
        cells: Results.
        budget: The tuning budget.
    """
    own = [cell for cell in cells if cell.budget == budget]
    problems: dict[str, set[str]] = {}
    for cell in own:
        problems.setdefault(cell.method, set()).add(cell.problem)
    every = {cell.problem for cell in cells}
    return sorted((cell for cell in own if problems[cell.method] == every), key=lambda cell: ORDER.index(cell.problem))


def tuned_at_most(cells: Sequence[Cell], budget: int) -> tuple[list[Cell], dict[str, int]]:
    """Return cells of a budget, and the methods that had a smaller one, because they were not run with this one.

    Args:
        cells: Results.
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


def against_best(cells: Sequence[Cell], method: str, cost: str, budget: int) -> list[Row]:
    """Return what a method and the best of the others spent on each problem.

    Args:
        cells: Results.
        method: The label of the method.
        cost: A name of `COSTS`.
        budget: The tuning budget of the others.
    """
    problems, methods, spent = costs_of(cells, cost, budget)
    at = methods.index(method)
    others = np.delete(spent, at, axis=1)
    names = [name for name in methods if name != method]
    rows = []
    for name, own, row in zip(problems, spent[:, at], others, strict=True):
        best = int(np.argmin(row))
        rows.append(Row(name, float(own), Rival(names[best] if np.isfinite(row[best]) else "", float(row[best]))))
    return rows


def summary_markdown(cells: Sequence[Cell], budgets: Sequence[int], cost: str) -> str:
    """Return a table with one row per method: on how many problems it is best, within twice the best, and solves.

    Args:
        cells: Results.
        budgets: The tuning budgets, a group of columns each.
        cost: A name of `COSTS`.
    """
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
    lines = [f"| {COSTS[cost]}: best, within twice, solved | {' | '.join(heads)} |", f"|---{'|---' * len(heads)}|"]
    for method in order:
        lines.append(f"| {method} | {' | '.join(counts[method].get(budget, '-') for budget in budgets)} |")
    return "\n".join(lines) + "\n"


def rivals_markdown(cells: Sequence[Cell], method: str, budgets: Sequence[int]) -> str:
    """Return a table with one row per problem: what a method spent, and the best rival in vectors of each budget.

    Args:
        cells: Results.
        method: The label of the method.
        budgets: The tuning budgets of the rivals.
    """
    rows = {budget: against_best(tuned_at_most(cells, budget)[0], method, "vectors", budget) for budget in budgets}
    own = {cell.problem: cell for cell in cells if cell.method == method and cell.budget == budgets[0]}
    heads = [f"best rival, {budget} tries" if budget else "best rival, untuned" for budget in budgets]
    lines = [f"| problem | {method} | {' | '.join(heads)} | factor |", f"|---|---{'|---' * len(heads)}|---|"]
    for at, row in enumerate(rows[budgets[0]]):
        cell = own[row.problem]
        spent = (cell.communications, cell.vectors, cell.bytes / 1000, cell.gradients)
        words = "; ".join(f"{number:.0f}" for number in spent) if np.isfinite(row.own) else "fails"
        rivals = [rows[budget][at].rival for budget in budgets]
        told = [f"{rival.spent:.0f}, {rival.method}" if rival.method else "none" for rival in rivals]
        last = rows[budgets[-1]][at].factor
        factor = "-" if np.isnan(last) else "fails" if np.isinf(last) else f"{last:.1f}"
        lines.append(f"| {row.problem} | {words} | {' | '.join(told)} | {factor} |")
    return "\n".join(lines) + "\n"


def far_from_best(cells: Sequence[Cell], method: str, cost: str, budget: int, factor: float = 2.0) -> list[str]:
    """Return one sentence per problem on which a method is not within a factor of its best rival.

    Args:
        cells: Results.
        method: The label of the method.
        cost: A name of `COSTS`.
        budget: The tuning budget of the rivals.
        factor: The factor.
    """
    sentences = []
    for row in against_best(tuned_at_most(cells, budget)[0], method, cost, budget):
        if row.factor <= factor or np.isnan(row.factor):
            continue
        rival = f"{row.rival.method} with {row.rival.spent:.0f}"
        told = "fails" if np.isinf(row.factor) else f"takes {row.own:.0f}, {row.factor:.1f} times {rival}"
        sentences.append(f"{row.problem}: {told}" + (f"; the best is {rival}." if np.isinf(row.factor) else "."))
    return sentences
