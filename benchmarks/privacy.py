"""Compare methods with client-level differential privacy at equal epsilon.

    python -m benchmarks.privacy [paper] [network]       needs fedpd[privacy]

Prints a Markdown table. Every method may choose its clipping norm, its step size and its number of rounds, by the mean
loss of five seeds. This choice looks at the data and is not private, for no method.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd import Algorithm, Problem, algorithms, data, oracles, problems, simulate, transforms
from fedpd.algorithms.fedpd import FedPD

DELTA, Q, SEEDS, ROUNDS = 1e-3, 8, [0, 1, 2, 3, 4], (4, 12, 40)
EPSILON = 4.0


class Task(NamedTuple):
    """A problem, and the grid of every method: step sizes in units of 1/L, and clipping norms."""

    problem: Problem
    smoothness: float
    steps: tuple[float, ...]
    clips: tuple[float, ...]


def paper() -> Task:
    """Return the paper's logistic regression on its strongly heterogeneous data: 100 agents, 20 parameters."""
    return Task(problems.penalized_logistic(*data.strongly_noniid()), 0.6, (0.3, 1.0), (0.003, 0.01, 0.03, 0.1))


def network() -> Task:
    """Return a network with one hidden layer on 200 agents, each with samples of two of four classes."""
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(4, 8)), np.stack([rng.choice(4, 2, replace=False) for _ in range(200)])
    chosen = np.take_along_axis(labels, rng.integers(0, 2, (200, 20)), axis=1)
    features = centres[chosen] + rng.normal(size=(200, 20, 8))
    start = {"in": rng.normal(size=(8, 8)) / 3, "out": rng.normal(size=(8, 4)) / 3}

    def losses(model: Any, batch: Any) -> jax.Array:
        scores = jnp.tanh(batch["x"] @ model["in"]) @ model["out"]
        return -jax.nn.log_softmax(scores)[jnp.arange(len(batch["y"])), batch["y"]]

    samples = {"x": features.astype(np.float32), "y": chosen.astype(np.int32)}
    first = jax.tree.map(lambda leaf: leaf.astype(np.float32), start)
    return Task(problems.from_losses(losses, samples, first, name="network"), 1.0, (0.1, 0.3, 1.0), (0.1, 0.3, 1.0))


def fedpd(step: float, L: float) -> Algorithm:
    """Return FedPD with eta = 10 step/L and safe local steps."""
    eta = 10 * step / L
    return algorithms.fedpd(eta=eta, oracle=oracles.gd(step=1 / (L + 1 / eta), iterations=Q), start="server")


class ClippedOutside(FedPD):
    """FedPD as Algorithm 2 sends it, with agents that do not know that their message was clipped."""

    def with_message(self, agent: Any, message: Any) -> Any:
        return agent

    def partial(self) -> Algorithm:
        return self


def clipped_outside(step: float, L: float) -> Algorithm:
    """Return FedPD that is clipped from outside, with eta and local steps as in `fedpd`."""
    eta = 10 * step / L
    oracle = oracles.gd(step=1 / (L + 1 / eta), iterations=Q)
    return ClippedOutside(eta=eta, oracle=oracle, p=0.0, start="server")


METHODS: dict[str, Callable[[float, float], Algorithm]] = {
    "FedPD, clipped before the dual": fedpd,
    "FedPD, clipped from outside": clipped_outside,
    "DP-FedAvg": lambda step, L: algorithms.fedavg(oracle=oracles.gd(step=step / L, iterations=Q)),
    "DP-SCAFFOLD": lambda step, L: algorithms.scaffold(step=step / L, iterations=Q),
}


class Outcome(NamedTuple):
    """The mean loss of a setting at the end, and the setting."""

    loss: float
    epsilon: float
    rounds: int
    clip: float
    step: float


def outcomes(task: Task, make: Callable[[float, float], Algorithm]) -> Iterator[Outcome]:
    """Yield the outcome of every setting of a method."""
    for rounds, clip, step in itertools.product(ROUNDS, task.clips, task.steps):
        rule = transforms.gaussian(clip, epsilon=EPSILON, delta=DELTA)
        method = transforms.wrap(make(step, task.smoothness), up=rule)
        runs = simulate(method, task.problem, rounds=rounds, metrics_every=rounds, seed=SEEDS, progress=False).runs
        loss = float(np.mean([run.history["loss"][-1] for run in runs]))
        yield Outcome(loss, float(runs[0].history["epsilon"][-1]), rounds, clip, step)


def without_privacy(task: Task) -> tuple[float, float]:
    """Return the loss at the start, and that of FedPD without clipping and noise after 300 rounds."""
    found = [
        simulate(fedpd(step, task.smoothness), task.problem, rounds=300, metrics_every=300, progress=False).history[
            "loss"
        ]
        for step in task.steps
    ]
    return float(found[0][0]), min(float(loss[-1]) for loss in found)


def main(names: list[str]) -> None:
    print("| problem | method | loss | ε | rounds | clip | step · L |\n|---|---|---|---|---|---|---|", flush=True)
    for name in names or ("paper", "network"):
        began, task = time.process_time(), {"paper": paper, "network": network}[name]()
        for label, make in METHODS.items():
            best = min(outcomes(task, make), key=lambda one: one.loss if np.isfinite(one.loss) else np.inf)
            cells = f"{best.loss:.5f} | {best.epsilon:.3f} | {best.rounds} | {best.clip:g} | {best.step:g}"
            print(f"| {name} | {label} | {cells} |", flush=True)
        note = "start {:.5f}, FedPD without privacy {:.5f}".format(*without_privacy(task))
        print(f"{name}: {note}; {time.process_time() - began:.0f} s of processor time", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
