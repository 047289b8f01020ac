"""Distributed gradient descent: the mean of the agents' gradients, one step at the server.

    x = x - step mean_S grad f_i(x)

Agents send gradients (not CTA), the server sends x. With partial participation the mean is over those present, so that
it stops at an error floor. It is FedAvg with one local step.
"""

import jax.numpy as jnp
from tree_math import Vector

from fedpd.algorithms._server_steps import server_steps
from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant


@specified
def gradient_descent(*, step: float) -> Algorithm:
    """Return gradient descent with a constant step."""
    positive("step", step, "A safe step is 1/L, L the smoothness of f")

    def descend(x: Vector, value: Array, gradient: Vector) -> tuple[Vector, Vector]:
        x = x - jnp.asarray(step) * gradient
        return x, x

    return server_steps(lambda x: x, descend, everyone=False)


CARD = Card(
    title="Gradient descent",
    summary="one gradient per communication, fixed step",
    family="steps at the server",
    reference=Reference(
        authors="Augustin-Louis Cauchy",
        title="Méthode générale pour la résolution des systèmes d'équations simultanées",
        venue="Comptes rendus hebdomadaires des séances de l'Académie des sciences 25, 536-538",
        year=1847,
        checked=(
            "A translation of the paper (scribd.com/document/350937485/1847-Cauchy-M) confirms the author, the "
            "title, the journal, the volume, the pages and the year."
        ),
    ),
    variants=(
        Variant(
            "Gradient descent",
            lambda L, agents, scale: gradient_descent(step=scale / L),
            Guarantee("NC (SC of condition k: k log(1/e))", "1/e", "1/e", "M/e"),
            only_models=False,
        ),
    ),
    parameters={"step": "the step size"},
    theory_checked="Both rates are textbook results for the step 1/L; they were not looked up.",
    equations_checked="There is one equation.",
)
