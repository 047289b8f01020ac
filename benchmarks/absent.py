"""Measure FedPD-M where agents are absent: communications to 1e-10 of the start's ||grad f||^2.

    python -m benchmarks.absent [problem ...]       needs scikit-learn, for its data

Prints a Markdown table: Algorithm 2 at eta = 1/L with the mean of all agents' duals, then eta="auto" with M = 0 and 20,
all with L-BFGS. Each number is the median over three draws of who is present; "-" where that is above 300.
"""

import sys
from collections.abc import Callable

import numpy as np

from benchmarks.ablation import suite
from fedpd import Algorithm, Problem, algorithms, oracles, simulate, theory
from fedpd.search.sweep import first_below

ROUNDS, PRECISION, SEEDS = 300, 1e-10, [0, 1, 2]
PROBLEMS = ("condition 100", "one 100x steeper", "ridge, diabetes")
SHARES = {"90 %": 0.9, "50 %": 0.5, "25 %": 0.25}  # below a fifth nothing is mixed

Make = Callable[[Problem], Algorithm]


def plain(problem: Problem) -> Algorithm:
    return algorithms.fedpd(eta=1 / float(theory.smoothness(problem)), oracle=oracles.lbfgs())


def with_memory(memory: int) -> Make:
    return lambda problem: algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=memory)


METHODS: dict[str, Make] = {
    "Algorithm 2, 1/L": plain,
    "eta auto, M = 0": with_memory(0),
    "M = 20": with_memory(20),
}


def cell(algorithm: Algorithm, problem: Problem, share: float) -> str:
    """Return the median of the communications over the seeds."""
    runs = simulate(algorithm, problem, rounds=ROUNDS, participation=share, seed=SEEDS, progress=False).runs
    found = [first_below(run, PRECISION * run.history["stationarity"][0], "communications") for run in runs]
    middle = np.median(np.nan_to_num(found, nan=np.inf))
    return f"{middle:.0f}" if np.isfinite(middle) else "-"


def main(names: list[str]) -> None:
    made = suite()
    print("| problem | present | " + " | ".join(METHODS) + " |\n|---|---" + "|---" * len(METHODS) + "|")
    for name in names or PROBLEMS:
        problem = made[name]()
        for label, share in SHARES.items():
            cells = [cell(make(problem), problem, share) for make in METHODS.values()]
            print(f"| {name} | {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
