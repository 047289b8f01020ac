"""Performance profiles (Dolan and Moré, 2002): on how many problems a method is within a factor of the best."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedpd.engine.views.drawing import line_styles, plain_ticks
from fedpd.engine.views.entries import unequal_work
from fedpd.suite.runner import SOLVE, Cell
from fedpd.suite.spending import COSTS

FARTHEST = 32.0  # the factor at which the figure ends


def costs_of(cells: Sequence[Cell], cost: str, budget: int) -> tuple[list[str], list[str], np.ndarray]:
    """Return problems, methods, and (problems, methods) what each method spent; infinite where it failed.

    Only problems that all methods were run on are returned.

    Args:
        cells: Results.
        cost: A name of `COSTS`.
        budget: The tuning budget.
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
        >>> spent = np.array([[1.0, 2.0], [8.0, 4.0], [np.inf, 3.0]])
        >>> shares(spent, np.array([1.0, 2.0])).round(2).tolist()
        [[0.33, 0.67], [0.67, 1.0]]
    """
    least = spent.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinity by infinity, where all failed
        ratios = np.where(np.isfinite(spent), spent / least, np.inf)
    return np.array([(ratios <= factor * (1 + 1e-12)).mean(axis=0) for factor in factors])


def profile_figure(cells: Sequence[Cell], budget: int) -> Figure:
    """Draw one panel per cost: the share of problems against the factor to the best method on each.

    Args:
        cells: Results.
        budget: The tuning budget.
    """
    factors = np.logspace(0, np.log2(FARTHEST), 400, base=2)
    problems, methods, first = costs_of(cells, "communications", budget)
    order = np.argsort(-shares(first, factors).mean(axis=0), kind="stable")
    figure = Figure(figsize=(12, 8.4 + 0.2 * -(-len(methods) // 5)), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for axes, (cost, words) in zip(panels, COSTS.items(), strict=True):
        drawn = shares(costs_of(cells, cost, budget)[2], factors)
        for method in order:
            style = line_styles(methods)[method]
            width = 2.8 if methods[method] == SOLVE else 1.4
            axes.step(factors, drawn[:, method], where="post", label=methods[method], linewidth=width, **style)
        axes.set_xscale("log", base=2)
        plain_ticks(axes.xaxis)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlim=(1, FARTHEST), ylim=(-0.02, 1.02), xlabel=f"{words}: factor to the least")
        axes.grid(alpha=0.3)
    for axes in (figure.axes[0], figure.axes[2]):
        axes.set_ylabel(f"share of {len(problems)} problems within the factor")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(fill(finding(cells, budget), 120, break_on_hyphens=False))
    return figure


def finding(cells: Sequence[Cell], budget: int) -> str:
    """Return one sentence: which method is most often within twice the fewest communications.

    Args:
        cells: Results.
        budget: The tuning budget.
    """
    problems, methods, spent = costs_of(cells, "communications", budget)
    within = shares(spent, np.array([2.0]))[0]
    best = int(np.argmax(within))
    how = "with nothing tuned" if budget == 0 else f"with up to {budget} runs to tune each method"
    said = (
        f"{methods[best]} is within twice the fewest communications on {round(within[best] * len(problems))} of "
        f"{len(problems)} problems, {how}"
    )
    unequal = unequal_work(_works(cells, budget), "gradients of all samples")
    return f"{said}. {unequal}" if unequal else said


def _works(cells: Sequence[Cell], budget: int) -> dict[str, float]:
    """Return the gradients of all samples per communication of each method, the median over the problems it solved."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if cell.budget == budget and np.isfinite(cell.communications) and cell.communications > 0:
            found.setdefault(cell.method, []).append(cell.gradients / cell.communications)
    return {method: float(np.median(works)) for method, works in found.items()}


def table_markdown(cells: Sequence[Cell], cost: str, budget: int) -> str:
    """Return a table of costs, one row per problem, the least in bold.

    Args:
        cells: Results.
        cost: A name of `COSTS`.
        budget: The tuning budget.
    """
    problems, methods, spent = costs_of(cells, cost, budget)
    lines = [f"| {COSTS[cost]} | {' | '.join(methods)} |", f"|---{'|---' * len(methods)}|"]
    for name, row in zip(problems, spent, strict=True):
        words = ["fails" if not np.isfinite(value) else f"{value:.0f}" for value in row]
        words = [
            f"**{word}**" if value == row.min() and np.isfinite(value) else word
            for word, value in zip(words, row, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"
