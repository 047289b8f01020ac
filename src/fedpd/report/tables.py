"""Make tables for a terminal and in Markdown: those of a comparison with each method's costs, and that of all methods.

The table of methods has their messages, memory, assumptions and complexity, as in the paper's Table 1. fedpd measures
messages and memory from the methods' functions. Assumptions and complexity are in the methods' cards.
"""

from collections.abc import Container, Iterable, Sequence
from io import StringIO
from typing import Any, NamedTuple

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tree_math import Vector

from fedpd import problems
from fedpd.algorithms import cards, variants
from fedpd.base.precision import scope
from fedpd.core import Method
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.engine.measure.columns import KNOWN, column_of
from fedpd.engine.measure.costs import message_costs
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    Entry,
    cost_text,
    end_text,
    last_costs,
    shared_quantities,
    unequal_work,
    works_of,
)
from fedpd.experiments.recorded import Results, entries_of
from fedpd.report.reach import best_text, reach

ACCURACY = "test_accuracy"
LONGEST_LABEL = 24
Cells = Sequence[str | Text]


class PrintedTable(Table):
    """A table that `print` shows as well, as wide as it needs."""

    def __str__(self) -> str:
        display = Console(file=StringIO(), width=200)
        with display.capture() as shown:
            display.print(self)
        return "\n".join(line.rstrip() for line in shown.get().rstrip("\n").splitlines())


