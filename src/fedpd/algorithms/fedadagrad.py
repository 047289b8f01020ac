"""FedAdagrad (Reddi et al., 2021, Algorithm 2): local steps, and a step of Adagrad at the server.

    x_i   = oracle(f_i), from x
    Delta = mean_S x_i - x
    m     = beta1 m + (1 - beta1) Delta
    v     = v + Delta^2
    x     = x + step m / (sqrt(v) + tau)

v only grows, so that the server's steps become shorter, like 1/sqrt(r) while the changes keep their size. Agents send
x_i, the server sends x: one model each way (CTA). m = 0 and v = tau^2 at the start. The default beta1 = 0 is Adagrad
as usual, as in Flower.

Differences from the paper: any oracle may take the local steps. The mean is plain; `transforms.weighted` weighs it by
the agents' numbers of samples, as Flower does. Flower's FedAdagrad starts v at 0, which is
`initial=0.0`.
"""

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedadam import PARAMETERS, REFERENCE, AdaptiveServer, check_adaptive
from fedpd.core import Method, Oracle, Vector, makes
from fedpd.core.card import Card, Guarantee


class FedAdagrad(AdaptiveServer):
    """Adagrad at the server."""

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        return v + square


@makes(FedAdagrad)
def fedadagrad(
    *, oracle: Oracle, step: float = 0.01, beta1: float = 0.0, tau: float = 1e-8, initial: float | None = None
) -> Method:
    """Return FedAdagrad, with a local oracle that works on f_i itself."""
    check_adaptive(oracle, step, tau, initial, beta1=beta1)
    return FedAdagrad(oracle=oracle, step=step, beta1=beta1, tau=tau, initial=initial)


CARD = Card.single(
    title="FedAdagrad",
    summary="local steps, then a step of Adagrad at the server",
    family="averaging",
    reference=REFERENCE,
    # ten times FedAdam's, because v is a sum
    rule=lambda L, agents, scale: fedadagrad(oracle=fedavg_steps(L, 1.0), step=0.1 * scale),
    guarantee=Guarantee("NC, BG, bounded variance"),
    parameters={name: words for name, words in PARAMETERS.items() if name != "beta2"},
    search={"step": 0.01},
)
