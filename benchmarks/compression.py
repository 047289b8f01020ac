"""Measure the bytes that compressed methods send until they reach 1e-10: `python -m benchmarks.compression`.

Each row is the best of a few step sizes. Bytes are those that one agent sends. The target is a stationarity of 1e-10
times the stationarity at the start. `--quick` runs the first problem only.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpd import Algorithm, Problem, algorithms, oracles, simulate, transforms
from fedpd.suite import regressions
from fedpd.suite.splits import by_label
from fedpd.suite.tables import generated

TARGET, MOST = 1e-10, 1000
AGENTS, SAMPLES, DIMENSION = 8, 320, 1000
top, bits = transforms.top_k, transforms.quantize


class Form(NamedTuple):
    """A method with its step sizes in units of 1/L, and its transforms."""

    label: str
    make: Callable[[float], Algorithm]
    steps: tuple[float, ...]
    ways: dict[str, Any]


def problems() -> dict[str, Problem]:
    """Return problems with d = 1,000 whose agents differ: samples are sorted by their target."""
    regression, binary = (generated(kind, SAMPLES, DIMENSION) for kind in ("regression", "binary"))
    return {
        "ridge": regressions.ridge(regression, by_label(regression.y, AGENTS), l2=0.1),
        "logistic": regressions.logistic(binary, by_label(binary.y, AGENTS), l2=0.01),
    }


def forms(L: float) -> list[Form]:
    """Return the methods to compare, for problems with this L."""
    solve = oracles.lbfgs(tolerance=1e-2, iterations=40)

    def fedpd(scale: float) -> Algorithm:
        return algorithms.fedpd(eta=scale / L, oracle=solve)

    def descent(scale: float) -> Algorithm:
        return algorithms.gradient_descent(step=scale / L)

    def scaffold(scale: float) -> Algorithm:
        return algorithms.scaffold(step=scale / (8 * L), iterations=8)

    few, signs = [top(0.1), bits(4)], [top(0.2), transforms.sign()]
    return [
        Form("FedPD, float64", fedpd, (3, 10, 30), {}),
        Form("FedPD, 8 bits", fedpd, (10, 30), {"up": bits(8)}),
        Form("FedPD, 2 bits", fedpd, (10, 30), {"up": bits(2)}),
        Form("FedPD, top 10 %", fedpd, (10, 30), {"up": top(0.1)}),
        Form("FedPD, top 10 %, 4 bits", fedpd, (10, 30), {"up": few}),
        Form("FedPD, top 20 %, signs", fedpd, (10, 30), {"up": signs}),
        Form("FedPD, top 10 %, signs", fedpd, (10, 30), {"up": [top(0.1), transforms.sign()]}),
        Form("FedPD, top 1 %, 8 bits", fedpd, (10, 30), {"up": [top(0.01), bits(8)]}),
        Form("FedPD, random 10 %, 4 bits", fedpd, (10, 30), {"up": [transforms.random_k(0.1), bits(4)]}),
        Form("FedPD, 4 bits both ways", fedpd, (10, 30), {"up": bits(4), "down": bits(4)}),
        Form(
            "FedPD, top 20 %, 4 bits both ways",
            fedpd,
            (10, 30),
            {"up": [top(0.2), bits(4)], "down": [top(0.2), bits(4)]},
        ),
        Form("EF21 (gradient descent), top 10 %, 4 bits", descent, (0.3, 1), {"up": few}),
        Form("SCAFFOLD, top 10 %, 4 bits", scaffold, (0.3, 1), {"up": few}),
    ]


def measure(form: Form, problem: Problem, L: float) -> tuple[float, float, int, float] | None:
    """Return (bytes up, bytes down, communications, step) of the best step size; None: none reached the target."""
    found = []
    for scale in form.steps:
        plain = form.make(scale)
        algorithm = transforms.wrap(plain, **form.ways) if form.ways else plain
        target = TARGET * start_of(problem)
        history = simulate(algorithm, problem, rounds=MOST, until={"stationarity": target}, progress=False).history
        if history["stationarity"][-1] <= target:
            up, down = (float(history[name][-1]) / problem.agents for name in ("bytes_up", "bytes_down"))
            found.append((up, down, int(history["communications"][-1]), scale))
    return min(found, key=lambda one: one[0] + (one[1] if "down" in form.ways else 0)) if found else None


def start_of(problem: Problem) -> float:
    """Return the stationarity at the start."""
    plain = algorithms.gradient_descent(step=1e-6)
    return float(simulate(plain, problem, rounds=1, progress=False).history["stationarity"][0])


def main() -> None:
    """Print one table per problem."""
    warnings.simplefilter("ignore")  # step sizes beyond the theorems
    for name, problem in list(problems().items())[: 1 if "--quick" in sys.argv else None]:
        L = problem.answer.smoothness
        assert L is not None
        print(f"\n{name}, d = {problem.dimension:,}, {problem.agents} agents\n", flush=True)
        print("| method | communications | kB sent per agent | kB received | times fewer bytes sent | step, 1/L |")
        print("|---|---|---|---|---|---|", flush=True)
        usual = np.nan
        for form in forms(L):
            row = measure(form, problem, L)
            if row is None:
                print(f"| {form.label} | not in {MOST} | | | | |", flush=True)
                continue
            usual = row[0] if not form.ways else usual
            print(
                f"| {form.label} | {row[2]} | {row[0] / 1e3:.2f} | {row[1] / 1e3:.2f} | {usual / row[0]:.1f} | "
                f"{row[3]:g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
