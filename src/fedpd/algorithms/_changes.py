"""The common parts of FedNova and FedExP: agents send the change of their local model and one number.

FedNova, FedCM and FedDC also read mean gradients off these changes, and need the lengths of the local steps.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.base.checks import is_traced, refuse
from fedpd.base.value import attribute
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle
from fedpd.core.oracle import sum_of_steps


class Agent(NamedTuple):
    x: Vector  # the server's model
    change: Vector
    number: Array
    memory: Any  # the oracle's memory between rounds


class LocalChanges(Method):
    """y_i = oracle(f_i) from x; agents send `report(y_i - x)`. Subclasses have it, and `aggregate`."""

    oracle = attribute(None)  # of type Oracle

    def report(self, change: Vector, work: Work) -> tuple[Vector, Array]:
        """Return what an agent sends: a vector and a number."""
        self.needs("report(self, change, work)")

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.zeros((), float), self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(agent.x, *self.report(y - agent.x, work), memory), work

    def send(self, agent: Agent) -> tuple[Change, Array]:
        return Change(agent.change), agent.number

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))


def check_steps(oracle: Oracle) -> None:
    """Refuse an oracle whose steps have no size that is known in advance, or whose steps contain earlier gradients."""
    check_oracle(oracle)
    momentum = getattr(oracle, "momentum", 0.0)
    if is_traced(momentum) or momentum:
        rule = (
            "must not have momentum, because the change of a local model is then not the sum of steps times gradients"
        )
        refuse("oracle", oracle.description, rule, "Leave momentum out")
    if not hasattr(oracle, "step"):
        rule = "must be a solver with a step size, because the method divides by the local steps"
        refuse("oracle", oracle.description, rule, "Give e.g. oracles.sgd(step=0.1, iterations=8)")


def total_step(oracle: Any, r: Array, work: Work) -> Array:
    """Return the sum of the sizes of the local steps that an agent took in round r; Q times a constant step."""
    return sum_of_steps(oracle.step, r, work.updates)
