"""Run a method on a network problem once, and measure its newest model and the running mean of its models.

Measuring would take longer than training if every row passed over all samples. So the server keeps both models of every
measured round, and one program computes all their accuracies after the run.
"""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.precision import scope
from fedpd.core import Array, Method, Problem, Tree
from fedpd.core.agents import Functions, Shard, arrays, map_agents
from fedpd.core.rows import row_numbers
from fedpd.core.statistics import own_statistics
from fedpd.engine.average import Averaged, model_after, nobody
from fedpd.engine.simulate import simulate
from fedpd.suite.networks import Task

HELD_OUT = 0.15  # the share of validation samples
ROWS = 50  # measurements of a run, about


class Split(NamedTuple):
    """A problem with the samples that judge its models.

    Attributes:
        train: The problem without validation and test samples.
        validation: The samples of all agents that choose settings, leaves (m, ...).
        test: The samples on which results are reported.
    """

    train: Problem
    validation: Tree
    test: Tree


def split(problem: Problem) -> Split:
    """Return a problem with test samples, a share of each agent's training samples held out."""
    rest, held = problem.hold_out(HELD_OUT)
    tests = problem.evaluation
    assert tests is not None  # all tasks have test samples
    if tests.offsets is None:
        inside = np.arange(jax.tree.leaves(tests.data)[0].shape[1]) < tests.sizes[:, None]
    else:
        inside = row_numbers(tests.offsets, tests.sizes)
    # Without an L, the message about each divergence, which nobody reads, would estimate it.
    train = replace(rest, evaluation=tests._replace(data=None), answer=rest.answer._replace(smoothness=1.0))
    return Split(train, held.rows_of(np.arange(held.agents))[0], jax.tree.map(lambda leaf: leaf[inside], tests.data))


class ServerModels(NamedTuple):
    inner: Any  # the method's own server
    mean: Vector
    communications: Array
    models: Vector  # (rows, 2, ...): the newest model and the mean, or what the method delivers


class Watched(Averaged):
    """A method whose server keeps its newest model and the running mean every few rounds."""

    every: int
    rows: int

    def server(self, x: Vector) -> Any:
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.rows, 2, *leaf.shape)), x)
        return ServerModels(*super().server(x), models)

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Tree]:
        after, broadcast = super().aggregate(server, mean, share)
        newest = model_after(self.method, nobody(self.method, after.mean), broadcast)
        delivered = after.mean if self.method.delivers is None else self.method.delivers(after.inner)
        row = -(-after.communications // self.every)
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), newest, delivered)
        models = jax.tree.map(lambda leaf, one: leaf.at[row].set(one), server.models, both)
        return ServerModels(*after, models), broadcast


def curves(task: Task, method: Method, seed: int, problem: Problem, rows: Tree) -> dict[str, Any]:
    """Run a method, and return its accuracies on samples, and its costs, at the start and at each measured round.

    Returns:
        "newest" and "mean": the accuracies; 0 after the run diverged. And the columns of `COSTS`.
    """
    every = max(1, round(task.rounds / ROWS))
    number = 1 + -(-task.rounds // every)
    watched = Watched(method=method, every=every, rows=number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no theorem covers these runs, and a divergence is a result
        run = simulate(
            watched,
            replace(problem, evaluation=None),
            rounds=task.rounds,
            seed=seed,
            cohort=task.cohort,
            metrics_every=every,
            metrics_agents=1,
            progress=False,
        )
    history = run.history
    found = accuracies(problem, run.server.models, rows)
    if run.diverged is not None:
        found[-(-run.diverged.round // every) :] = 0
    missing = number - len(history["round"])
    spent = {
        "communications": history["communications"],
        "samples": history["samples"],
        "bytes": history["bytes_up"] + history["bytes_down"],
        "seconds": run.elapsed.round(3),
    }
    costs = {name: np.pad(values, (0, missing), mode="edge").tolist() for name, values in spent.items()}
    return {"newest": found[:, 0].tolist(), "mean": found[:, 1].tolist(), **costs}


def accuracies(problem: Problem, models: Vector, rows: Tree) -> np.ndarray:
    """Return the accuracies (k, 2) of models (k, 2, ...) on samples; 0 for one that is not finite."""
    with scope(problem.double):
        functions = Functions.of(problem)._replace(metrics=(), longest=0)
        shard = arrays(replace(problem, evaluation=None)) if functions.statistics else None
        return np.array(_accuracies(functions, models, rows, shard), float).round(6)


@partial(jax.jit, static_argnums=0)
def _accuracies(functions: Functions, models: Vector, rows: Tree, shard: Shard | None) -> Array:
    def of(x: Vector) -> Array:
        model = x.tree
        if shard is not None:  # batch statistics: the mean of the agents' own
            everyone = map_agents(lambda one: own_statistics(functions, one, x), shard)
            model = model, jax.tree.map(lambda leaf: leaf.mean(axis=0), everyone)
        assert functions.correct is not None  # all tasks are classifications
        return jnp.where(jnp.isfinite(x @ x), functions.correct(model, rows).mean(), 0)

    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), models)
    return jax.lax.map(of, flat).reshape(-1, 2)
