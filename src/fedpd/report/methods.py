"""Make the table of methods, with their messages, memory, assumptions and complexity, as in the paper's Table 1.

fedpd measures messages and memory from the methods' functions. Assumptions and complexity are in the methods' cards.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text
from tree_math import Vector

from fedpd import problems
from fedpd.algorithms import cards, variants
from fedpd.base.precision import scope
from fedpd.core import Method
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.engine.measure.costs import message_costs
from fedpd.report.tables import markdown_table, text_table


class Sizes(NamedTuple):
    """The messages and the memory of a method, in multiples of the model."""

    up: float  # sent by an agent in a round
    down: float  # received by an agent in a round
    agent: float  # kept by an agent
    server: float  # kept by the server


HEADINGS = ("method", "up", "down", "agent", "server", "CTA", "assumes", "rounds", "local updates", "samples")
LEGEND = (
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
    return text_table("Methods", HEADINGS, rows(), right=HEADINGS[1:5], whole=HEADINGS[:1], caption=LEGEND)


def methods_markdown() -> str:
    """Return the table as Markdown, for the documentation."""
    return markdown_table(HEADINGS, rows())


def rows() -> list[tuple[str, ...]]:
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