def text_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Cells],
    *,
    right: Container[str] = (),
    whole: Container[str] = (),
    fold: Container[str] = (),
    caption: str | None = None,
) -> Table:
    """Return a table for a terminal.

    Args:
        right: The headings of the columns that are aligned to the right.
        whole: Those of the columns that are never broken into lines.
        fold: Those of the columns whose words may be broken.
    """
    table = PrintedTable(title=title, caption=caption, title_justify="left", caption_justify="left")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading in whole,
            overflow="fold" if heading in fold else "ellipsis",
        )
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; a bar or a new line within a cell does not end it.

    Examples:
        >>> from fedpd.report.tables import markdown_table
        >>> print(markdown_table(("norm", "value"), [("|x|", "1")]), end="")
        | norm | value |
        |---|---|
        | \\|x\\| | 1 |
    """
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in (headings, *rows)]
    first, *others = (f"| {line} |\n" for line in lines)
    return first + "|---" * len(headings) + "|\n" + "".join(others)


def comparison_table(results: Results) -> Table:
    """Return a table with one row per method: its final stationarity, its test accuracy if known, and its costs.

    If the runs have metrics of the problem or of your own, the table shows them, and fewer costs.

    Args:
        results: As for `report.figure`. For several seeds, the table shows means over those that did not diverge, their
            standard deviation, and how many diverged.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, report, simulate
        >>> algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
        >>> run = simulate(
        ...     algorithm, problems.random_quadratic(agents=4, dimension=3), rounds=10, progress=False
        ... )
        >>> report.comparison_table({"FedAvg": run}).row_count
        1
    """
    entries = entries_of(results)
    shared = shared_quantities(entries)
    judged = ACCURACY in [column.name for column in shared]
    own = [column for column in shared if column.name not in KNOWN]
    reached = ("stationarity", "accuracy", "comm.") if judged else ("stationarity", "communications")
    if own:
        reached = ("stationarity", *(column.name for column in own), *reached[1:-1], "comm.")
    costs_shown = ("communications", "seconds") if own else tuple(COSTS)
    numbers = (*reached, *(() if own else ("samples", "bytes")), "time")
    rows = [
        (
            Text(entry.label),
            end_text(entry, column_of(MAIN)).replace(", ", "\n"),  # a narrow terminal has room for one of the two
            *(end_text(entry, column) for column in own),
            *((end_text(entry, column_of(ACCURACY)),) if judged else ()),
            *(cost_text(COSTS[name], costs[name]) for name in costs_shown),
        )
        for entry in entries
        for costs in [last_costs(entry.usable)]
    ]
    title, crowded = "Final stationarity ‖∇f‖² and its costs", judged or bool(own)
    return _method_table(title, entries, numbers, rows, crowded)


def target_table(results: Results, target: float) -> Table:
    """Return a table of the costs of each method until its stationarity was at most `target`.

    Args:
        results: As for `report.figure`.
        target: The stationarity to reach with all seeds. The method with the fewest communications comes first.
    """
    entries, shown = entries_of(results), ("communications", "samples", "bytes")
    found = [(entry, reach(entry, MAIN, target)) for entry in entries]
    reached = [(entry, met.costs) for entry, met in found if met.costs is not None]
    rows: list[Cells] = [
        (Text(entry.label), *(cost_text(COSTS[name], costs[name][0]) for name in shown))
        for entry, costs in sorted(reached, key=lambda pair: pair[1]["communications"][0])
    ]
    missed = [(entry, met) for entry, met in found if met.costs is None]
    rows += [(Text(entry.label), f"no: best {best_text(met, MAIN, target)}", "", "") for entry, met in missed]
    return _method_table(f"Cost to reach ‖∇f‖² ≤ {target:g}", entries, shown, rows)


def _method_table(
    title: str, entries: Sequence[Entry], numbers: Sequence[str], rows: Sequence[Cells], crowded: bool = False
) -> Table:
    """Return a table with one row per method, and a caption if their local work differs.

    It wraps labels that do not fit beside the numbers in 80 columns: long ones, and all if there are many numbers.
    """
    short = not crowded and all(len(entry.label) <= LONGEST_LABEL for entry in entries)
    unequal = unequal_work(works_of(entries))
    return text_table(
        title,
        ("method", *numbers),
        rows,
        right=numbers,
        whole=("method", *numbers) if short else numbers,
        fold=("method",),
        caption=f"{unequal}." if unequal else None,
    )


class Sizes(NamedTuple):
    """The messages and the memory of a method, in multiples of the model."""

    up: float  # sent by an agent in a round
    down: float  # received by an agent in a round
    agent: float  # kept by an agent
    server: float  # kept by the server


METHOD_HEADINGS = ("method", "up", "down", "agent", "server", "CTA", "assumes", "rounds", "local updates", "samples")
METHODS_LEGEND = (
    "up, down: what an agent sends and receives in a round; agent, server: what they keep; in multiples of the model "
    "(PR-SPIDER: in a round with full gradients). CTA: only models are sent. assumes: NC non-convex, C convex, SC "
    "strongly convex, BG bounded gradients. rounds, local updates, samples: O(.) until ||grad f||^2 <= e, M samples."
)

SHORT_LEGEND = (
    "function: the name in fedpd.algorithms and in experiment files. up, down: what an agent sends and receives in a "
    "round, in multiples of the model (PR-SPIDER: in a round with full gradients). Memory, assumptions and guarantees: "
    "fedpd methods --wide."
)


def short_table() -> Table:
    """Return a table for 80 columns with one row per method: what the method does and sends."""
    table = Table(box=box.SIMPLE_HEAD, caption=SHORT_LEGEND, caption_justify="left", padding=(0, 1, 0, 0))
    for heading in ("method", "function", "what it does", "up", "down"):
        table.add_column(heading, justify="right" if heading in ("up", "down") else "left")
    examples, family = dict(example_methods()), ""
    for name, card in cards().items():
        if card.family != family:
            family = card.family
            table.add_section()
            table.add_row("", "", Text(family, style="bold"))
        for variant in card.variants:
            sizes = measure_sizes(examples[variant.label])
            table.add_row(variant.label, name, variant.summary or card.summary, f"{sizes.up:g}", f"{sizes.down:g}")
    return table


def methods_table() -> Table:
    """Return the wide table for a terminal, one row per method."""
    return text_table(
        "Methods",
        METHOD_HEADINGS,
        method_rows(),
        right=METHOD_HEADINGS[1:5],
        whole=METHOD_HEADINGS[:1],
        caption=METHODS_LEGEND,
    )


def methods_markdown() -> str:
    """Return the table as Markdown, for the documentation."""
    return markdown_table(METHOD_HEADINGS, method_rows())


def method_rows() -> list[tuple[str, ...]]:
    """Return the cells of the table, one row per method."""
    found = []
    for label, algorithm in example_methods():
        variant = variants()[label]
        sizes = (f"{size:g}" for size in measure_sizes(algorithm))
        found.append((label, *sizes, "yes" if variant.only_models else "no", *variant.guarantee))
    return found


def example_methods() -> list[tuple[str, Method]]:
    """Return every method as `fedpd compare --methods all` runs it, for L = 1 and N = 2."""
    return [(label, variant.rule(1.0, 2, 1.0)) for label, variant in variants().items()]


def measure_sizes(algorithm: Method) -> Sizes:
    """Return the messages of a method's first round and its memory, measured on a problem with a large model."""
    problem = problems.quadratic(np.ones((2, 1, 1)) * np.eye(100), np.ones((2, 100)))
    with scope(True):
        functions, one = Functions(problem.losses, None), jax.tree.map(lambda leaf: leaf[0], arrays(problem))
        f = local_objective(functions, one)
        x = Vector(problem.start)
        agent, server = jax.eval_shape(lambda: (algorithm.init(f, x), algorithm.server(x)))
        costs = message_costs(algorithm, functions, one, agent, server)
    model = problem.dimension * 8
    totals = (sum(costs.bytes_up), sum(costs.bytes_down), _bytes(agent), _bytes(server))
    return Sizes(*(round(total / model, 1) for total in totals))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
