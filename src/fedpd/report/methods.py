"""The table of methods: what each sends and keeps, what it assumes, and its complexity as in the paper's Table 1.

What is sent and kept is read off the methods' own functions; what is assumed and proved is from their papers.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table
from tree_math import Vector

from fedpd import experiment, problems
from fedpd.agents import Functions, arrays, local_objective
from fedpd.core import Algorithm, Problem
from fedpd.costs import message_costs
from fedpd.defaults import method_tables
from fedpd.precision import scope


class Claim(NamedTuple):
    """What a method's paper assumes (beyond L-smooth f_i) and proves for an eps-solution, ||grad f||^2 <= eps."""

    cta: bool
    assumes: str  # NC: non-convex, C: convex, SC: strongly convex; BG: bounded gradients
    rounds: str
    updates: str = "-"
    samples: str = "-"


CLAIMS = {
    "FedPD-GD": Claim(True, "NC", "1/e", "log(1/e)/e", "M log(1/e)/e"),
    "FedPD-GD p=0.5": Claim(True, "NC, delta-non-iid", "(1-p)/e", "log(1/e)/e", "M log(1/e)/e"),
    "FedPD-GD p=auto": Claim(False, "NC, not proved", "-"),
    "FedPD-VR": Claim(True, "NC", "1/e", "Q/e", "M + sqrt(M)/e"),
    "FedAvg-SGD": Claim(True, "SC, BG", "1/e", "1/e", "1/e"),
    "Local GD": Claim(True, "C", "1/e^1.5", "1/e^2", "M/e^2"),
    "FedProx": Claim(True, "NC, iid (eq. iid:2)", "1/e", "1/e^2", "1/e^2"),
    "MPR-SGD": Claim(True, "NC, BG", "1/e^1.5", "1/e^2", "1/e^2"),
    "RI-SGD": Claim(True, "NC, shared data", "1/e", "1/e^2", "1/e^2"),
    "Cooperative SGD": Claim(True, "NC, iid", "1/e", "1/e^2", "1/e^2"),
    "ADMM": Claim(True, "NC, exact x_i", "1/e"),
    "FedDyn": Claim(True, "NC, exact x_i", "1/e"),
    "FedDR": Claim(True, "NC, inexact x_i", "1/e"),
    "FedADMM": Claim(True, "NC, inexact x_i", "1/e"),
    "A-FedPD": Claim(True, "NC, inexact x_i", "1/e"),
    "ProxSkip p=0.8": Claim(True, "SC, condition k", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
    "SCAFFOLD": Claim(False, "NC", "1/e", "1/e^2", "1/e^2"),
    "VRL-SGD": Claim(True, "NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    "FedLin": Claim(False, "NC (SC: linear)", "1/e", "Q/e", "M Q/e"),
    "FedDANE": Claim(False, "NC, bounded dissimilarity", "1/e"),
    "F-SVRG": Claim(False, "NC", "1/e", "Q/e", "M/e + Q/e"),
    "PR-SPIDER": Claim(False, "NC", "1/e", "Q/e", "sqrt(M)/e"),
    "STEM": Claim(False, "NC, bounded variance", "1/e", "1/e^1.5", "1/e^1.5"),
    "LAG-WK": Claim(False, "NC (SC: linear)", "1/e", "1/e", "M/e"),
    "LAG-PS": Claim(False, "NC (SC: linear)", "1/e", "1/e", "M/e"),
    "COLA": Claim(True, "C (SC: linear)", "1/e", "1/e", "M/e"),
}


class Sizes(NamedTuple):
    """In multiples of the model."""

    up: float
    down: float
    agent: float
    server: float


HEADINGS = ("method", "up", "down", "agent", "server", "CTA", "assumes", "rounds", "local updates", "samples")
LEGEND = (
    "up, down: what an agent sends and fetches in a round; agent, server: what they keep; in multiples of the model "
    "(PR-SPIDER: in a round with full gradients). CTA: only models are sent. assumes: NC non-convex, C convex, SC "
    "strongly convex, BG bounded gradients. rounds, local updates, samples: O(.) until ||grad f||^2 <= e, M samples."
)


def methods_table() -> Table:
    """One row a method."""
    table = Table(title="Methods", caption=LEGEND, title_justify="left", caption_justify="left")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if 1 <= number <= 4 else "left", no_wrap=number == 0)
    for row in rows():
        table.add_row(*row)
    return table


def methods_markdown() -> str:
    """The same for documentation."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS), *(" | ".join(row) for row in rows())]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def rows() -> list[tuple[str, ...]]:
    found = []
    for label, algorithm in example_methods():
        claim = CLAIMS[label]
        sizes = (f"{size:g}" for size in measure_sizes(algorithm))
        found.append((label, *sizes, "yes" if claim.cta else "no", *claim[1:]))
    return found


def example_methods() -> list[tuple[str, Algorithm]]:
    """Every method as `fedpd compare --methods all` would run it where L = 1 and N = 2."""
    methods = []
    for table in method_tables(1.0, 2):
        arguments = {key: value for key, value in table.items() if key != "label"}
        methods.append((table["label"], experiment.build_algorithm(arguments, rounds=100)))
    return methods


def measure_sizes(algorithm: Algorithm) -> Sizes:
    """What a method sends in its first round and keeps, counted in models on a problem whose model is large."""
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


def _large_problem() -> Problem:
    return problems.quadratic(np.ones((2, 1, 1)) * np.eye(100), np.ones((2, 100)))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
