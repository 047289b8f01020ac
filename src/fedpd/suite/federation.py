"""A problem as a solver at the server sees it: mean values and gradients at flat vectors, and a count of questions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tree_math import Vector

from fedpd.base.precision import scope
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import Functions, arrays, local_objective


def flat(model: Tree) -> np.ndarray:
    """Return a model as one vector of float64, or of float32 where all of it is."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])


class Federation:
    """The agents of a problem, asked for f and its gradient.

    Attributes:
        problem: The problem.
        start: The model x^0 as one vector.
        asked: How often all agents were asked: the communications of a solver at the server.

    Examples:
        >>> from fedpd.suite.registry import make
        >>> federation = Federation(make("quadratic-identity"))
        >>> value, gradient = federation.ask(federation.start)
        >>> gradient.shape, federation.asked
        ((30,), 1)
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.asked = problem, 0
        self.start = flat(problem.start)
        functions, everything = Functions.of(problem), arrays(problem)
        with scope(problem.double):
            unravel = ravel_pytree(problem.start)[1]

        def mean(x: Array) -> Array:
            model = Vector(unravel(x))
            each: Any = jax.lax.map(lambda one: local_objective(functions, one).value(model), everything)
            return jnp.mean(each)

        self._evaluate = jax.jit(jax.value_and_grad(mean))

    def evaluate(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f(x) and its gradient, uncounted: for those who judge a solver."""
        with scope(self.problem.double):
            value, gradient = self._evaluate(x)
            return float(value), np.asarray(gradient)

    def ask(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f(x) and its gradient, which costs a communication."""
        self.asked += 1
        return self.evaluate(x)
