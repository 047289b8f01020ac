"""Run the tries that a tuning budget allows a method against each other, and end those that can no longer win.

A try is the method with settings from its own rule:

    0 runs    the method's own rule, from L
    8 runs    8 factors on its step sizes, 1/16 to 1024 by a factor of 4
    64 runs   16 factors, 1/256 to 4^11, times 4 tolerances of local solves (0.1 to 1e-4), numbers of local steps
              (2, 8, 32, 128) or of pairs that are remembered (5, 10, 20, 40); 64 factors, 1/256 to 2^23.5, for methods
              that have none of these

A factor is what `fedpd.tune` varies: it multiplies eta, the step, 1/rho, or the length of a first step. A method whose
rule gives the same settings for every factor has nothing to tune, and a single try. Most tries of a smaller budget are
among those of a larger one, so one race serves all budgets.

Tries that differ in real numbers, or in the steps of gradient descent, share one compiled program. They run in batches,
and a batch ends when each of its tries has ended:

    it reached the target, or diverged;
    it has spent at least as much, of every cost, as another try of each of its budgets needed in all;
    it has computed STEPS gradients of all samples per round that is allowed;
    it computes several gradients per round, and at twice the speed of the second half of its rounds so far it would not
    reach the target in the rounds that are left.

The first three change no result. The last one may end a try that becomes much faster late. It spares methods with one
gradient per round: their rounds are cheap, and some of them, such as Newton-CG, move in few of their rounds.

Costs are communications, vectors, bytes and gradients. A vector is a message of the size of the model: a
`tree_math.Vector` with the model's arrays. The numbers that travel beside it, such as a value for a line search or the
products that FedPD-M mixes by, count as bytes only.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.checks import choice
from fedpd.base.precision import scope
from fedpd.base.value import parts_of, stacked, with_counts
from fedpd.core import Method, Problem, Tree
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.core.card import Variant
from fedpd.engine.config import RunConfig
from fedpd.engine.driver import Driver
from fedpd.engine.measure.costs import costs_of, exchanged_messages
from fedpd.engine.measure.history import History, first_row
from fedpd.engine.plan import Plan
from fedpd.engine.simulate import make_plan
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
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(problem.start)]

    def vectors_in(message: Tree) -> int:
        """Return the number of vectors in a message that have the arrays of the model."""
        parts: list[Any] = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Vector))
        found = [part for part in parts if isinstance(part, Vector)]
        return sum([leaf.shape for leaf in jax.tree.leaves(part)] == shapes for part in found)

    up, down = (sum(vectors_in(pair[way]) for pair in messages) for way in (0, 1))
    costs = costs_of(messages)
    return Vectors(up / sum(costs.bytes_up), down / sum(costs.bytes_down))


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


BUDGETS = (0, 8, 64)
# The second knob is the first of these that a method has.
KNOBS = {"tolerance": (0.1, 0.01, 1e-3, 1e-4), "iterations": (2, 8, 32, 128), "memory": (5, 10, 20, 40)}


def tries_within(variant: Variant, budget: int, L: float, agents: int) -> list[Method]:
    """Return the method with each of the settings that a budget allows."""
    choice("budget", str(budget), map(str, BUDGETS))
    usual = variant.rule(L, agents, 1.0)
    leaves: dict[str, Any] = dict(usual.spec.leaves())
    numbers = {path.rpartition(".")[2]: path for path, value in leaves.items() if isinstance(value, int | float)}
    knob = next((numbers[name] for name in KNOBS if name in numbers), None)  # its name, with dots
    if budget == 0:
        tries = [usual]
    elif budget == 8:
        tries = [variant.rule(L, agents, 4.0**k) for k in range(-2, 6)]
    elif knob is None:
        tries = [variant.rule(L, agents, 2.0 ** (k / 2)) for k in range(-16, 48)]
    else:
        scaled = [variant.rule(L, agents, 4.0**k) for k in range(-4, 12)]
        values = KNOBS[knob.rpartition(".")[2]]
        tries = [one.changed({knob: value}) for value in values for one in scaled]
    return list({one.spec: one for one in tries}.values())


BATCH = 16  # tries that run at once
STEPS = 16  # gradients of all samples per round that is allowed
SEVERAL = 2  # gradients of all samples per round, below which the speed of a try does not end it
EARLIEST = 16  # rounds, before which the speed of a try does not end it

Tries = Mapping[int, Sequence[Method]]  # the tries of each budget


class RaceResult(NamedTuple):
    """The costs of a method within a budget."""

    spent: Spent = Spent()  # the least of any try until the target, for each cost
    stationarity: float = math.inf  # the smallest relative to the start's that any try reached


def race(tries: Tries, problem: Problem, smoothness: float, rounds: int) -> dict[int, RaceResult]:
    """Return the result of each budget; `smoothness` is L, which messages about divergence would compute again."""
    known = replace(problem, answer=problem.answer._replace(smoothness=smoothness))
    specs = {budget: {one.spec for one in own} for budget, own in tries.items()}
    programs: dict[Any, dict[Any, Method]] = {}  # the different tries that share a compiled program
    for one in (one for own in tries.values() for one in own):
        programs.setdefault(jax.tree.structure(with_counts(one)), {})[one.spec] = one
    found = dict.fromkeys(tries, RaceResult())
    for members in map(list, (program.values() for program in programs.values())):
        vectors = vectors_per_byte(members[0], known)
        for batch in _batches(members):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # most tries are beyond what is proved
                plan = make_plan(members[0], known, rounds, [0] * len(batch), True, RunConfig())
            plan = plan._replace(variants=stacked([with_counts(one) for one in batch]))
            budgets = [[budget for budget, allowed in specs.items() if one.spec in allowed] for one in batch]
            found = _run_batch(plan, budgets, vectors, found)
    return found


def _run_batch(
    plan: Plan, budgets: list[list[int]], vectors: Vectors, found: dict[int, RaceResult]
) -> dict[int, RaceResult]:
    """Run a batch until all its tries have ended, and return the results with those of this batch.

    Args:
        budgets: For each try, the budgets that allow it.
    """
    problem = plan.problem
    with scope(problem.double):
        driver = Driver(plan)

        def results() -> dict[int, RaceResult]:
            better = dict(found)
            for one, own in zip(driver.measurements, budgets, strict=True):
                start = one.history["stationarity"][0]
                spent = spent_until_target(one.history, start, vectors, problem)
                least = float(relative_stationarity(one.history, start).min())
                for budget in own:
                    old = better[budget]
                    better[budget] = RaceResult(Spent(*map(min, old.spent, spent)), min(old.stationarity, least))
            return better

        def has_ended(i: int, now: dict[int, RaceResult]) -> bool:
            one = driver.measurements[i]
            if one.diverged is not None:
                return True
            spent = spent_at(one.history, -1, vectors, problem)
            beaten = all(np.all(np.array(spent) >= now[budget].spent) for budget in budgets[i])
            return beaten or _may_end(one.history, spent.gradients, plan.rounds)

        def all_ended(event: Any) -> bool:
            now = results()
            return all(has_ended(i, now) for i in range(len(budgets)))

        driver.run(all_ended)
        return results()


def _may_end(history: History, gradients: float, rounds: int) -> bool:
    """Return whether a try has reached the target, has done all its work, or would not reach the target in time."""
    relative = np.minimum.accumulate(relative_stationarity(history, history["stationarity"][0]))
    done, limit = len(relative) - 1, STEPS * rounds
    if relative[-1] <= TARGET or gradients >= limit:
        return True
    if done < EARLIEST or gradients < SEVERAL * done:
        return False
    left = min(rounds - done, done * (limit / gradients - 1))
    speed = np.log(relative[done // 2] / relative[-1]) / (done - done // 2)
    return bool(2 * speed * left < np.log(relative[-1] / TARGET))


def _batches(members: list[Method]) -> Iterator[list[Method]]:
    """Yield the tries in batches of equal length, so that they share a program; the last try fills up the last ones.

    Those with equally many local steps are together, because a batch takes the time of its longest loop.
    """
    size = min(BATCH, len(members))
    together: dict[Any, list[Method]] = {}
    for one in members:
        steps = [getattr(part, "iterations", None) for part in parts_of(one)]
        together.setdefault(next(filter(None, steps), None), []).append(one)
    for own in together.values():
        for at in range(0, len(own), size):
            batch = own[at : at + size]
            yield batch + batch[-1:] * (size - len(batch))
