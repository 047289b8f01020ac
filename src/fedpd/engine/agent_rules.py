"""Rules of methods and transforms that depend on the number of agents, or of messages in a communication."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedpd.base.checks import TheoryWarning, refuse
from fedpd.base.spec import Spec
from fedpd.base.warn import warn
from fedpd.core import Algorithm
from fedpd.engine.cohorts import who
from fedpd.engine.participation import Participation
from fedpd.transforms._sparse import number_sent


def check_agents(algorithm: Algorithm, agents: int, fewest: Callable[[], int]) -> None:
    """Refuse a method whose settings do not fit the number of agents.

    Args:
        algorithm: The method.
        agents: N.
        fewest: Returns the number of messages of the communication that has the fewest.
    """
    if not isinstance(algorithm.spec, Spec):
        return
    _check_attackers(algorithm.spec, agents)
    if algorithm.name == "tamuna":
        _check_tamuna(algorithm.spec, agents)
    if algorithm.name == "locodl":
        _check_locodl(algorithm.spec, agents)
    for rule in _transforms(algorithm.spec, "mean"):
        if rule.name == "krum":
            _check_krum(rule, algorithm, fewest())


def check_variance(algorithm: Algorithm, dimension: int) -> None:
    """Warn of a LoCoDL whose omega is smaller than the variance of its compressor, for models of d numbers."""
    if not isinstance(algorithm.spec, Spec) or algorithm.name != "locodl":
        return
    for rule in _transforms(algorithm.spec, "up"):
        if rule.name == "random_k" and _is_number(algorithm.spec["omega"]):
            variance, omega = dimension / number_sent(rule["share"], dimension) - 1, algorithm.spec["omega"]
            if omega < variance * (1 - 1e-6):
                warn(
                    f"omega = {omega:g} is below d/k - 1 = {variance:.6g}, the variance of {rule.label()}, so no "
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


def _check_attackers(spec: Spec, agents: int) -> None:
    for name, value in spec.settings:
        if name == "agents" and isinstance(value, tuple) and max(value, default=0) >= agents:
            refuse("agents", list(value), f"must be below {agents}, the number of agents", "Count the agents from 0")


def _check_tamuna(spec: Spec, agents: int) -> None:
    if spec["agents"] != agents:
        rule = f"must be {agents}, the number of agents, of which each sends its own coordinates"
        refuse("agents", spec["agents"], rule, f"Give tamuna(agents={agents}, ...)")


def _check_locodl(spec: Spec, agents: int) -> None:
    rho, omega = spec["rho"], spec["omega"]
    if not (_is_number(rho) and _is_number(omega)):
        return
    most = 1 / (1 + omega / agents)
    if rho > most * (1 + 1e-9):
        rule = f"must be at most 1/(1 + omega/N) = {most:.6g}, with omega = {omega:g} and N = {agents}"
        refuse("rho", rho, rule, "Leave rho out")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _transforms(spec: Spec, way: str) -> Iterator[Spec]:
    """Yield the transforms that `wrap` has as `up`, `down` or `mean`."""
    for name, value in spec.settings:
        if name == way:
            yield from (one for one in value if isinstance(one, Spec))


def _check_krum(rule: Spec, algorithm: Algorithm, messages: int) -> None:
    f, m = rule["f"], rule["m"]
    if any(exchange.speaks is not None for exchange in algorithm.exchanges):
        text = f"needs {2 * f + 3} messages in every communication, and agents of {algorithm.name} may send none"
        refuse("mean", rule.label(), text, "Choose median() or trimmed_mean(share), or another method")
    if messages < 2 * f + 3:
        most = (messages - 3) // 2
        remedy = f"Give an f of at most {most}, or let more agents take part" if most >= 0 else "Choose median()"
        text = f"needs at least 2f + 3 = {2 * f + 3} messages, and a communication has {messages}"
        refuse("f", f, text, remedy)
    if m > messages - f:
        text = f"must be at most {messages - f}, the {messages} messages of a communication without f = {f} wrong ones"
        refuse("m", m, text, "Give a smaller m")
