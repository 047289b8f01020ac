"""Measure the memory of a problem of a million agents with 1 to 5,000 samples each, and rounds of 50 of them.

Run it with `python -m benchmarks.million [agents]`. It compares the memory with that of the samples alone, and with
that of data padded to the largest agent.
"""

import resource
import sys
import time
import tracemalloc

import numpy as np

from fedpd import algorithms, data, oracles, problems, simulate
from fedpd.core import Problem
from fedpd.engine.simulate import RunOptions

LARGEST, FEATURES, ROUNDS = 5_000, 4, 200


def power_law(agents: int, seed: int = 0) -> np.ndarray:
    """Return (agents,) sizes from 1 to 5,000, P(size >= n) proportional to 1/n."""
    draws = np.random.default_rng(seed).uniform(1 / LARGEST, 1, agents)
    return np.minimum(1 / draws, LARGEST).astype(np.int32)


def per_round(problem: Problem) -> float:
    """Return the seconds per round of 50 agents, without compilation: of the second of two runs."""
    method = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=4, batch=4))
    options: RunOptions = {"cohort": 50, "metrics_agents": 1_000, "metrics_every": ROUNDS, "devices": 1}
    for _ in range(2):
        begin = time.perf_counter()
        simulate(method, problem, rounds=ROUNDS, **options)
        seconds = time.perf_counter() - begin
    return seconds / ROUNDS


def main(agents: int) -> None:
    """Print the sizes, the seconds and the bytes."""
    sizes = power_law(agents)
    number = int(sizes.sum())
    rng = np.random.default_rng(1)
    rows = {"x": rng.standard_normal((number, FEATURES), np.float32), "y": rng.integers(0, 2, number, np.int32)}
    held = sum(leaf.nbytes for leaf in rows.values())
    tracemalloc.start()
    begin = time.perf_counter()
    federated = data.from_rows(data.ragged(rows, sizes), classes=2)
    problem = problems.softmax_regression(federated, l2=0.1)
    seconds = time.perf_counter() - begin
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    padded = held // number * agents * int(sizes.max())
    print(problem)
    print(f"samples            {held / 1e6:,.0f} MB")
    print(f"beside the samples {now / 1e6:,.0f} MB, at most {peak / 1e6:,.0f} MB while it builds")
    print(f"padded data        {padded / 1e6:,.0f} MB")
    print(f"time to build      {seconds:.1f} s")
    print(f"a round of 50      {per_round(problem) * 1e3:.2f} ms, samples in memory")
    held_rows = data.ragged(rows, sizes)
    lazy = data.from_rows(data.lazy(held_rows.__getitem__, sizes), classes=2)
    print(f"a round of 50      {per_round(problems.softmax_regression(lazy, l2=0.1)) * 1e3:.2f} ms, samples loaded")
    print(f"process, at most   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
