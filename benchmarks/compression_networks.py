"""Measure the bytes that methods send on handwritten characters until they reach FedAvg's final accuracy.

    python -m benchmarks.compression_networks characters.parquet [agents]

The file has the columns writer, image, label and split, as for `fedpd reproduce --data`. FedAvg runs 40 rounds in
float32; the others stop when they reach its final test accuracy. Bytes are those that one agent sends.
"""

import sys
import warnings
from typing import Any

import numpy as np

from fedpd import Algorithm, Problem, algorithms, oracles, simulate, transforms
from fedpd.experiments.calls import build_problem

ROUNDS, MOST, EVERY = 40, 80, 2
SGD = oracles.sgd(step=0.05, iterations=30, batch=10)


def problem(path: str, agents: int) -> Problem:
    """Return a network with 64 hidden units on the characters of the first writers."""
    columns = {"client": "writer", "features": "image", "label": "label", "split": "split", "classes": 62}
    data: dict[str, Any] = {"name": "parquet", "path": path, **columns}
    model = {"name": "MLP", "classes": 62, "hidden": [64]}
    return build_problem({"name": "network", "model": model, "agents": 100, "data": data}).subset(np.arange(agents))


def methods() -> dict[str, Algorithm]:
    """Return the methods to compare with FedAvg."""
    fedavg, fedpd = algorithms.fedavg(oracle=SGD), algorithms.fedpd(eta=1.0, oracle=SGD)
    few, signs = [transforms.top_k(0.05), transforms.quantize(4)], [transforms.top_k(0.1), transforms.sign()]
    return {
        "FedAvg, top 5 %, 4 bits": transforms.wrap(fedavg, up=few),
        "FedPD, float32": fedpd,
        "FedPD, top 5 %, 4 bits": transforms.wrap(fedpd, up=few),
        "FedPD, top 10 %, signs": transforms.wrap(fedpd, up=signs),
    }


def main(path: str, agents: int) -> None:
    """Print a table with one row per method."""
    warnings.simplefilter("ignore")
    made = problem(path, agents)
    options: dict[str, Any] = {"metrics_every": EVERY, "progress": False}
    usual = simulate(algorithms.fedavg(oracle=SGD), made, rounds=ROUNDS, **options).history
    goal, sent = float(usual["test_accuracy"][-1]), float(usual["bytes_up"][-1]) / made.agents
    print(f"{made.agents} agents, {made.samples:,} samples, {made.dimension:,} parameters; goal {goal:.3f}\n")
    print("| method | communications | kB sent per agent | test accuracy | times fewer bytes |\n|---|---|---|---|---|")
    print(f"| FedAvg, float32 | {ROUNDS} | {sent / 1e3:.0f} | {goal:.3f} | 1 |", flush=True)
    for name, algorithm in methods().items():
        history = simulate(algorithm, made, rounds=MOST, until={"test_accuracy": goal}, **options).history
        own, reached = float(history["bytes_up"][-1]) / made.agents, float(history["test_accuracy"][-1])
        times = f"{sent / own:.1f}" if reached >= goal else "not reached"
        rounds = int(history["communications"][-1])
        print(f"| {name} | {rounds} | {own / 1e3:.0f} | {reached:.3f} | {times} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30)
