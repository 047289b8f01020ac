"""FedAdam (Reddi et al., 2021, Algorithm 2): local steps, and a step of Adam at the server.

    x_i   = oracle(f_i), from x
    Delta = mean_S x_i - x
    m     = beta1 m + (1 - beta1) Delta
    v     = beta2 v + (1 - beta2) Delta^2
    x     = x + step m / (sqrt(v) + tau)

Agents send x_i, the server sends x: one model each way (CTA). m = 0 and v = tau^2 at the start; the paper asks for
v >= tau^2. There is no bias correction, as in the paper; `optax.adam` as the server's optimiser has it. Without it the
first steps are longer: the first one is (1 - beta1)/sqrt(1 - beta2) `step` long in each coordinate, here 3.2 `step`.
The default numbers are those of Adam; those of Flower's FedAdam are step = 0.1, beta2 = 0.99 and tau = 1e-3. Like
FedAvg, it stops at an error floor on heterogeneous data.

Differences from the paper: any oracle may take the local steps. The mean is plain; `transforms.weighted` weighs it by
the agents' numbers of samples, as Flower does. Public programs differ in the start of v, which is `initial`: it is 0 in
Flower and in FL-Simulator, and tau^2 in the program of FedACG. Flower's FedAdam multiplies the step by Adam's bias
correction; the two others do not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.base.checks import at_least, below, positive
from fedpd.core import Method, Oracle, Vector, check_oracle, makes
from fedpd.core.card import Card, Guarantee, Reference

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
    """FedAdam, FedYogi and FedAdagrad, which differ in `second_moment`: v = second_moment(v, Delta^2)."""

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


class FedAdam(AdaptiveServer):
    """Adam at the server, without bias correction."""

    beta2: float

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * square


@makes(FedAdam)
def fedadam(
    *,
    oracle: Oracle,
    step: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    tau: float = 1e-8,
    initial: float | None = None,
) -> Method:
    """Return FedAdam, with a local oracle that works on f_i itself.

    Examples:
        >>> from fedpd import algorithms, oracles
        >>> algorithms.fedadam(oracle=oracles.sgd(step=0.1, iterations=8), tau=1e-3).description
        'fedadam(oracle=sgd(step=0.1, iterations=8), tau=0.001)'
    """
    check_adaptive(oracle, step, tau, initial, beta1=beta1, beta2=beta2)
    return FedAdam(oracle=oracle, step=step, beta1=beta1, beta2=beta2, tau=tau, initial=initial)


CARD = Card.single(
    title="FedAdam",
    summary="local steps, then a step of Adam at the server",
    family="averaging",
    reference=REFERENCE,
    # the server's step has no natural size in L
    rule=lambda L, agents, scale: fedadam(oracle=fedavg_steps(L, 1.0), step=0.01 * scale),
    guarantee=Guarantee("NC, BG, bounded variance"),
    parameters=PARAMETERS,
    search={"step": 0.01},
)
