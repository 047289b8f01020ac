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

from fedpd.algorithms._adaptive_server import PARAMETERS, REFERENCE, AdaptiveServer, check_adaptive
from fedpd.algorithms._rules import fedavg_steps
from fedpd.core import Method, Oracle, Vector, makes
from fedpd.core.card import Card, Guarantee


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
