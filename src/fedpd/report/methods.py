"""Make the table of methods, with their messages, memory, assumptions and complexity, as in the paper's Table 1.

fedpd measures messages and memory from the methods' functions. Assumptions and complexity are in the methods' cards.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text
from tree_math import Vector

from fedpd import problems
from fedpd.algorithms import cards, variants
from fedpd.base.precision import scope
from fedpd.core import Method, Problem
from fedpd.core.agents import Functions, Shard, arrays, local_objective
from fedpd.core.oracle import WORD
from fedpd.engine.measure.costs import message_costs, run_exchange
from fedpd.report.tables import markdown_table, text_table


class Sizes(NamedTuple):
    """The messages and the memory of a method, in multiples of the model."""

    up: float  # sent by an agent in a round
    down: float  # received by an agent in a round
    agent: float  # kept by an agent
    server: float  # kept by the server


class WorkPerRound(NamedTuple):
    """The work of an agent with n samples in a round, as the mean over ROUNDS rounds."""

    updates: float  # local steps
    full: float  # sample gradients per sample of the agent, from full gradients
    single: float  # further sample gradients. Together these are full n + single

    def __str__(self) -> str:
        terms = [f"{self.full:g} n" if self.full != 1 else "n"] if self.full else []
        return " + ".join(terms + ([f"{self.single:g}"] if self.single or not terms else []))


ROUNDS = 20  # a multiple of the period of every method that takes full gradients periodically

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
    problem = _large_problem()
    with scope(True):
        functions, one = Functions(problem.losses, None), jax.tree.map(lambda leaf: leaf[0], arrays(problem))
        f = local_objective(functions, one)
        x = Vector(problem.start)
        agent, server = jax.eval_shape(lambda: (algorithm.init(f, x), algorithm.server(x)))
        costs = message_costs(algorithm, functions, one, agent, server)
    model = problem.dimension * 8
    totals = (sum(costs.bytes_up), sum(costs.bytes_down), _bytes(agent), _bytes(server))
    return Sizes(*(round(total / model, 1) for total in totals))


def measure_work(algorithm: Method) -> WorkPerRound:
    """Return the work that a method counts per round, measured in its first rounds on a problem of one agent."""
    problem = problems.quadratic(np.ones((1, 1, 1)), np.ones((1, 1)))
    with scope(True):
        functions, one = Functions(problem.losses, None), jax.tree.map(lambda leaf: leaf[0], arrays(problem))
        x, key = Vector(jax.tree.map(jnp.asarray, problem.start)), jax.random.key(0, impl="threefry2x32")

        def advance(one: Shard, state: tuple[Any, Any], r: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
            f, (agent, server) = local_objective(functions, one), state
            updates: Any = 0
            samples: Any = 0
            for exchange in algorithm.exchanges():
                agent, server, _, _, work = run_exchange(exchange, f, agent, server, r, key)
                updates, samples = updates + work.updates, samples + work.samples + 2.0**WORD * work.carried
            return (agent, server), (updates, samples)

        @jax.jit
        def total(size: Any) -> tuple[Any, Any]:
            shard = one._replace(sizes=size)
            state = (algorithm.init(local_objective(functions, shard), x), algorithm.server(x))
            _, work = jax.lax.scan(partial(advance, shard), state, jnp.arange(ROUNDS, dtype=jnp.int32))
            return jax.tree.map(jnp.sum, work)

        (updates, few), (_, many) = (jax.tree.map(float, total(jnp.int32(size))) for size in (100, 200))
    full = (many - few) / 100 / ROUNDS
    return WorkPerRound(updates / ROUNDS, round(full, 3), round(few / ROUNDS - 100 * full, 3))


def _large_problem() -> Problem:
    return problems.quadratic(np.ones((2, 1, 1)) * np.eye(100), np.ones((2, 100)))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
