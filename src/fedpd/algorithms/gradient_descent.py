"""Distributed gradient descent: the mean of the agents' gradients, one step at the server.

    x = x - step mean_S grad f_i(x)

Agents send gradients (not CTA), the server sends x. With partial participation the mean is over those present, so that
it stops at an error floor. It is FedAvg with one local step.
"""

from typing import Any

import jax.numpy as jnp

from fedpd.algorithms._server_steps import ServerSteps
from fedpd.base.checks import positive
from fedpd.core import Method, Vector, makes
from fedpd.core.card import Card, Guarantee


class GradientDescent(ServerSteps):
    """Gradient descent at the server, also on the gradients of some agents."""

    step: float
    needs_everyone = False

    def aggregate(self, x: Vector, gradient: Vector, share: Any) -> tuple[Vector, Vector]:
        x = x - jnp.asarray(self.step) * gradient
        return x, x


@makes(GradientDescent)
def gradient_descent(*, step: float) -> Method:
    """Return gradient descent with a constant step."""
    positive("step", step, "A safe step is 1/L, L the smoothness of f")
    return GradientDescent(step=step)


CARD = Card.single(
    title="Gradient descent",
    summary="one gradient per communication, fixed step",
    family="steps at the server",
    authors="Augustin-Louis Cauchy",
    paper="Méthode générale pour la résolution des systèmes d'équations simultanées",
    venue="Comptes rendus hebdomadaires des séances de l'Académie des sciences 25, 536-538",
    year=1847,
    rule=lambda L, agents, scale: gradient_descent(step=scale / L),
    guarantee=Guarantee("NC (SC of condition k: k log(1/e))", "1/e", "1/e", "M/e"),
    only_models=False,
    parameters={"step": "the step size"},
)
