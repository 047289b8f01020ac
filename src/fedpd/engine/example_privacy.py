"""Example-level privacy of a run: the oracle counts, if nothing else of the method reads the samples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.value import Value
from fedpd.core import Array, Key, Method, Oracle, Subproblem, Work
from fedpd.core.agents import Shard, local_objective, one_agent
from fedpd.core.dp_sgd import DPSGD
from fedpd.engine.costs import run_exchange
from fedpd.engine.plan import Plan, prepare
from fedpd.engine.privacy import warn_of_delta
from fedpd.transforms import ExampleAccountant


def with_example_privacy(plan: Plan) -> Plan:
    """Return the plan with the accountant of a private oracle; other plans are returned as they are.

    Raises:
        FedpdError: The method reads the samples outside of its oracle.
    """
    oracle = private_oracle(plan.algorithm)
    if oracle is None:
        return plan
    if reads_samples(plan):
        rule = "covers the steps of the oracle only, and the method reads the samples elsewhere, too"
        remedy = "Choose a method that does not, e.g. fedpd(eta=...), fedavg(...) or fedprox(...)"
        refuse("oracle", oracle.description, f"{rule}: {plan.algorithm.name}", remedy)
    warn_of_delta(oracle.delta, int(plan.problem.sizes.max()), "sample", "1/|D_i|")
    numbers = (oracle.noise_multiplier, oracle.delta, oracle.share, oracle.iterations)
    return plan._replace(examples=ExampleAccountant(*numbers))


def private_oracle(algorithm: Method) -> DPSGD | None:
    """Return the method's private oracle; None if it has none."""
    return next((oracle for oracle in algorithm.oracles if isinstance(oracle, DPSGD)), None)


class SamplesReadError(Exception):
    """The losses of samples were computed."""


def reads_samples(plan: Plan) -> bool:
    """Return whether a round computes losses of samples, when the oracle is replaced by one that computes nothing."""
    method: Any = without_oracles(plan.algorithm)
    program, _, inputs = prepare(plan)

    def losses(model: Any, batch: Any) -> Any:
        raise SamplesReadError

    def a_round(one: Shard, x: Vector) -> Any:
        f = local_objective(program.functions, one)._replace(losses=losses)
        agent, server = method.init(f, x), method.server(x)
        for exchange in method.exchanges():
            key = jax.random.key(0, impl="threefry2x32")
            agent, server, *_ = run_exchange(exchange, f, agent, server, jnp.int32(0), key)
        return agent

    try:
        jax.eval_shape(lambda shard, x: a_round(one_agent(shard, 0), x), inputs.shard, Vector(plan.problem.start))
    except SamplesReadError:
        return True
    return False


class Blind(Oracle):
    """An oracle that computes nothing."""

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        return x, memory, Work(jnp.int32(1), jnp.int32(0))


def without_oracles(value: Any) -> Any:
    """Return a method whose private oracles are replaced by one that computes nothing."""
    if isinstance(value, DPSGD):
        return Blind()
    if isinstance(value, tuple):
        return tuple(map(without_oracles, value))
    if not isinstance(value, Value):
        return value
    inner = {field.name: without_oracles(getattr(value, field.name)) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    return dataclasses.replace(value, **inner)  # type: ignore[type-var]
