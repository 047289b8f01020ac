"""The lengths of an agent's local steps, for methods that read mean gradients off the changes of the local models."""

from typing import Any

from fedpd.base.checks import is_traced, refuse
from fedpd.core import Array, Oracle, Work, check_oracle
from fedpd.core.oracle import sum_of_steps


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
