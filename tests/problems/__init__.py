"""What the tests of problems share: the local objectives of all agents at one point."""

from typing import Any

import jax
import numpy as np
from tree_math import Vector

from fedpd import Problem
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, Shard, arrays, local_objective


def local_values(problem: Problem, x: Any) -> tuple[np.ndarray, Any]:
    """f_i(x), (N,), and grad f_i(x), leaves (N, ...), as the rounds compute them."""
    functions = Functions(problem.losses, problem.penalty)

    def one(shard: Shard) -> Any:
        return local_objective(functions, shard).value_and_gradient(Vector(x))

    with scope(problem.double):
        values, gradients = jax.jit(jax.vmap(one))(arrays(problem))
        return np.asarray(values), jax.tree.map(np.asarray, gradients.tree)
