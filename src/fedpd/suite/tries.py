"""The tries that a tuning budget allows a method: settings from its own rule.

    0 runs    the method's own rule, from L
    8 runs    8 factors on its step sizes, 1/16 to 1024 by a factor of 4
    64 runs   16 factors, 1/256 to 4^11, times 4 tolerances of local solves (0.1 to 1e-4), numbers of local steps
              (2, 8, 32, 128) or of pairs that are remembered (5, 10, 20, 40); 64 factors, 1/256 to 2^23.5, for methods
              that have none of these

A factor is what `fedpd.tune` varies: it multiplies eta, the step, 1/rho, or the length of a first step. A method whose
rule gives the same settings for every factor has nothing to tune, and a single try. Most tries of a smaller budget are
among those of a larger one, so one race serves all budgets.
"""

from typing import Any

from fedpd.base.checks import choice
from fedpd.core import Method
from fedpd.core.card import Variant

BUDGETS = (0, 8, 64)
# The second knob is the first of these that a method has.
KNOBS = {"tolerance": (0.1, 0.01, 1e-3, 1e-4), "iterations": (2, 8, 32, 128), "memory": (5, 10, 20, 40)}


def tries_within(variant: Variant, budget: int, L: float, agents: int) -> list[Method]:
    """Return the method with each of the settings that a budget allows.

    Args:
        variant: The method.
        budget: 0, 8 or 64 runs.
        L: The smoothness from which the method's rule starts.
        agents: N.
    """
    choice("budget", str(budget), map(str, BUDGETS))
    usual = variant.rule(L, agents, 1.0)
    knob = _knob(usual)
    if budget == 0:
        tries = [usual]
    elif budget == 8:
        tries = [variant.rule(L, agents, 4.0**k) for k in range(-2, 6)]
    elif knob is None:
        tries = [variant.rule(L, agents, 2.0 ** (k / 2)) for k in range(-16, 48)]
    else:
        scaled = [variant.rule(L, agents, 4.0**k) for k in range(-4, 12)]
        values = KNOBS[knob.rpartition(".")[2]]
        tries = [one.changed({knob: value}) for value in values for one in scaled]
    return list({one.spec: one for one in tries}.values())


def _knob(method: Method) -> str | None:
    """Return the name, with dots, of the setting that is the second knob; None if the method has none."""
    found: dict[str, Any] = {
        path.rpartition(".")[2]: path for path, value in method.spec.leaves() if isinstance(value, int | float)
    }
    return next((found[name] for name in KNOBS if name in found), None)
