"""The constants of a problem: smoothness L and heterogeneity delta."""

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.agents import Functions, arrays, local_objective
from fedpd.checks import count
from fedpd.core import Array, LocalObjective, Problem
from fedpd.precision import scope


def smoothness(problem: Problem, *, iterations: int = 50) -> float:
    """L: exact where the problem knows it (quadratics, logistic regression), estimated elsewhere.

    The estimate is the largest |eigenvalue| of any Hessian of f_i at the start, by power iteration on
    Hessian-vector products: a lower bound of the true L, which is a supremum over all x.
    """
    if problem.answer.smoothness is not None:
        return problem.answer.smoothness
    count("iterations", iterations, "Give the power iterations, e.g. 50")

    def largest(f: LocalObjective, x: Vector, v: Vector) -> Array:
        def multiply(_: int, v: Vector) -> Vector:
            product = jax.jvp(f.gradient, (x,), (v,))[1]
            norm = jnp.sqrt(product @ product)
            return product / jnp.where(norm > 0, norm, 1)

        v = jax.lax.fori_loop(0, iterations, multiply, v)
        return jnp.abs(v @ jax.jvp(f.gradient, (x,), (v,))[1])

    functions = Functions(problem.losses, problem.penalty)
    rng = np.random.default_rng(0)
    with scope(problem.double):
        x = Vector(problem.start)
        v = jax.tree.map(lambda leaf: rng.standard_normal(np.shape(leaf)).astype(leaf.dtype), x)
        each = jax.jit(lambda shard: jax.lax.map(lambda one: largest(local_objective(functions, one), x, v), shard))
        return float(jnp.max(each(arrays(problem))))


def heterogeneity(problem: Problem) -> float:
    """delta of Assumption 5: exact (it may be infinite) where the problem knows it, else measured at the start.

    Measured: max_i ||grad f_i(x^0) - grad f(x^0)||, a lower bound of delta, which is a supremum over all x.
    """
    if problem.answer.heterogeneity is not None:
        return problem.answer.heterogeneity
    functions = Functions(problem.losses, problem.penalty)
    with scope(problem.double):
        x = Vector(problem.start)
        each = jax.jit(lambda shard: jax.lax.map(lambda one: local_objective(functions, one).gradient(x), shard))
        gradients = each(arrays(problem))
        squares = jax.tree.map(lambda g: jnp.sum((g - g.mean(0)) ** 2, axis=range(1, g.ndim)), gradients)
        return float(jnp.sqrt(jnp.max(sum(jax.tree.leaves(squares)))))
