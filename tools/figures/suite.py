"""Draw performance profiles of the suite from the tables of docs/suite/tables.md."""

import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedpd.engine.views.drawing import clear_frame, label_ends, line_styles, plain_ticks, set_heading
from fedpd.suite.results import FARTHEST, costs_of, finding, shares
from fedpd.suite.runner import SOLVE, Cell

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
    factors = np.logspace(0, np.log2(FARTHEST), 120, base=2)
    drawn = shares(spent, factors)
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    lines = []
    for method, style in enumerate(line_styles(methods)):
        width = 2.8 if methods[method] == SOLVE else 1.2
        lines += axes.step(factors, drawn[:, method], where="post", linewidth=width, **style)
    axes.set_xscale("log", base=2)
    plain_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=(1, FARTHEST), ylim=(-0.02, 1.02), xlabel="communications, as a multiple of the fewest")
    axes.set_ylabel(f"share of {len(problems)} problems that are solved with that many")
    clear_frame(axes)
    label_ends(axes, lines, methods, 0.78 * SIZE[1])
    set_heading(figure, finding(found, budget), int(12 * SIZE[0]))
    return figure
