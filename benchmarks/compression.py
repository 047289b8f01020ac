"""Measure the bytes that compressed methods send until they reach 1e-10.

    python -m benchmarks.compression [--rivals] [PROBLEM ...]

Each row is the best of a few step sizes. Bytes are those that one agent sends. The target is a stationarity of 1e-10
times the stationarity at the start. `--rivals` runs one form of FedPD and the methods of others only.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpd import Algorithm, Problem, algorithms, oracles, simulate, transforms
from fedpd import problems as make
from fedpd.suite import problems as suite
from fedpd.suite.problems import by_label, generated

TARGET, MOST = 1e-10, 1000
AGENTS, SAMPLES, DIMENSION = 8, 320, 1000
top, bits = transforms.top_k, transforms.quantize


class Form(NamedTuple):
    """A method with its step sizes in units of 1/L, its transforms and the largest number of rounds."""

    label: str
    make: Callable[[float], Algorithm]
    steps: tuple[float, ...]
    ways: dict[str, Any]
    rounds: int = MOST


def ridge() -> Problem:
    """Return ridge regression with d = 1,000; samples are sorted by their target."""
    table = generated("regression", SAMPLES, DIMENSION)
    return suite.ridge(table, by_label(table.y, AGENTS), l2=0.1)


def logistic() -> Problem:
    """Return logistic regression with d = 1,000; samples are sorted by their label."""
    table = generated("binary", SAMPLES, DIMENSION)
    return suite.logistic(table, by_label(table.y, AGENTS), l2=0.01)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "ridge": ridge,
    "logistic": logistic,
    "quadratic": partial(make.random_quadratic, AGENTS, 300, convexity=0.01),
    **{name: suite.PROBLEMS[name].make for name in ("quadratic-rotated-1e2", "logistic-cancer")},
}


def forms(L: float, agents: int) -> list[Form]:
    """Return FedPD in several forms, for problems with this L."""
    solve = oracles.lbfgs(tolerance=1e-2, iterations=40)

    def fedpd(scale: float) -> Algorithm:
        return algorithms.fedpd(eta=scale / L, oracle=solve)

    few = [top(0.1), bits(4)]
    return [
        Form("FedPD, float64", fedpd, (3, 10, 30), {}),
        Form("FedPD, 8 bits", fedpd, (10, 30), {"up": bits(8)}),
        Form("FedPD, 2 bits", fedpd, (10, 30), {"up": bits(2)}),
        Form("FedPD, top 10 %", fedpd, (10, 30), {"up": top(0.1)}),
        Form("FedPD, top 10 %, 4 bits", fedpd, (10, 30), {"up": few}),
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
        *rivals(L, agents),
    ]


def rivals(L: float, agents: int) -> list[Form]:
    """Return one form of FedPD, and methods of others that compress, for problems with this L."""
    solve = oracles.lbfgs(tolerance=1e-2, iterations=40)
    few, signs = [top(0.1), bits(4)], [top(0.2), transforms.sign()]
    omega = 9.0  # of `some`: k = d/10; that of 8 bits is far below 1
    some = [transforms.random_k(0.1, unbiased=True), bits(8, unbiased=True)]

    def fedpd(scale: float) -> Algorithm:
        return algorithms.fedpd(eta=scale / L, oracle=solve)

    def descent(scale: float) -> Algorithm:
        return algorithms.gradient_descent(step=scale / L)

    def scaffold(scale: float) -> Algorithm:
        return algorithms.scaffold(step=scale / (8 * L), iterations=8)

    def scafcom(scale: float) -> Algorithm:
        return algorithms.scafcom(step=scale / (8 * L), iterations=8)

    def scallion(scale: float) -> Algorithm:
        return algorithms.scallion(step=scale / (8 * L), iterations=8, alpha=1 / (1 + omega))

    def locodl(scale: float, p: float) -> Algorithm:
        return algorithms.locodl(step=scale / L, p=p, omega=omega, rho=1 / (1 + omega / agents))

    def tamuna(scale: float) -> Algorithm:
        return algorithms.tamuna(step=scale / L, p=0.9, agents=agents, copies=2)

    return [
        Form("FedPD, top 20 %, signs", fedpd, (1, 3, 10, 30), {"up": signs}),
        Form("EF21 (gradient descent), top 10 %, 4 bits", descent, (0.3, 1), {"up": few}, 4 * MOST),
        Form("SCAFFOLD, top 10 %, 4 bits", scaffold, (0.3, 1), {"up": few}, 4 * MOST),
        Form("SCAFCOM, top 10 %, 4 bits", scafcom, (0.3, 1), {"up": few}, 4 * MOST),
        Form("SCALLION, random 10 %, 8 bits", scallion, (0.3, 1), {"up": some}, 4 * MOST),
        Form("LoCoDL p=0.8, random 10 %, 8 bits", partial(locodl, p=0.8), (1,), {"up": some}, 20 * MOST),
        Form("LoCoDL p=0.95, random 10 %, 8 bits", partial(locodl, p=0.95), (1,), {"up": some}, 40 * MOST),
        Form("TAMUNA p=0.9, 2 copies", tamuna, (1,), {}, 10 * MOST),
    ]


def measure(form: Form, problem: Problem, L: float) -> tuple[float, float, int, float] | None:
    """Return (bytes up, bytes down, communications, step) of the best step size; None: none reached the target."""
    found = []
    for scale in form.steps:
        plain = form.make(scale)
        algorithm = transforms.wrap(plain, **form.ways) if form.ways else plain
        target = TARGET * start_of(problem)
        every = max(form.rounds // MOST, 1)
        history = simulate(
            algorithm, problem, rounds=form.rounds, until={"stationarity": target}, metrics_every=every, progress=False
        ).history
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
    chosen = rivals if "--rivals" in sys.argv else forms
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(PROBLEMS)
    for name in names:
        problem = PROBLEMS[name]()
        L = problem.answer.smoothness
        assert L is not None
        print(f"\n{name}, d = {problem.dimension:,}, {problem.agents} agents\n", flush=True)
        print("| method | communications | kB sent per agent | kB received | times fewer bytes sent | step, 1/L |")
        print("|---|---|---|---|---|---|", flush=True)
        usual = np.nan
        for form in chosen(L, problem.agents):
            row = measure(form, problem, L)
            if row is None:
                print(f"| {form.label} | not in {form.rounds} rounds | | | | |", flush=True)
                continue
            usual = row[0] if form.label == "FedPD, float64" else usual
            print(
                f"| {form.label} | {row[2]} | {row[0] / 1e3:.2f} | {row[1] / 1e3:.2f} | {usual / row[0]:.1f} | "
                f"{row[3]:g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
