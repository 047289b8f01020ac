"""The answers of the suite's problems: f* and the curvature at the minimum, computed once and kept in a file.

`python -m fedpd.suite.answers` computes them anew, by a trust-region Newton method on f with exact Hessians, and writes
the file. A minimum of a non-convex problem is the one that this method reaches from the problem's start.
"""

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

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
from fedpd.suite.problems import PROBLEMS, make

FILE = "answers.json"


class KnownAnswer(NamedTuple):
    """Known facts about a problem of the suite."""

    agents: int  # N
    dimension: int  # d
    samples: int  # M, all samples
    value: float  # f*, the value at the minimum
    stationarity: float  # ||grad f||^2 at the minimum that was found, relative to the start's
    smallest: float  # the smallest eigenvalue of the mean Hessian at the minimum
    largest: float  # the largest eigenvalue there
    dissimilarity: float  # max_i ||H_i - H|| there, relative to the largest eigenvalue
    negative: float  # the smallest eigenvalue of any H_i at the start or at the minimum, if it is negative; 0 otherwise

    @property
    def condition(self) -> float:
        """The condition number of the mean Hessian at the minimum; infinite where minima are not isolated."""
        return self.largest / self.smallest if self.smallest > 1e-12 * self.largest else np.inf


@cache
def known() -> dict[str, KnownAnswer]:
    """Return the facts of all problems, from the file."""
    read = json.loads(files("fedpd.suite").joinpath(FILE).read_text(encoding="utf-8"))
    return {name: KnownAnswer(**facts) for name, facts in read.items()}


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
