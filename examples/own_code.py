"""The code that examples/own_code.toml names: a loader, a loss and a method of your own.

    fedpd run examples/own_code.toml

fedpd looks for this module beside the experiment file, and says which code it is about to run. Your method may take any
argument that the file gives it, such as an oracle.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Tree, Work


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


class Averaging(Method):
    """Federated averaging whose server goes `server_step` of the way to the mean of the agents' models."""

    oracle: Oracle
    server_step: float = 1.0

    def init(self, f: LocalObjective, x: Vector) -> Vector:
        return x

    def local(self, f: LocalObjective, x: Vector, r: Array, key: Key) -> tuple[Vector, Work]:
        x, _, work = self.oracle.solve(Subproblem(f), x, self.oracle.init(f, x), r, key)
        return x, work

    def send(self, x: Vector) -> Vector:
        return x

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        new = server + self.server_step * (mean - server)
        return new, new

    def receive(self, x: Vector, broadcast: Vector) -> Vector:
        return broadcast

    def model(self, x: Vector) -> Vector:
        return x


def averaging(oracle: Oracle, server_step: float = 1.0) -> Method:
    """Return federated averaging with a local oracle."""
    return Averaging(oracle=oracle, server_step=server_step)
