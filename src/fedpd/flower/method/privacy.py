"""Differential privacy in a federation: which settings it needs, and how epsilon is counted.

Clients draw the noise from their operating system, so that nobody who knows the seed can subtract it. They report
neither numbers of samples nor evaluations, because noise covers neither.
"""

from fedpd.base.checks import refuse
from fedpd.core import Method
from fedpd.engine.privacy import number_of_vectors, private_oracle
from fedpd.flower.method.settings import Settings
from fedpd.transforms import Accountant
from fedpd.transforms._wrap import private_parts


def is_private(algorithm: Method) -> bool:
    """Return whether the messages of a method are private."""
    return private_parts(algorithm) is not None


def check_private(algorithm: Method, settings: Settings) -> Accountant | None:
    """Return what counts epsilon, after a check of the settings; None: the messages are not private.

    The seed tells all clients who takes part in a round, so a cohort does not make epsilon smaller.
    """
    if private_oracle(algorithm) is not None:
        text = "draws its noise from the seed, which the server knows"
        refuse("oracle", "dp_sgd", text, "Simulate it, or give another oracle")
    parts = private_parts(algorithm)
    if parts is None:
        return None
    rule, name = parts[1], algorithm.description
    number = settings.sampled or settings.agents
    if rule.noise_multiplier is None or rule.agents != number:
        text = f"must be {number}, the clients that send in a round, with noise_multiplier given"
        refuse("agents", rule.agents, text, f"Give gaussian(clip, noise_multiplier, agents={number})")
    if settings.on_timeout != "fail":
        text = f"the noise of {name} is complete only if all {number} clients of a round reply"
        refuse("on-timeout", settings.on_timeout, text, 'Use "fail"')
    if settings.evaluation_interval:
        text = f"{name} is private, and noise does not cover evaluations"
        refuse("evaluate-every", settings.evaluation_interval, text, "Set evaluate-every = 0")
    if settings.sampling != "uniform":
        text = f"{name} is private, and noise does not cover the clients' numbers of samples"
        refuse("sampling", settings.sampling, text, "Leave sampling out")
    if settings.clip:
        refuse("clip", settings.clip, f"clients of {name} clip their messages themselves", "Leave clip out")
    return Accountant(rule.noise_multiplier / number_of_vectors(algorithm) ** 0.5, rule.delta, settings.agents)
