"""Draw performance profiles: of the suite from the tables of docs/suite/tables.md, of networks from stored results."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedpd.engine.views.drawing import clear_frame, label_ends, line_styles, plain_ticks, set_heading
from fedpd.suite.networks_methods import FEDPD_N
from fedpd.suite.networks_results import by_method, costs_to_targets, problems_of, read_outcomes
from fedpd.suite.networks_results import finding as finding_of_networks
from fedpd.suite.networks_runner import SHARES
from fedpd.suite.results import FARTHEST, costs_of, finding, shares
from fedpd.suite.runner import SOLVE, Cell

RESULTS = Path(__file__).parents[2] / "docs" / "figures" / "networks.json"
PAGE = Path(__file__).parents[2] / "docs" / "suite" / "tables.md"
SIZE = (8.0, 5.6)  # inches


def cells(budget: int) -> list[Cell]:
    """Return the communications of all methods on all problems; they are infinite where a method failed."""
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(rf"<!-- measured: communications {budget} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    (_, *methods), _, *rows = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return [
        Cell(problem, method, budget, np.inf if spent == "fails" else float(spent), *[np.nan] * 5)
        for problem, *row in rows
        for method, spent in zip(methods, row, strict=True)
    ]


def profile(budget: int) -> Figure:
    """Draw the share of problems that each method solves with at most so many times the fewest communications."""
    found = cells(budget)
    problems, methods, spent = costs_of(found, "communications", budget)
    words = f"share of {len(problems)} problems that are solved with that many"
    return draw(spent, methods, SOLVE, words, finding(found, budget))


def draw(spent: np.ndarray, methods: Sequence[str], thick: str, words: str, title: str) -> Figure:
    """Draw profiles.

    Args:
        spent: (problems, methods) communications, infinite where a method failed.
        methods: The labels.
        thick: The label whose line is thick.
        words: The label of the vertical axis.
        title: The finding.
    """
    factors = np.logspace(0, np.log2(FARTHEST), 120, base=2)
    drawn = shares(spent, factors)
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    lines = []
    for method, style in enumerate(line_styles(methods)):
        width = 2.8 if methods[method] == thick else 1.2
        lines += axes.step(factors, drawn[:, method], where="post", linewidth=width, **style)
    axes.set_xscale("log", base=2)
    plain_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=(1, FARTHEST), ylim=(-0.02, 1.02), xlabel="communications, as a multiple of the fewest")
    axes.set_ylabel(words)
    clear_frame(axes)
    label_ends(axes, lines, methods, 0.78 * SIZE[1])
    set_heading(figure, title, int(12 * SIZE[0]))
    return figure


def networks(budget: int) -> Figure:
    """Draw the share of targets on the network problems, from the results of `fedpd benchmark networks`."""
    outcomes = read_outcomes(RESULTS)
    methods = by_method(costs_to_targets(outcomes, "communications", budget))
    spent = np.stack([costs.ravel() for costs in methods.values()], axis=1)
    words = f"share of {len(SHARES)} targets on {len(problems_of(outcomes))} problems that are reached"
    return draw(spent, list(methods), FEDPD_N, words, finding_of_networks(outcomes, budget))
