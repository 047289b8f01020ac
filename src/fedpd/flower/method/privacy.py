"""Differential privacy in a federation: which settings it needs, whose epsilon is counted, and by whom.

Clients draw noise from their operating system, so that nobody who knows the seed can subtract it. Each client counts
what it spends itself, before its local steps begin, and refuses to spend more than the method or its policy allows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.errors import extra
from fedpd.core import LocalObjective, Method, Tree
from fedpd.core.dp_sgd import DPSGD, SystemDPSGD
from fedpd.engine.measure.costs import run_exchange
from fedpd.engine.privacy import (
    SamplesReadError,
    example_accountant,
    number_of_vectors,
    private_oracle,
    with_noise_found,
    with_private_oracle,
    without_oracles,
)
from fedpd.flower.carry.protocol import Order
from fedpd.flower.method.settings import Settings
from fedpd.transforms import Accountant
from fedpd.transforms._wrap import private_parts, with_system_noise

EXAMPLES, CLIENTS = "examples", "clients"


def is_private(algorithm: Method) -> bool:
    """Return whether the messages of a method are private."""
    return private_parts(algorithm) is not None


def private_kinds(algorithm: Method) -> tuple[str, ...]:
    """Return whose data a method protects by differential privacy: samples, clients, both or nobody's."""
    kinds = {EXAMPLES: private_oracle(algorithm) is not None, CLIENTS: is_private(algorithm)}
    return tuple(kind for kind, protects in kinds.items() if protects)


class Spending(NamedTuple):
    """How a client counts what a run spends; with a private oracle, of its samples, else of its messages.

    Attributes:
        kind: "examples" or "clients".
        delta: The delta of the run.
        epsilon_of: Returns the epsilon of this many releases.
    """

    kind: str
    delta: float
    epsilon_of: Callable[[int], float]

    def releases(self, order: Order) -> int:
        """Return the releases of an order: its rounds of local steps, or its message."""
        return len(order.steps) if self.kind == EXAMPLES else int(order.sends)


def spending_of(algorithm: Method, size: int, agents: int, rounds: int) -> Spending | None:
    """Return how a client with `size` samples counts what it spends; None: the method is not private."""
    oracle, parts = private_oracle(algorithm), private_parts(algorithm)
    if oracle is not None:
        counted = example_accountant(with_noise_found(oracle, size, rounds), size)
        return Spending(EXAMPLES, oracle.delta, counted.epsilon)
    if parts is not None and parts[1].noise_multiplier is not None:
        noise = parts[1].noise_multiplier / number_of_vectors(algorithm) ** 0.5
        return Spending(CLIENTS, parts[1].delta, Accountant(noise, parts[1].delta, agents).epsilon)
    return None


def as_deployed(algorithm: Method, size: int, rounds: int) -> Method:
    """Return the method with the noise of a client with `size` samples, which the operating system draws."""

    def deployed(oracle: DPSGD) -> SystemDPSGD:
        known = with_noise_found(oracle, size, rounds)
        return SystemDPSGD(**{field.name: getattr(known, field.name) for field in dataclasses.fields(known)})

    if private_oracle(algorithm) is None:
        return with_system_noise(algorithm)
    return with_system_noise(with_private_oracle(algorithm, deployed))


def check_reads_no_samples(algorithm: Method, start: Tree) -> None:
    """Refuse a method with a private oracle that reads the samples elsewhere, too."""
    oracle = private_oracle(algorithm)
    if oracle is None:
        return
    method: Any = without_oracles(algorithm)

    def losses(model: Tree, batch: Tree) -> Any:
        raise SamplesReadError

    def a_round(x: Vector) -> Any:
        f = LocalObjective(losses, None, {}, jnp.int32(1), None, None, jnp.int32(0))
        agent, server = method.init(f, x), method.server(x)
        for exchange in method.exchanges():
            key = jax.random.key(0, impl="threefry2x32")
            agent, server, *_ = run_exchange(exchange, f, agent, server, jnp.int32(0), key)
        return agent

    try:
        jax.eval_shape(a_round, Vector(start))
    except SamplesReadError:
        rule = "covers the steps of the oracle only, and the method reads the samples elsewhere, too"
        remedy = "Choose a method that does not, e.g. fedpd(eta=...), fedavg(...) or fedprox(...)"
        refuse("oracle", oracle.description, f"{rule}: {algorithm.name}", remedy)


def check_private(algorithm: Method, start: Tree, settings: Settings) -> Accountant | None:
    """Return what counts epsilon of the messages, after a check of the settings; None: they are not private.

    Clients of private messages report neither numbers of samples nor evaluations, because noise covers neither.

    The seed tells all clients who takes part in a round, so a cohort does not make epsilon smaller.
    """
    if private_kinds(algorithm):
        with extra("privacy", f"epsilon of {algorithm.name}"):  # before any client spends some
            import dp_accounting as _  # noqa: F401
    check_reads_no_samples(algorithm, start)
    if private_oracle(algorithm) is not None and settings.evaluation_interval:
        text = f"{algorithm.description} is private, and noise does not cover evaluations"
        refuse("evaluate-every", settings.evaluation_interval, text, "Set evaluate-every = 0")
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
