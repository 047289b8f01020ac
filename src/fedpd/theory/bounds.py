"""Upper bounds that the theorems need beside L: of f(x^0) - inf f, and of the agents' differences for all x."""

import math

from fedpd.base.checks import at_most, refuse
from fedpd.core import Problem
from fedpd.theory.constants import objective
from fedpd.theory.examples import delta_bound


def delta_for_all(problem: Problem) -> float:
    """Return an upper bound of ||grad f_i(x) - grad f(x)|| for all x and i; infinity if none is known."""
    if problem.answer.heterogeneity is not None:
        return problem.answer.heterogeneity
    found = delta_bound(problem)
    return math.inf if found is None else (problem.agents - 1) / problem.agents * found.tight


def start_gap(problem: Problem, start: float, floor: float | None) -> tuple[float, str]:
    """Return an upper bound of D_0 = f(x^0) - inf f, and how it is known.

    Args:
        problem: The problem.
        start: f(x^0).
        floor: A lower bound of f; None: f at the minimiser if that is known, else 0, which is right for losses >= 0.
    """
    if floor is not None:
        at_most("floor", floor, start, f"Give a lower bound of f; f(x^0) = {start:.6g}")
        return start - floor, f"f(x^0) - {floor:g}, the given floor"
    if problem.answer.minimiser is not None:
        return max(start - objective(problem, problem.answer.minimiser), 0.0), "exact, the minimiser is known"
    if start < 0:
        refuse("floor", floor, f"must be given, since f(x^0) = {start:.3g} is negative", "Give a lower bound of f")
    return start, "f(x^0), if losses are not negative"
