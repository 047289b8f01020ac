"""SCALLION (Huang, Li, Li, 2023): SCAFFOLD with one compressed vector per message, for unbiased compressors.

    y_i = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    q_i = C(alpha ((x - y_i)/(Q step) - c)),   c_i = c_i + q_i
    x   = x - server_step Q step (c + mean_S q_i),   c = c + (|S|/N) mean_S q_i

C is the compressor of `transforms.wrap(..., up=...)`; without it, agents send the vector as it is. C must be unbiased.
If the variance of C(v) is omega ||v||^2, alpha = 1/(1 + omega) keeps c_i from overshooting. Agents send one vector (not
CTA), the server sends x and c. Absent agents keep c_i. Without compression and with alpha = 1, it is SCAFFOLD with
option 2.
"""

from typing import ClassVar

from fedpd.algorithms._rules import Q
from fedpd.algorithms.scafcom import NO_EPOCHS, REFERENCE, ControlledAveraging, check_settings
from fedpd.base.checks import at_most, positive
from fedpd.core import Method, Unbiased, makes
from fedpd.core.card import Card, Guarantee


class Scallion(ControlledAveraging):
    """SCAFFOLD with unbiased compression."""

    alpha: float
    kind: ClassVar = Unbiased

    @property
    def scale(self) -> float:
        return self.alpha


@makes(Scallion)
def scallion(
    *,
    step: float,
    iterations: int | None = None,
    batch: int | None = None,
    alpha: float = 1.0,
    server_step: float = 1.0,
    epochs: int | None = None,
) -> Method:
    """Return SCALLION with Q = `iterations` local steps."""
    remedy = "Give 1/(1 + omega), where omega is the variance of the compressor; 1 without compression"
    at_most("alpha", positive("alpha", alpha, remedy), 1, remedy)
    steps = check_settings(step, iterations, batch, server_step, epochs)
    return Scallion(step=step, iterations=steps, batch=batch, alpha=alpha, server_step=server_step)


CARD = Card.single(
    title="SCALLION",
    summary="SCAFFOLD with one vector, unbiased compression",
    family="corrected gradients",
    reference=REFERENCE,
    rule=lambda L, agents, scale: scallion(step=scale / (24 * L * Q), iterations=Q),
    guarantee=Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    only_models=False,
    parameters={
        "alpha": "α, the factor of the change before it is compressed; 1/(1 + ω) for a compressor of variance ω",
        "epochs": NO_EPOCHS,
    },
)
