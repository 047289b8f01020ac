"""The privacy of a run: how much noise each agent adds and how epsilon is counted, of agents and of single samples."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedpd.base.checks import refuse
from fedpd.base.errors import warn
from fedpd.base.value import Value
from fedpd.core import Array, Key, Method, Oracle, Subproblem, Vector, Work, message_kinds
from fedpd.core.agents import Shard, local_objective, one_agent
from fedpd.core.dp_sgd import DPSGD
from fedpd.engine.backends.cohort import shapes_of
from fedpd.engine.backends.liveness import liveness_of
from fedpd.engine.measure.costs import run_exchange
from fedpd.engine.plan import Plan, prepare
from fedpd.transforms import ExampleAccountant
from fedpd.transforms._private import Accountant, Gaussian, complete, noise_for, noise_for_examples, with_noise
from fedpd.transforms._wrap import private_parts


def with_privacy(plan: Plan) -> Plan:
    """Return the plan with the noise of a private method and its accountant; other plans are returned as they are."""
    parts = private_parts(plan.algorithm)
    if parts is None:
        return plan
    method, rule = parts
    agents, number = plan.problem.agents, senders(plan)
    warn_of_delta(rule.delta, agents, "agent", "1/N")
    if rule.agents not in (None, number):
        refuse("agents", rule.agents, f"must be {number}, the agents that send in a round", "Leave agents out")
    known = (
        plan.algorithm
        if complete(rule)
        else with_noise(method, with_numbers(rule, number, rule.noise_multiplier or 1.0))
    )
    cohort = None if number == agents or keeps_state(plan._replace(algorithm=known)) else number
    vectors = number_of_vectors(known)
    if rule.noise_multiplier is None:
        assert rule.epsilon is not None  # `gaussian`
        noise = vectors**0.5 * noise_for(rule.epsilon, plan.rounds, rule.delta, agents, cohort)
        known = with_noise(method, with_numbers(rule, number, noise))
    else:
        noise = rule.noise_multiplier
    return plan._replace(algorithm=known, privacy=Accountant(noise / vectors**0.5, rule.delta, agents, cohort))


def warn_of_delta(delta: float, number: int, what: str, bound: str) -> None:
    """Warn of a delta so large that the guarantee allows to reveal all data of one of `number` agents or samples."""
    if delta >= 1 / number:
        warn(
            f"delta = {delta:g} is not below {bound} = {1 / number:.3g}. A mechanism that reveals one {what} of "
            f"{number} at random has this privacy, so epsilon says little. Give a smaller delta."
        )


def with_numbers(rule: Gaussian, number: int, noise_multiplier: float) -> Gaussian:
    """Return the rule for this many agents per round, with this noise."""
    known = {"noise_multiplier": noise_multiplier, "agents": number, "epsilon": None}
    return rule.changed(known)


def number_of_vectors(algorithm: Method) -> int:
    """Return how many vectors a message has; each is clipped and each counts."""
    parts = private_parts(algorithm)
    assert parts is not None
    return len(message_kinds(parts[0].partial())[0])


def senders(plan: Plan) -> int:
    """Return how many agents send in a round; refuse a run in which this number changes or depends on the data."""
    rule = plan.participation
    if rule is None:
        return plan.problem.agents
    if rule.kind != "cohort":
        text = "needs the same number of agents in every round, drawn uniformly"
        refuse("participation", rule.kind, f"{text}, because each adds its share of the noise", "Give cohort=K")
    return int(rule.numbers)


def keeps_state(plan: Plan) -> bool:
    """Return whether agents keep anything between rounds. Then the rounds in which an agent took part leave a trace."""
    program, template, inputs = prepare(plan)
    kept = liveness_of(program.functions, shapes_of(template, inputs, False))
    return bool(kept.rows)


def with_example_privacy(plan: Plan) -> Plan:
    """Return the plan with the accountant of a private oracle; other plans are returned as they are."""
    oracle = private_oracle(plan.algorithm)
    if oracle is None:
        return plan
    if reads_samples(plan):
        rule = "covers the steps of the oracle only, and the method reads the samples elsewhere, too"
        remedy = "Choose a method that does not, e.g. fedpd(eta=...), fedavg(...) or fedprox(...)"
        refuse("oracle", oracle.description, f"{rule}: {plan.algorithm.name}", remedy)
    warn_of_delta(oracle.delta, int(plan.problem.sizes.max()), "sample", "1/|D_i|")
    known = with_noise_found(oracle, int(plan.problem.sizes.min()), plan.rounds)
    plan = plan._replace(algorithm=with_private_oracle(plan.algorithm, lambda one: known))
    return plan._replace(examples=example_accountant(known, int(plan.problem.sizes.min())))


def example_accountant(oracle: DPSGD, size: int) -> ExampleAccountant:
    """Return what counts the epsilon of one of `size` samples; the oracle's noise is known."""
    assert oracle.noise_multiplier is not None  # `with_noise_found`
    return ExampleAccountant(oracle.noise_multiplier, oracle.delta, float(oracle.share_of(size)), oracle.iterations)


def with_noise_found(oracle: DPSGD, size: int, rounds: int) -> DPSGD:
    """Return the oracle with the noise for its epsilon, on this many samples."""
    if oracle.epsilon is None:
        return oracle
    noise = noise_for_examples(oracle.epsilon, rounds, oracle.delta, float(oracle.share_of(size)), oracle.iterations)
    return dataclasses.replace(oracle, noise_multiplier=noise, epsilon=None)


def with_private_oracle(value: Any, change: Callable[[DPSGD], Oracle]) -> Any:
    """Return a method whose private oracles are changed."""
    if isinstance(value, DPSGD):
        return change(value)
    if isinstance(value, tuple):
        inside = [with_private_oracle(one, change) for one in value]
        return type(value)(*inside) if hasattr(value, "_fields") else tuple(inside)
    if not isinstance(value, Value):
        return value
    inner = {name: getattr(value, name) for name in (field.name for field in dataclasses.fields(value))}
    return dataclasses.replace(value, **{name: with_private_oracle(one, change) for name, one in inner.items()})


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
    return with_private_oracle(value, lambda oracle: Blind())
