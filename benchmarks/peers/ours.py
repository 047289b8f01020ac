"""Run a task with fedpd itself."""

import time
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedpd
from benchmarks.peers.task import ALPHA, BETA, Outcome, Task
from fedpd import algorithms, data, networks, oracles, problems

REPETITIONS = 3  # of the whole run, after one that compiles


def play(task: Task) -> Outcome:
    method, problem = method_of(task), problem_of(task)
    fedpd.simulate(method, problem, rounds=task.rounds, metrics_every=task.rounds, progress=False)
    timed = [paces(method, problem, task.rounds) for _ in range(REPETITIONS)]
    return Outcome(float(np.median(np.concatenate([seconds for seconds, _ in timed]))), timed[-1][1])


def problem_of(task: Task) -> fedpd.Problem:
    if task.kind == "linear":
        return problems.penalized_logistic(task.x, task.y, ALPHA, BETA)
    agents = {f"agent {i}": {"x": x, "y": y} for i, (x, y) in enumerate(zip(task.x, task.y, strict=True))}
    return problems.network(networks.SmallCNN(task.classes), data.from_arrays(agents, classes=task.classes))


def method_of(task: Task) -> fedpd.Algorithm:
    agents, samples = task.y.shape
    order = np.tile(np.arange(samples, dtype=np.int32), (agents, 1))

    def in_order(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
        return jnp.asarray(order)[agent].reshape(shape)

    return algorithms.fedavg(oracle=oracles.sgd(task.step, task.steps, task.batch, draw=in_order))


def paces(method: fedpd.Algorithm, problem: fedpd.Problem, rounds: int) -> tuple[list[float], float]:
    """Return seconds per round between any two reports of the engine, and the last loss.

    The engine reports after the first round, and then every few rounds. It computes metrics once, before the last
    report, so the median over reports excludes them.
    """
    marks: list[tuple[float, float]] = []

    def note(done: float, total: int, stationarity: float) -> None:
        marks.append((done, time.perf_counter()))

    run = fedpd.simulate(method, problem, rounds=rounds, metrics_every=rounds, progress=note)
    seconds = [(ended - began) / (done - before) for (before, began), (done, ended) in pairwise(marks)]
    return seconds, float(run.history["loss"][-1])
