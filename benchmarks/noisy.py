"""Measure FedPD-M with oracles that take batches: the stationarity after equal rounds, without and with a memory.

    python -m benchmarks.noisy [problem ...]       needs scikit-learn, for its data

Prints a Markdown table. A cell has ||grad f||^2 in units of the start's after 10, 20, 40 and 80 rounds: the geometric
mean over three seeds and the last five rounds. The cells of M = 2 and 5 are ratios to it.
"""

import sys
from collections.abc import Callable

import numpy as np

from benchmarks.ablation import suite
from fedpd import Oracle, Problem, algorithms, oracles, simulate, theory
from fedpd.algorithms._memory import with_memory
from fedpd.algorithms._mixing import Rules

ROUNDS, SEEDS, MEMORIES = (10, 20, 40, 80), [0, 1, 2], (0, 2, 5)
NOISY = Rules(longest=1.0, bend=0.0, falling=1.0)  # the least harmful of those tried; `fedpd` refuses batches
PROBLEMS = ("strongly non-iid", "ridge, diabetes", "softmax, wine")
ORACLES: dict[str, Callable[[float], Oracle]] = {
    "SGD, Q = 50, step 0.02/L, batch 8": lambda L: oracles.sgd(0.02 / L, 50, batch=8),
    "SGD, Q = 20, step 0.1/L, batch 8": lambda L: oracles.sgd(0.1 / L, 20, batch=8),
    "VR, Q = 20, gamma = 0.1/L, batch 8": lambda L: oracles.vr(0.1 / L, 20, 5, batch=8),
}


def curve(problem: Problem, L: float, oracle: Oracle, memory: int) -> np.ndarray:
    """Return the mean of log(stationarity / the start's) at each of ROUNDS."""
    plain = algorithms.fedpd(eta=1 / L, oracle=oracle)
    algorithm = with_memory(1 / L, oracle, memory, rules=NOISY) if memory else plain
    runs = simulate(algorithm, problem, rounds=ROUNDS[-1] + 1, seed=SEEDS, progress=False).runs
    logs = np.mean([np.log(run.history["stationarity"] / run.history["stationarity"][0]) for run in runs], axis=0)
    return np.array([logs[r - 4 : r + 1].mean() for r in ROUNDS])


def main(names: list[str]) -> None:
    made = suite()
    print("| problem | oracle | no memory | M = 2, ratio | M = 5, ratio |\n|---|---|---|---|---|")
    for name in names or PROBLEMS:
        problem = made[name]()
        L = float(theory.smoothness(problem))
        for label, make in ORACLES.items():
            plain, *mixed = (curve(problem, L, make(L), memory) for memory in MEMORIES)
            cells = [", ".join(f"{x:.0e}" for x in np.exp(plain))]
            cells += [", ".join(f"{x:.2f}" for x in np.exp(one - plain)) for one in mixed]
            print(f"| {name} | {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
