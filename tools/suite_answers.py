"""Compute the answers of the suite's problems anew, and write the file that `fedpd.suite.problems` reads.

    python -m tools.suite_answers

It is a trust-region Newton method on f with exact Hessians. A minimum of a non-convex problem is the one that this
method reaches from the problem's start.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from tree_math import Vector

from fedpd.base.atomic import replace_file
from fedpd.base.precision import scope
from fedpd.core import Array, Problem
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.suite.problems import FILE, PROBLEMS, KnownAnswer, make


def find(problem: Problem) -> KnownAnswer:
    """Compute the facts of a problem; it takes seconds and the room of N Hessians."""
    with scope(problem.double):
        start, unravel = ravel_pytree(problem.start)
        each = _functions(problem, unravel)
        whole = jax.jit(lambda x: jnp.mean(each(x)))
        slope, curve = jax.jit(jax.grad(whole)), jax.jit(jax.hessian(whole))
        found = minimize(
            whole, start, jac=slope, hess=curve, method="trust-exact", options={"gtol": 1e-13, "maxiter": 500}
        )
        x = found.x
        for _ in range(3):  # Newton steps, where the trust region can no longer see a decrease
            x = x - np.linalg.lstsq(np.asarray(curve(x)), np.asarray(slope(x)), rcond=1e-14)[0]
        hessians = np.asarray(jax.jit(jax.hessian(each))(x))
        begin = np.asarray(jax.jit(jax.hessian(each))(start))
        mean = hessians.mean(0)
        eigenvalues = np.linalg.eigvalsh(mean)
        first, last = np.asarray(slope(start)), np.asarray(slope(x))
        return KnownAnswer(
            problem.agents,
            problem.dimension,
            problem.samples,
            float(whole(x)),
            float(last @ last / (first @ first)),
            float(eigenvalues[0]),
            float(eigenvalues[-1]),
            float(np.abs(np.linalg.eigvalsh(hessians - mean)).max() / eigenvalues[-1]),
            float(min(0.0, np.linalg.eigvalsh(np.concatenate([begin, hessians])).min())),
        )


def _functions(problem: Problem, unravel: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Return x -> (N,) the f_i(x) of a flat model."""
    functions, everything = Functions.of(problem), arrays(problem)

    def each(x: Array) -> Array:
        return jax.vmap(lambda one: local_objective(functions, one).value(Vector(unravel(x))))(everything)

    return each


def main() -> None:
    facts = {name: find(make(name))._asdict() for name in PROBLEMS}
    with replace_file(Path(str(files("fedpd.suite").joinpath(FILE)))) as file:
        file.write((json.dumps(facts, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
