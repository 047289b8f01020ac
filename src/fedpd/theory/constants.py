"""The constants of a problem as plain numbers: smoothness L, heterogeneity delta, and bounds that theorems need beside.

`curvature` and `dissimilarity` also say how they found them, and have the other constants of Assumptions 1 to 5.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_most, refuse
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import Functions, Layout, Shard, arrays, local_objective, map_agents
from fedpd.theory.curvature import smoothness_constants
from fedpd.theory.dissimilarity import delta_bound, gradient_dissimilarity
from fedpd.theory.points import as_model


@explained
def smoothness(problem: Problem, *, iterations: int = 50) -> float:
    """Return L = max_i L_i of Assumption 1, the value of `smoothness_constants`, which also says how it was found.

    It is exact for quadratics and logistic regression, and an upper bound for softmax regression. For other problems it
    is an estimate: the largest |eigenvalue| of the Hessians of the f_i at the start and at four random models near it,
    times 1.1, or an earlier estimate if that was larger. The true L is a supremum over all x and may be larger, so a
    step size 1/L may be too large.

    Args:
        problem: The problem.
        iterations: The largest number of power iterations of an estimate.

    Raises:
        FedpdError: A Hessian at the start is not finite.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems, theory
        >>> theory.smoothness(problems.quadratic(np.array([np.diag([1.0, 3.0])]), np.zeros((1, 2))))
        3.0
    """
    if problem.answer.smoothness is not None:
        return problem.answer.smoothness
    return smoothness_constants(problem, iterations=iterations, average=False).value


@explained
def heterogeneity(problem: Problem) -> float:
    """Return delta of Assumption 5: the exact value if the problem has it (it may be infinite), else a measured one.

    The measured value is max_i ||grad f_i(x^0) - grad f(x^0)|| at the start, a lower bound of delta, which is a
    supremum over all x. `similarity` uses more points, and also compares pairs of agents.

    Args:
        problem: The problem.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems, theory
        >>> equal = np.array([np.eye(2), np.eye(2)])
        >>> theory.heterogeneity(problems.quadratic(equal, np.array([[1.0, 0.0], [-1.0, 0.0]])))
        1.0
    """
    if problem.answer.heterogeneity is not None:
        return problem.answer.heterogeneity
    functions, layout = Functions.of(problem), Layout(problem.agents, parallel=False, mesh=None)
    with scope(problem.double):
        return float(_centred(functions, layout, arrays(problem), Vector(problem.start)))


_centred = jax.jit(gradient_dissimilarity, static_argnames=("functions", "layout"))


@explained
def objective(problem: Problem, x: Tree) -> float:
    """Return f(x) = (1/N) sum_i f_i(x).

    Args:
        problem: The problem.
        x: A model of the problem.
    """
    functions, frozen = Functions.of(problem).without_frozen()
    with scope(problem.double):
        model = Vector(jax.device_put(as_model(problem, x, "x")))
        return float(jnp.mean(_values(functions, frozen, model, arrays(problem))))


@partial(jax.jit, static_argnums=0)
def _values(functions: Functions, frozen: Tree | None, model: Vector, shard: Shard) -> Array:
    """Return f_i(x) of all agents. It is compiled once for a problem: a run may ask for many models."""
    whole = functions.with_frozen(frozen)
    return map_agents(lambda one: local_objective(whole, one).value(model), shard)


def delta_for_all(problem: Problem) -> float:
    """Return an upper bound of ||grad f_i(x) - grad f(x)|| for all x and i; infinity if none is known."""
    if problem.answer.heterogeneity is not None:
        return problem.answer.heterogeneity
    found = delta_bound(problem)
    return math.inf if found is None else (problem.agents - 1) / problem.agents * found.tight


def start_gap(problem: Problem, start: float, floor: float | None) -> tuple[float, str]:
    """Return an upper bound of D_0 = f(x^0) - inf f, and how it is known.

    Args:
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
