"""The results of the suite, as `fedpd benchmark` writes them: tables, performance profiles, and the list of problems.

A performance profile (Dolan and Moré, 2002) shows on how many problems a method is within a factor of the best.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from fedpd.engine.views.drawing import line_styles, plain_ticks
from fedpd.engine.views.entries import unequal_work
from fedpd.report.tables import markdown_table, text_table
from fedpd.suite.problems import PROBLEMS, known_answers
from fedpd.suite.race import COSTS
from fedpd.suite.runner import SOLVE, Cell

FARTHEST = 32.0  # the factor at which the figure ends


def costs_of(cells: Sequence[Cell], cost: str, budget: int) -> tuple[list[str], list[str], np.ndarray]:
    """Return problems, methods, and (problems, methods) what each method spent; infinite where it failed.

    Only problems that all methods were run on are returned.
    """
    chosen = {(cell.problem, cell.method): getattr(cell, cost) for cell in cells if cell.budget == budget}
    methods = list(dict.fromkeys(method for _, method in chosen))
    problems = [
        name
        for name in dict.fromkeys(problem for problem, _ in chosen)
        if all((name, method) in chosen for method in methods)
    ]
    spent = np.array([[chosen[name, method] for method in methods] for name in problems], float)
    return problems, methods, spent.reshape(len(problems), len(methods))


def shares(spent: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return (factors, methods): the share of problems on which a method spent at most so many times the least.

    A problem that no method solved counts as solved by none.

    Args:
        spent: (problems, methods) costs, infinite where a method failed.
        factors: (F,) factors, at least 1.

    Examples:
        >>> import numpy as np
        >>> from fedpd.suite.results import shares
        >>> spent = np.array([[1.0, 2.0], [8.0, 4.0], [np.inf, 3.0]])
        >>> shares(spent, np.array([1.0, 2.0])).round(2).tolist()
        [[0.33, 0.67], [0.67, 1.0]]
    """
    least = spent.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinity by infinity, where all failed
        ratios = np.where(np.isfinite(spent), spent / least, np.inf)
    return np.array([(ratios <= factor * (1 + 1e-12)).mean(axis=0) for factor in factors])


def profile_figure(cells: Sequence[Cell], budget: int) -> Figure:
    """Draw one panel per cost: the share of problems against the factor to the best method on each."""
    problems, methods, _ = costs_of(cells, "communications", budget)
    spent = {words: costs_of(cells, cost, budget)[2] for cost, words in COSTS.items()}
    return draw_profiles(spent, methods, SOLVE, f"{len(problems)} problems", finding(cells, budget))


def draw_profiles(spent: Mapping[str, np.ndarray], methods: Sequence[str], thick: str, what: str, title: str) -> Figure:
    """Draw the profiles of four costs.

    Args:
        spent: (problems, methods) costs, infinite where a method failed, by the words for the cost.
        thick: The label whose line is thick.
    """
    factors = np.logspace(0, np.log2(FARTHEST), 400, base=2)
    order = np.argsort(-shares(next(iter(spent.values())), factors).mean(axis=0), kind="stable")
    figure = Figure(figsize=(12, 8.4 + 0.2 * -(-len(methods) // 5)), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for axes, (words, costs) in zip(panels, spent.items(), strict=True):
        drawn = shares(costs, factors)
        for method in order:
            style = line_styles(methods)[method]
            width = 2.8 if methods[method] == thick else 1.4
            axes.step(factors, drawn[:, method], where="post", label=methods[method], linewidth=width, **style)
        axes.set_xscale("log", base=2)
        plain_ticks(axes.xaxis)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlim=(1, FARTHEST), ylim=(-0.02, 1.02), xlabel=f"{words}: factor to the least")
        axes.grid(alpha=0.3)
    for axes in (figure.axes[0], figure.axes[2]):
        axes.set_ylabel(f"share of {what} within the factor")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(fill(title, 120, break_on_hyphens=False))
    return figure


def finding(cells: Sequence[Cell], budget: int) -> str:
    """Return one sentence: which method is most often within twice the fewest communications."""
    problems, methods, spent = costs_of(cells, "communications", budget)
    within = shares(spent, np.array([2.0]))[0]
    best = int(np.argmax(within))
    how = "with nothing tuned" if budget == 0 else f"with up to {budget} runs to tune each method"
    said = (
        f"{methods[best]} is within twice the fewest communications on {round(within[best] * len(problems))} of "
        f"{len(problems)} problems, {how}"
    )
    works: dict[str, list[float]] = {}  # gradients of all samples per communication, on the problems it solved
    for cell in cells:
        if cell.budget == budget and np.isfinite(cell.communications) and cell.communications > 0:
            works.setdefault(cell.method, []).append(cell.gradients / cell.communications)
    medians = {method: float(np.median(each)) for method, each in works.items()}
    unequal = unequal_work(medians, "gradients of all samples")
    return f"{said}. {unequal}" if unequal else said


def table_markdown(cells: Sequence[Cell], cost: str, budget: int) -> str:
    """Return a table of costs, one row per problem, the least in bold."""
    problems, methods, spent = costs_of(cells, cost, budget)

    def words(value: float, least: float) -> str:
        if not np.isfinite(value):
            return "fails"
        return f"**{value:.0f}**" if value == least else f"{value:.0f}"

    rows = [(name, *(words(value, row.min()) for value in row)) for name, row in zip(problems, spent, strict=True)]
    return markdown_table((COSTS[cost], *methods), rows)


HEADINGS = ("problem", "N", "d", "samples", "convex", "cond.", "diff.", "f*", "data")
CAPTION = "cond.: condition number of the mean Hessian H at the minimum; diff.: max ||H_i - H||/||H|| there."


class Written(NamedTuple):
    """The files that were written, and the findings."""

    findings: list[str]  # one sentence per budget
    files: list[Path]


def write_results(cells: Sequence[Cell], budgets: Sequence[int], folder: Path) -> Written:
    """Write one page of tables and one figure per budget."""
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
    facts = known_answers()
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
    title, right = "Problems of the suite", set(HEADINGS) - {"problem", "data", "convex"}
    return text_table(title, HEADINGS, problem_rows(), right=right, whole=HEADINGS[:1], caption=CAPTION)
