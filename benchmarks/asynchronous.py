"""Measure the simulated time of synchronous and asynchronous methods until ||grad f||^2 <= 1e-10.

    python -m benchmarks.asynchronous

Prints a Markdown table: heterogeneous quadratics of 20 agents, on networks whose agents differ more and more in speed.
The time of a local step is log-normal over the agents, with a median of 20 ms; a round has 8 steps. A number is the
median of the simulated minutes over three networks. "floor" is the lowest ||grad f||^2 of a method that did not reach
the target within 20 times the rounds of synchronous FedPD, each round counted as N messages.
"""

import numpy as np

from fedpd import Algorithm, Problem, Run, algorithms, clock, oracles, problems, simulate
from fedpd.clock import Clock
from fedpd.search.sweep import first_below

AGENTS, DIMENSION, Q, ROUNDS, TARGET = 20, 10, 8, 120, 1e-10
SIGMAS = (0.0, 0.5, 1.0, 1.5)
SEEDS = (0, 1, 2)
Method = tuple[Algorithm, int | None]  # with the buffer; None: synchronous


def methods(L: float) -> dict[str, Method]:
    """Return the methods; L is the smoothness of the f_i."""
    eta = 1 / L
    gd = oracles.gd(step=1 / (L + 1 / eta), iterations=Q)
    local = oracles.gd(step=1 / (4 * L), iterations=Q)
    fedpd, fedbuff = algorithms.fedpd(eta=eta, oracle=gd), algorithms.fedbuff(oracle=local, staleness=0.5)
    return {
        "FedPD, synchronous": (fedpd, None),
        "FedPD, K = 10": (fedpd, 10),
        "FedPD, K = 4": (fedpd, 4),
        "FedPD, K = 1": (fedpd, 1),
        "FedAvg, synchronous": (algorithms.fedavg(oracle=local), None),
        "FedBuff, K = 4": (fedbuff, 4),
    }


def network(sigma: float, seed: int) -> Clock:
    speed = clock.log_normal("20 ms", sigma)
    return clock.network(up="3 Mbit/s", down="10 Mbit/s", latency="50 ms", compute=speed, seed=seed)


def play(method: Method, problem: Problem, on: Clock) -> Run:
    algorithm, buffer = method
    rounds = 20 * ROUNDS * AGENTS // (buffer or AGENTS)
    return simulate(
        algorithm,
        problem,
        rounds=rounds,
        clock=on,
        buffer=buffer,
        until={"stationarity": TARGET},
        metrics_every=max(1, 4 // (buffer or 4)),
        progress=False,
    )


def cell(method: Method, problem: Problem, sigma: float) -> str:
    """Return the median minutes over the networks, or the floor."""
    runs = [play(method, problem, network(sigma, seed)) for seed in SEEDS[: 1 if sigma == 0 else None]]
    minutes = [first_below(run, TARGET, "network_seconds") / 60 for run in runs]
    if np.isfinite(minutes).all():
        return f"{np.median(minutes):.2f}"
    return f"floor {np.median([run.history['stationarity'].min() for run in runs]):.0e}"


def main() -> None:
    problem = problems.random_quadratic(agents=AGENTS, dimension=DIMENSION)
    assert problem.answer.smoothness is not None  # of a quadratic it is known
    print("| minutes | " + " | ".join(f"σ = {sigma:g}" for sigma in SIGMAS) + " |\n|---" + "|---:" * len(SIGMAS) + "|")
    for name, method in methods(problem.answer.smoothness).items():
        print(f"| {name} | " + " | ".join(cell(method, problem, sigma) for sigma in SIGMAS) + " |", flush=True)


if __name__ == "__main__":
    main()
