"""Run a task with fedpd itself."""

import time
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

import fedpd
from benchmarks.peers import models
from benchmarks.peers.task import ALPHA, BETA, Outcome, Task
from fedpd import algorithms, data, networks, oracles, problems

REPETITIONS = 3  # of the whole run, after one that compiles


def play(task: Task) -> Outcome:
    method, problem = method_of(task), problem_of(task)
    agents, cohort = len(task.sizes), task.cohorts.shape[1]
    options: dict[str, Any] = {"rounds": task.rounds, "metrics_every": task.rounds}
    if cohort < agents:  # the agents of `task.cohorts`, since the seed is 0; `final_loss` measures, not the engine
        options |= {"cohort": cohort, "metrics_agents": 1}
    fedpd.simulate(method, problem, progress=False, **options)
    timed = [paces(method, problem, options) for _ in range(REPETITIONS)]
    seconds = float(np.median(np.concatenate([seconds for seconds, _ in timed])))
    return Outcome(seconds, final_loss(problem, timed[-1][1], task))


def problem_of(task: Task) -> fedpd.Problem:
    agents, size = len(task.sizes), int(task.sizes.max())
    if task.kind == "linear":
        features, labels = task.x.reshape(agents, size, -1), task.y.reshape(agents, size)
        return problems.penalized_logistic(features, labels, ALPHA, BETA)
    module = module_of(task)

    def losses(model: Any, batch: Any) -> Any:
        scores = module.apply({"params": model}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"])

    start: dict[str, dict[str, np.ndarray]] = {}
    for name, array in task.start.items():
        layer, part = name.split("/")
        start.setdefault(layer, {})[part] = array
    rows = {"x": task.x, "y": task.y}
    if (task.sizes < size).any():
        return problems.from_losses(losses, data.ragged(rows, task.sizes), start)
    stacked = {name: array.reshape(agents, size, *array.shape[1:]) for name, array in rows.items()}
    return problems.from_losses(losses, stacked, start)


def module_of(task: Task) -> linen.Module:
    if task.kind == "tags":
        return models.Tags(task.classes, *task.start["Embed_0/embedding"].shape)
    kinds = {"cnn": networks.SmallCNN, "softmax": models.Softmax, "cifar": models.Cifar}
    return kinds[task.kind](task.classes)


def method_of(task: Task) -> fedpd.Algorithm:
    def in_order(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
        return (jnp.arange(task.steps * task.batch, dtype=jnp.int32) % size).reshape(shape)

    return algorithms.fedavg(oracle=oracles.sgd(task.step, task.steps, task.batch, draw=in_order))


def paces(method: fedpd.Algorithm, problem: fedpd.Problem, options: dict[str, Any]) -> tuple[list[float], fedpd.Run]:
    """Return seconds per round between any two reports of the engine, and the run.

    The engine reports after the first round, and then every few rounds. It computes metrics once, before the last
    report, so the median over reports excludes them.
    """
    marks: list[tuple[float, float]] = []

    def note(done: float, total: int, stationarity: float) -> None:
        marks.append((done, time.perf_counter()))

    run = fedpd.simulate(method, problem, progress=note, **options)
    return [(ended - began) / (done - before) for (before, began), (done, ended) in pairwise(marks)], run


def final_loss(problem: fedpd.Problem, run: fedpd.Run, task: Task) -> float:
    if task.kind == "linear":  # the problem keeps the products of features and labels only
        return float(run.history["loss"][-1])
    (x, y), losses = task.last_samples(), jax.jit(problem.losses)
    parts = [losses(run.model, {"x": x[i : i + 100], "y": y[i : i + 100]}) for i in range(0, len(x), 100)]
    return float(np.mean(np.concatenate(parts)))
