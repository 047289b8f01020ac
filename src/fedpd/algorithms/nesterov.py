"""Nesterov's accelerated gradient method with adaptive restart (Nesterov, 1983; O'Donoghue and Candès, 2015).

    x+ = y - step grad f(y)
    if <grad f(y), x+ - x> > 0:  t = 1 and y = x+                             the momentum points uphill: restart
    otherwise  t+ = (1 + sqrt(1 + 4 t^2))/2,  y = x+ + (t - 1)/t+ (x+ - x)

The model of a run is y, the point that agents hold. Agents send grad f_i(y) (not CTA), the server sends y. It needs all
agents in every communication: the momentum of one subset's gradients misleads another. restart=False never restarts.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._server_steps import ServerSteps
from fedpd.base.checks import positive
from fedpd.core import Array, Method, Vector, makes
from fedpd.core.card import Card, Guarantee


class Server(NamedTuple):
    x: Vector
    y: Vector
    t: Array


class Nesterov(ServerSteps):
    """Nesterov's method at the server."""

    step: float
    restart: bool

    def server(self, x: Vector) -> Server:
        return Server(x, x, jnp.ones(()))

    def aggregate(self, server: Server, gradient: Vector, share: Any) -> tuple[Server, Vector]:
        x = server.y - jnp.asarray(self.step) * gradient
        moved = x - server.x
        grown = (1 + jnp.sqrt(1 + 4 * server.t**2)) / 2
        momentum = (server.t - 1) / grown
        if self.restart:
            uphill = gradient @ moved > 0
            grown, momentum = jnp.where(uphill, 1, grown), jnp.where(uphill, 0, momentum)
        server = Server(x, x + momentum * moved, grown)
        return server, server.y


@makes(Nesterov)
def nesterov(*, step: float, restart: bool = True) -> Method:
    """Return Nesterov's method with a constant step, restarted where the momentum points uphill."""
    positive("step", step, "A safe step is 1/L, L the smoothness of f")
    return Nesterov(step=step, restart=restart)


CARD = Card.single(
    title="Nesterov",
    summary="gradient descent with momentum and restarts",
    family="steps at the server",
    authors="Brendan O'Donoghue, Emmanuel Candès",
    paper="Adaptive Restart for Accelerated Gradient Schemes",
    venue="Foundations of Computational Mathematics 15, 715-732; arXiv:1204.3982",
    year=2015,
    rule=lambda L, agents, scale: nesterov(step=scale / L),
    guarantee=Guarantee("C, without restart", "1/sqrt(f - f*)", "1/sqrt(f - f*)", "M/sqrt(f - f*)"),
    only_models=False,
    parameters={"step": "the step size", "restart": "whether momentum is dropped where it points uphill"},
)
