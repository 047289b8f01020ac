"""FedYogi (Reddi et al., 2021, Algorithm 2): local steps, and a step of Yogi at the server.

    x_i   = oracle(f_i), from x
    Delta = mean_S x_i - x
    m     = beta1 m + (1 - beta1) Delta
    v     = v - (1 - beta2) Delta^2 sign(v - Delta^2)
    x     = x + step m / (sqrt(v) + tau)

v moves by at most (1 - beta2) Delta^2 in a round. So one large change does not vanish from v as fast as in FedAdam.
Agents send x_i, the server sends x: one model each way (CTA). m = 0 and v = tau^2 at the start. Like FedAvg, it stops
at an error floor on heterogeneous data.

Differences from the paper: any oracle may take the local steps. The mean is plain; `transforms.weighted` weighs it by
the agents' numbers of samples, as Flower does. `optax.yogi` corrects the bias of m and v, this
method does not. Flower's FedYogi starts v at 0, which is `initial=0.0`.
"""

import jax
import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedadam import PARAMETERS, REFERENCE, AdaptiveServer, check_adaptive
from fedpd.core import Method, Oracle, Vector, makes
from fedpd.core.card import Card, Guarantee


class FedYogi(AdaptiveServer):
    """Yogi at the server, without bias correction."""

    beta2: float

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        return v - (1 - self.beta2) * square * jax.tree.map(jnp.sign, v - square)


@makes(FedYogi)
def fedyogi(
    *,
    oracle: Oracle,
    step: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    tau: float = 1e-8,
    initial: float | None = None,
) -> Method:
    """Return FedYogi, with a local oracle that works on f_i itself."""
    check_adaptive(oracle, step, tau, initial, beta1=beta1, beta2=beta2)
    return FedYogi(oracle=oracle, step=step, beta1=beta1, beta2=beta2, tau=tau, initial=initial)


CARD = Card.single(
    title="FedYogi",
    summary="local steps, then a step of Yogi at the server",
    family="averaging",
    reference=REFERENCE,
    rule=lambda L, agents, scale: fedyogi(oracle=fedavg_steps(L, 1.0), step=0.01 * scale),  # as for FedAdam
    guarantee=Guarantee("NC, BG, bounded variance"),
    parameters=PARAMETERS | {"beta2": "β₂ in [0, 1): v moves by (1 - β₂) Δ² in a round"},
    search={"step": 0.01},
)
