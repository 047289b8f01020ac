"""The code that examples/own_code.toml names: a loader, a loss and a method of your own.

    fedpd run examples/own_code.toml

fedpd looks for this module beside the experiment file, and says which code it is about to run. Your method may take any
argument that the file gives it, such as an oracle.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Oracle, Subproblem, Tree, Work


def load(hospitals: int = 3, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return the samples of each hospital, {"x": (n_i, 2), "y": (n_i,)}. Hospitals differ in size and in their mean."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(hospitals):
        x = rng.normal(i, 1.0, (20 + 10 * i, 2))
        found.append({"x": x, "y": x @ np.array([1.0, -2.0]) + rng.normal(0, 0.1, len(x))})
    return found


def losses(model: Array, batch: Tree) -> Array:
    """Return the pseudo-Huber loss of each sample: quadratic near 0, linear far away."""
    return jnp.sqrt(1 + (batch["x"] @ model - batch["y"]) ** 2) - 1


def averaging(oracle: Oracle, server_step: float = 1.0) -> Algorithm:
    """Return federated averaging whose server goes `server_step` of the way to the mean of the agents' models."""

    def local(f: LocalObjective, x: Vector, r: Array, key: Key) -> tuple[Vector, Work]:
        x, _, work = oracle.solve(Subproblem(f), x, oracle.init(f, x), r, key)
        return x, work

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        new = server + server_step * (mean - server)
        return new, new

    return Algorithm(
        "averaging",
        init=lambda f, x: x,
        server=lambda x: x,
        exchanges=(Exchange(local, lambda x: x, aggregate, lambda x, broadcast: broadcast),),
        model=lambda x: x,
    )
