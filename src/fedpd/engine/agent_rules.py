"""Rules of methods and transforms that depend on the number of agents, or of messages in a communication."""

from collections.abc import Callable, Sequence

import numpy as np

from fedpd.algorithms.locodl import LoCoDL
from fedpd.base.checks import TheoryWarning, refuse
from fedpd.base.value import parts_of
from fedpd.base.warn import warn
from fedpd.core import Method
from fedpd.engine.cohorts import who
from fedpd.engine.participation import Participation
from fedpd.transforms._means import Krum
from fedpd.transforms._sparse import RandomK, number_sent


def check_agents(algorithm: Method, agents: int, fewest: Callable[[], int]) -> None:
    """Refuse a method whose settings do not fit the number of agents.

    Args:
        algorithm: The method.
        agents: N.
        fewest: Returns the number of messages of the communication that has the fewest.
    """
    algorithm.check_agents(agents)
    for one in parts_of(algorithm):
        if isinstance(one, Krum):
            _check_krum(one, algorithm, fewest())


def check_variance(algorithm: Method, dimension: int) -> None:
    """Warn of a LoCoDL whose omega is smaller than the variance of its compressor, for models of d numbers."""
    parts = parts_of(algorithm)
    omegas = [one.omega for one in parts if isinstance(one, LoCoDL)]
    for rule in (one for one in parts if isinstance(one, RandomK)):
        variance = dimension / number_sent(rule.share, dimension) - 1
        for omega in omegas:
            if omega < variance * (1 - 1e-6):
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
    numbers = [(who(rule, seed, range(rounds), agents) < agents).sum(axis=1) for seed in seeds]
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
