"""Times of a round with local epochs, beside as many iterations, and by execution if agents differ in size.

Run `python -m benchmarks.local_epochs`. The cases run in turn, and the least time of each counts.
"""

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpd import Oracle, Problem, algorithms, oracles, problems, simulate

AGENTS, SAMPLES, BATCH, EPOCHS, ROUNDS, REPEATS = 20, 500, 50, 5, 10, 15
LEAST, MOST = 83, 1775  # samples of an agent of a Dirichlet partition


def logistic(sizes: list[int], dimension: int) -> Problem:
    rng = np.random.default_rng(0)

    def losses(x: Any, rows: Any) -> Any:
        scores = rows["a"] @ x
        return jnp.logaddexp(0, scores) - rows["b"] * scores

    rows = [{"a": rng.normal(size=(n, dimension)), "b": rng.integers(0, 2, n)} for n in sizes]
    rows = [{name: array.astype(np.float32) for name, array in one.items()} for one in rows]
    return problems.from_losses(losses, rows, np.zeros(dimension, np.float32))


def timed(oracle: Oracle, problem: Problem, execution: Any) -> Callable[[], float]:
    """Return a function that returns the milliseconds of a round, after one run that compiles."""
    options: dict[str, Any] = {"rounds": ROUNDS, "metrics_every": ROUNDS, "execution": execution}
    method = algorithms.fedavg(oracle=oracle)
    simulate(method, problem, **options)

    def once() -> float:
        start = time.perf_counter()
        simulate(method, problem, **options)
        return (time.perf_counter() - start) / ROUNDS * 1e3

    return once


def compare(title: str, cases: dict[str, Callable[[], float]]) -> None:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, once in cases.items():
            times[name].append(once())
    print(title, ", ".join(f"{name} {min(found):.1f} ms" for name, found in times.items()))


def main() -> None:
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(LEAST), np.log(MOST), AGENTS)).astype(int)
    sizes[:2] = LEAST, MOST
    epochs = oracles.sgd(0.01, epochs=EPOCHS, batch=BATCH)
    steps = oracles.sgd(0.01, iterations=EPOCHS * SAMPLES // BATCH, batch=BATCH)
    for dimension in (20, 100, 784):
        equal, unequal = logistic([SAMPLES] * AGENTS, dimension), logistic(sizes.tolist(), dimension)
        cases = {"iterations": timed(steps, equal, "sequential"), "epochs": timed(epochs, equal, "sequential")}
        compare(f"D = {dimension}, {SAMPLES} samples:", cases)
        ways = ("sequential", "parallel", "auto")
        compare(
            f"D = {dimension}, {sizes.min()} to {sizes.max()} samples, mean {sizes.mean():.0f}:",
            {way: timed(epochs, unequal, way) for way in ways},
        )


if __name__ == "__main__":
    main()
