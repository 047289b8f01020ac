"""The common parts of methods whose server takes the mean change of the local models as a gradient (Reddi et al.).

    x_i   = oracle(f_i), from x
    Delta = mean_S x_i - x
    m     = beta1 m + (1 - beta1) Delta,        m = 0 at the start
    v     = second_moment(v, Delta^2),          v = `initial` at the start
    x     = x + step m / (sqrt(v) + tau)

There is no correction of the bias of m and v, in which it differs from `optax.adam` as the server's optimiser.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.algorithms._averaging import LocalAveraging
from fedpd.base.checks import at_least, below, positive
from fedpd.core import Oracle, Vector, check_oracle
from fedpd.core.card import Reference

SERVER_STEP = "Start with 0.01: each coordinate of the model moves by about this much per round"
PARAMETERS = {
    "step": "the server's step size: about how far each coordinate of the model moves per round",
    "beta1": "β₁ in [0, 1), the part of m that the server keeps in a round",
    "beta2": "β₂ in [0, 1), the part of v that the server keeps in a round",
    "tau": "τ > 0; a larger τ adapts less to the size of each coordinate",
    "initial": "v before the first round, at least 0; `None`: τ², as in the paper",
}
REFERENCE = Reference(
    authors=(
        "Sashank J. Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar, "
        "H. Brendan McMahan"
    ),
    title="Adaptive Federated Optimization",
    venue="9th International Conference on Learning Representations (ICLR 2021); arXiv:2003.00295",
    year=2021,
)


class Server(NamedTuple):
    x: Vector
    m: Vector
    v: Vector


class AdaptiveServer(LocalAveraging):
    """Local steps, and the step of an adaptive optimiser at the server. Subclasses have `second_moment`."""

    oracle: Oracle
    step: float
    beta1: float
    tau: float
    initial: float | None
    repeats = False  # m and v are sums of what agents sent
    model_first = True

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return the next v from Delta^2."""
        self.needs("second_moment(self, v, square)")

    def server(self, x: Vector) -> Server:
        initial = self.tau**2 if self.initial is None else self.initial
        return Server(x, 0 * x, jax.tree.map(lambda leaf: jnp.full_like(leaf, initial), x))

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        delta = mean - server.x
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.second_moment(server.v, delta * delta)
        x = server.x + self.step * m / (jax.tree.map(jnp.sqrt, v) + self.tau)
        return Server(x, m, v), x


def check_adaptive(oracle: Oracle, step: float, tau: float, initial: float | None, **betas: float) -> None:
    """Refuse settings that do not fit."""
    check_oracle(oracle)
    positive("step", step, SERVER_STEP)
    positive("tau", tau, "Give e.g. 1e-3; the smaller tau is, the more the step adapts to each coordinate")
    for name, beta in betas.items():
        check_decay(name, beta)
    if initial is not None:
        at_least("initial", initial, 0, "It is v before the first round. Leave it out for tau^2, as in the paper")


def check_decay(name: str, value: float) -> None:
    """Refuse the part of a running mean or momentum that is not in [0, 1)."""
    below(name, at_least(name, value, 0, "0 keeps nothing of earlier rounds"), 1, "Give e.g. 0.9")
