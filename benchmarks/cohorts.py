"""Time rounds of 50 agents out of a thousand and out of a million, and measure the memory beyond the data.

Each agent has 20 samples of 20 features and does 10 steps of stochastic gradient descent on 5 samples. To run it alone:
`python -m benchmarks.cohorts`.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedpd import Algorithm, Problem, Run, algorithms, oracles, problems, simulate

FEW, MANY, COHORT = 1000, 1_000_000, 50
SAMPLES, FEATURES = 20, 20
ROUNDS, REPETITIONS = 2000, 5
MOST_TIME, MOST_STATE, MOST_MEMORY = 1.3, 1.2, 300  # the goals: ratio of times; times the state, plus MB
ALIGNMENT = 64  # bytes; JAX uses NumPy arrays that are aligned like this without a copy


class Measured(NamedTuple):
    """The results for one method.

    Attributes:
        method: Its label.
        few: Seconds per round with FEW agents, one value per repetition.
        many: Seconds per round with MANY agents.
        seen: The agents that were present at least once in a run with MANY agents.
        state: Megabytes of what is kept of them.
        memory: Megabytes beyond the data, at most, in the first run with MANY agents.
    """

    method: str
    few: list[float]
    many: list[float]
    seen: int
    state: float
    memory: float

    @property
    def ratio(self) -> float:
        """The median time of a round with MANY agents over that with FEW."""
        return float(np.median(self.many) / np.median(self.few))


def measure() -> list[Measured]:
    """Return the results for FedAvg, and for FedPD, which keeps two vectors per agent."""
    sgd = oracles.sgd(0.05, 10, batch=5)
    methods = {"FedAvg": algorithms.fedavg(oracle=sgd), "FedPD": algorithms.fedpd(eta=0.2, oracle=sgd)}
    few, many = make_problem(FEW), make_problem(MANY)
    return [_measure(name, method, few, many) for name, method in methods.items()]


def make_problem(agents: int) -> Problem:
    """Return a logistic regression with this number of agents."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal((SAMPLES, FEATURES), np.float32)
    small = problems.penalized_logistic([one] * 2, [np.sign(one[:, 0])] * 2)
    number = agents * SAMPLES * FEATURES
    place = np.empty(4 * number + ALIGNMENT, np.uint8)
    first = -place.ctypes.data % ALIGNMENT
    data = place[first : first + 4 * number].view(np.float32).reshape(agents, SAMPLES, FEATURES)
    rng.standard_normal(out=data, dtype=np.float32)
    return replace(small, data=data, sizes=np.full(agents, SAMPLES), scale=np.ones(agents))


def _measure(name: str, method: Algorithm, few: Problem, many: Problem) -> Measured:
    before = _memory("VmRSS")
    run = _play(method, many)
    memory = _memory("VmHWM") - before
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(run.agents.state)) / 2**20
    times: dict[int, list[float]] = {few.agents: [], many.agents: []}
    _play(method, few)
    for _ in range(REPETITIONS):
        for problem in (few, many):
            times[problem.agents].append(_seconds(_play(method, problem)))
    return Measured(name, times[few.agents], times[many.agents], len(run.agents.agent), state, memory)


def _play(method: Algorithm, problem: Problem) -> Run:
    every = ROUNDS // 4
    return simulate(
        method,
        problem,
        rounds=ROUNDS,
        cohort=COHORT,
        metrics_every=every,
        metrics_agents=100,
        progress=False,
        devices=1,
    )


def _seconds(run: Run) -> float:
    """Return the seconds per round after the first quarter of the rounds."""
    return float((run.elapsed[-1] - run.elapsed[1]) / (run.history["round"][-1] - run.history["round"][1]))


def _memory(name: str) -> float:
    """Return a size of this process in megabytes: VmRSS, the present one, or VmHWM, the largest so far (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def main() -> None:
    for one in measure():
        few, many = (1e3 * np.median(times) for times in (one.few, one.many))
        print(
            f"{one.method}: {few:.2f} ms per round with {FEW} agents, {many:.2f} ms with {MANY}, ratio {one.ratio:.2f} "
            f"(at most {MOST_TIME}); {one.seen} agents seen, {one.state:.0f} MB of state, {one.memory:.0f} MB beyond "
            f"the data (at most {MOST_STATE * one.state + MOST_MEMORY:.0f})"
        )


if __name__ == "__main__":
    main()
