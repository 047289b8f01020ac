"""Which methods and oracles train models with random layers (dropout), and which with batch normalisation."""

from collections.abc import Sequence

from fedpd.base.checks import refuse
from fedpd.core import Method, Oracle, Problem


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
    """Refuse steps on single samples, if the loss of a sample depends on its batch."""
    _check_samples_alone(algorithm.oracles, algorithm.samples_per_step, problem)


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
