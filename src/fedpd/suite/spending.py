"""Count the costs of a run until it reaches the target: communications, vectors, bytes and gradients.

A vector is a message of the size of the model: a `tree_math.Vector` with the model's arrays. The numbers that travel
beside it, such as a value for a line search or the products that FedPD-M mixes by, count as bytes only.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.precision import scope
from fedpd.core import Method, Problem, Tree
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.engine.measure.costs import costs_of, exchanged_messages
from fedpd.engine.measure.history import History, first_row
from fedpd.suite.problems import known_answers

TARGET = 1e-10  # of the start's ||grad f||^2
COSTS = {
    "communications": "communications",
    "vectors": "vectors sent and received per agent",
    "bytes": "bytes sent and received per agent",
    "gradients": "gradients of all samples",
}


class Spent(NamedTuple):
    """The costs of a run, in the order of COSTS; infinite if it never reached the target."""

    communications: float = math.inf
    vectors: float = math.inf
    bytes: float = math.inf
    gradients: float = math.inf


class Vectors(NamedTuple):
    """How many vectors there are in a byte that agents send, and in one that they receive."""

    up: float
    down: float


def vectors_per_byte(algorithm: Method, problem: Problem) -> Vectors:
    """Return the share of vectors in a method's messages, from their shapes.

    All exchanges of a round are taken together: with all agents present, either all of them happen or none.
    """
    functions = Functions.of(problem)
    with scope(problem.double):
        one = jax.tree.map(lambda leaf: leaf[0], arrays(problem))
        start = Vector(problem.start)
        agent = jax.eval_shape(lambda one: algorithm.init(local_objective(functions, one), start), one)
        server = jax.eval_shape(lambda: algorithm.server(start))
        messages = exchanged_messages(algorithm, partial(local_objective, functions), one, agent, server)
    up, down = (sum(_vectors(pair[way], problem.start) for pair in messages) for way in (0, 1))
    costs = costs_of(messages)
    return Vectors(up / sum(costs.bytes_up), down / sum(costs.bytes_down))


def _vectors(message: Tree, model: Tree) -> int:
    """Return the number of vectors in a message that have the arrays of the model."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(model)]
    parts: list[Any] = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Vector))
    found = [part for part in parts if isinstance(part, Vector)]
    return sum([leaf.shape for leaf in jax.tree.leaves(part)] == shapes for part in found)


def relative_stationarity(history: History, start: float) -> np.ndarray:
    """Return (rows,) ||grad f||^2 relative to the start's, where the server holds the model; else infinite.

    In a round without a communication, nobody holds the mean of the agents' models at which f is measured.
    """
    relative = history["stationarity"] / start
    held = history["communicated"] | (history["round"] == 0)
    return np.where(held & np.isfinite(relative), relative, math.inf)


def is_low(history: History, problem: Problem) -> np.ndarray:
    """Return (rows,) whether f is at least half-way from the start to the known minimum.

    A stationary point above it is no solution: a huge step may end at once in a saddle point, such as 0 of a network,
    where all its units are dead.

    Args:
        problem: The problem. If its minimum is not known, f must not be above the start's.
    """
    first, facts = history["loss"][0], known_answers().get(problem.name)
    return history["loss"] <= (first if facts is None else (first + facts.value) / 2)


def spent_at(history: History, row: int, vectors: Vectors, problem: Problem) -> Spent:
    """Return what a run has spent at a row of its history."""
    up, down = int(history["bytes_up"][row]), int(history["bytes_down"][row])
    sent = (vectors.up * up + vectors.down * down) / problem.agents
    gradients = history["samples"][row] / problem.samples
    return Spent(float(history["communications"][row]), round(sent, 6), (up + down) / problem.agents, float(gradients))


def spent_until_target(history: History, start: float, vectors: Vectors, problem: Problem) -> Spent:
    """Return what a run spent until it reached the target; infinite numbers if it did not."""
    relative = np.where(is_low(history, problem), relative_stationarity(history, start), math.inf)
    row = first_row(relative, TARGET)
    return Spent() if row is None else spent_at(history, row, vectors, problem)
