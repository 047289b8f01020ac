"""SCAFCOM (Huang, Li, Li, 2023): SCAFFOLD with one compressed vector per message and momentum, for any compressor.

    y_i = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    v_i = (1 - beta) v_i + beta ((x - y_i)/(Q step) + c_i - c)
    q_i = C(v_i - c_i),   c_i = c_i + q_i
    x   = x - server_step Q step (c + mean_S q_i),   c = c + (|S|/N) mean_S q_i

C is the compressor of `transforms.wrap(..., up=...)`, e.g. `top_k`; without it, agents send the vector as it is. The
momentum keeps the noise of stochastic gradients out of c_i. Agents send one vector (not CTA), the server sends x and c.
Absent agents keep c_i and v_i. With beta = 1 it is SCALLION with alpha = 1.
"""

from typing import ClassVar

from fedpd.algorithms._controlled_averaging import AUTHORS, NO_EPOCHS, TITLE, VENUE, ControlledAveraging, check_settings
from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_most, positive
from fedpd.core import Difference, Method, makes
from fedpd.core.card import Card, Guarantee, Reference


class Scafcom(ControlledAveraging):
    """SCAFFOLD with momentum and any compression."""

    beta: float
    kind: ClassVar = Difference

    @property
    def momentum(self) -> float:
        return self.beta


@makes(Scafcom)
def scafcom(
    *,
    step: float,
    iterations: int | None = None,
    batch: int | None = None,
    beta: float = 1.0,
    server_step: float = 1.0,
    epochs: int | None = None,
) -> Method:
    """Return SCAFCOM with Q = `iterations` local steps."""
    remedy = "Give the weight of the newest gradient, e.g. 0.2; 1 is no momentum"
    at_most("beta", positive("beta", beta, remedy), 1, remedy)
    steps = check_settings(step, iterations, batch, server_step, epochs)
    return Scafcom(step=step, iterations=steps, batch=batch, beta=beta, server_step=server_step)


CARD = Card.single(
    title="SCAFCOM",
    summary="SCAFFOLD with one vector, any compression",
    family="corrected gradients",
    reference=Reference(authors=AUTHORS, title=TITLE, venue=VENUE, year=2024),
    rule=lambda L, agents, scale: scafcom(step=scale / (24 * L * Q), iterations=Q, beta=0.5),
    guarantee=Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    only_models=False,
    parameters={"beta": "β, the weight of the newest gradient, in (0, 1]; 1: no momentum", "epochs": NO_EPOCHS},
)
