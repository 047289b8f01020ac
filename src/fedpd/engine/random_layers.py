"""Which methods train models with random layers (dropout), and which with batch normalisation."""

from fedpd.algorithms import cards
from fedpd.base.checks import refuse
from fedpd.core import Algorithm, Problem, Spec
from fedpd.core.problem import couples_samples
from fedpd.oracles import COMPARING


def check_random_layers(algorithm: Algorithm, problem: Problem) -> None:
    """Refuse a method that compares gradients of different rounds, if the model has random layers.

    Every local step has its own random numbers, and a full gradient has one set of them per round. Within a round, f_i
    is then a fixed function. From one round to the next it is not.
    """
    if problem.random is None or not isinstance(algorithm.spec, Spec):
        return
    card, oracle = cards().get(algorithm.name), algorithm.spec.find("oracle")
    if isinstance(oracle, Spec) and oracle.name in COMPARING:
        what, value = "oracle", oracle.label()
    elif card is not None and card.compares is not None and card.compares(algorithm.spec):
        what, value = "algorithm", algorithm.description
    else:
        return
    rule = "compares gradients of different rounds, but the model has random layers (dropout), which change the loss"
    refuse(what, value, rule, "Remove the random layers, or use oracles.sgd, oracles.gd or oracles.optax")


def check_batch(algorithm: Algorithm, problem: Problem) -> None:
    """Refuse steps on one sample, if the loss of a sample depends on its batch."""
    if couples_samples(problem) and algorithm.batch == 1:
        rule = "must be at least 2, because a sample's loss depends on its batch"
        refuse("batch", algorithm.batch, rule, "Give the oracle e.g. batch=10")
