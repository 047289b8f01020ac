"""Which methods and oracles fit a problem: its number of agents, random layers (dropout), and batch normalisation."""

from collections.abc import Callable, Sequence

import numpy as np

from fedpd.base.checks import TheoryWarning, refuse
from fedpd.base.errors import warn
from fedpd.base.value import parts_of
from fedpd.core import Method, Oracle, Problem
from fedpd.engine.participation import Participation, participants
from fedpd.transforms._compress import RandomK, number_sent
from fedpd.transforms._means import Krum


def check_agents(algorithm: Method, agents: int, fewest: Callable[[], int]) -> None:
    """Refuse a method that does not fit the number of agents, of which at least `fewest()` send in a communication."""
    algorithm.check_agents(agents, fewest)
    for one in parts_of(algorithm):
        if isinstance(one, Krum):
            _check_krum(one, algorithm, fewest())


def check_variance(algorithm: Method, dimension: int) -> None:
    """Warn of an omega that is smaller than the variance of a method's transform, for models of d numbers."""
    parts = parts_of(algorithm)
    omegas = [one.largest_variance for one in parts if isinstance(one, Method)]
    for rule in (one for one in parts if isinstance(one, RandomK)):
        variance = dimension / number_sent(rule.share, dimension) - 1
        for omega in omegas:
            if omega is not None and omega < variance * (1 - 1e-6):
                warn(
                    f"omega = {omega:g} is below d/k - 1 = {variance:.6g}, the variance of {rule.description}, so no "
                    f"theorem covers this run. It may still converge, or it may diverge. Give omega={variance:.6g}.",
                    TheoryWarning,
                )


def fewest_present(rule: Participation | None, seeds: Sequence[int], rounds: int, agents: int) -> int:
    """Return how many agents are present in the round that has the fewest, without rounds in which nobody is."""
    if rule is None:
        return agents
    if rule.kind == "cohort":
        return int(rule.numbers)
    if rule.kind == "size":
        return int(rule.numbers[0])
    numbers = [(participants(rule, seed, range(rounds), agents) < agents).sum(axis=1) for seed in seeds]
    present = np.concatenate(numbers)
    return int(present[present > 0].min(initial=agents))


def _check_krum(rule: Krum, algorithm: Method, messages: int) -> None:
    f, m = rule.f, rule.m
    if any(exchange.speaks is not None for exchange in algorithm.exchanges()):
        text = f"needs {2 * f + 3} messages in every communication, and agents of {algorithm.name} may send none"
        refuse("mean", rule.description, text, "Choose median() or trimmed_mean(share), or another method")
    if messages < 2 * f + 3:
        most = (messages - 3) // 2
        remedy = f"Give an f of at most {most}, or let more agents take part" if most >= 0 else "Choose median()"
        text = f"needs at least 2f + 3 = {2 * f + 3} messages, and a communication has {messages}"
        refuse("f", f, text, remedy)
    if m > messages - f:
        text = f"must be at most {messages - f}, the {messages} messages of a communication without f = {f} wrong ones"
        refuse("m", m, text, "Give a smaller m")


def check_random_layers(algorithm: Method, problem: Problem) -> None:
    """Refuse a method that compares gradients of different rounds, if the model has random layers.

    Every local step has its own random numbers, and a full gradient has one set of them per round. Within a round, f_i
    is then a fixed function. From one round to the next it is not.
    """
    if problem.random is None:
        return
    _check_rounds_differ(algorithm.oracles)
    if algorithm.compares_rounds:
        _refuse_random("algorithm", algorithm.description)


def check_batch(algorithm: Method, problem: Problem) -> None:
    """Refuse steps on single samples, if a sample's loss depends on its batch, and more epochs than 32 bits count."""
    _check_samples_alone(algorithm.oracles, algorithm.samples_per_step, problem)
    epochs, largest = algorithm.local_epochs, int(problem.sizes.max())
    if epochs is not None and epochs * largest >= 2**31:
        rule = f"with {largest:,} samples of the largest agent, must be below {2**31 // largest:,}: steps have 32 bits"
        refuse("epochs", epochs, rule, "Give fewer epochs")


def check_oracle_fits(oracle: Oracle, problem: Problem) -> None:
    """Refuse an oracle that cannot train the model of a problem, as `check_random_layers` and `check_batch` do."""
    if problem.random is not None:
        _check_rounds_differ([oracle])
    _check_samples_alone([oracle], oracle.batch, problem)


def _check_rounds_differ(oracles: Sequence[Oracle]) -> None:
    for oracle in oracles:
        if oracle.compares_rounds:
            _refuse_random("oracle", oracle.description)


def _refuse_random(what: str, value: str) -> None:
    rule = "compares gradients of different rounds, but the model has random layers (dropout), which change the loss"
    refuse(what, value, rule, "Remove the random layers, or use oracles.sgd, oracles.gd or oracles.optax")


def _check_samples_alone(oracles: Sequence[Oracle], batch: int | None, problem: Problem) -> None:
    if not problem.depends_on_batch:
        return
    for oracle in oracles:
        if oracle.needs_samples:
            rule = "needs the gradient of each sample, but a sample's loss depends on its batch"
            remedy = (
                "Use another oracle, or losses of single samples (group normalisation in place of batch normalisation)"
            )
            refuse("oracle", oracle.description, rule, remedy)
    if batch == 1:
        rule = "must be at least 2, because a sample's loss depends on its batch"
        refuse("batch", batch, rule, "Give the oracle e.g. batch=10")
