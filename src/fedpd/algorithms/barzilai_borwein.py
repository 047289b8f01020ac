"""Barzilai-Borwein at the server (1988), globalised by Raydan (1997): the step follows from two gradients.

    s = x - x_before,  y = grad f(x) - grad f(x_before)
    step = <s, s>/<s, y>  (rule="long")   or   <s, y>/<y, y>  (rule="short")     the last step where <s, y> <= 0
    z = x - t step grad f(x), t = 1;  accepted if f(z) <= max of the last W values - 1e-4 t step ||grad f(x)||^2,
    otherwise t = the minimum of a parabola, between t/10 and t/2

f need not decrease in every step, only compared with the largest of the last W = `window` accepted values. The first
step has the length `first`. A point that is refused has cost a communication. Agents send a gradient and one number
(not CTA), the server sends z. It needs all agents in every communication.
"""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._server_steps import LineSearch, Trial
from fedpd.base.checks import choice, count, positive
from fedpd.core import Array, Method, Vector, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import choose


class Server(NamedTuple):
    trial: Trial
    values: Array  # (W,) the last accepted values of f, -infinity where there are fewer
    step: Array


class BarzilaiBorwein(LineSearch):
    """The Barzilai-Borwein method with a nonmonotone line search."""

    rule: Literal["long", "short"]
    window: int
    first: float

    def server(self, x: Vector) -> Server:
        trial = Trial(x, jnp.asarray(jnp.inf), 0 * x, 0 * x, jnp.ones(()))
        return Server(trial, jnp.full(self.window, -jnp.inf), jnp.zeros(()))

    def aggregate(self, server: Server, mean: tuple[Array, Vector], share: Any) -> tuple[Server, Vector]:
        value, gradient = mean
        trial, tried = server.trial, server.trial.point
        begins = jnp.isinf(trial.value)  # at x^0 there is nothing to compare with
        s, y = tried - trial.x, gradient - trial.gradient
        product = s @ y
        curved = product > 0
        if self.rule == "long":
            spectral = (s @ s) / jnp.where(curved, product, 1)
        else:
            spectral = product / jnp.maximum(y @ y, 1e-300)
        length = jnp.sqrt(gradient @ gradient)
        steepest = self.first / jnp.where(length > 0, length, 1)
        chosen = jnp.where(begins, steepest, jnp.where(curved, spectral, server.step))
        values = jnp.roll(server.values, 1).at[0].set(value)
        onward = Server(Trial(tried, value, gradient, -chosen * gradient, jnp.ones(())), values, chosen)
        back = server._replace(trial=trial.shorter(value))
        server = choose(begins | trial.is_enough(value, jnp.max(server.values)), onward, back)
        return server, server.trial.point


@makes(BarzilaiBorwein)
def barzilai_borwein(*, rule: Literal["long", "short"] = "long", window: int = 10, first: float = 1.0) -> Method:
    """Return the Barzilai-Borwein method with a nonmonotone line search over the last `window` values."""
    choice("rule", rule, ("long", "short"))
    count("window", window, "Give how many accepted values a new one is compared with, e.g. 10")
    positive("first", first, "The length of the first step, e.g. 1")
    return BarzilaiBorwein(rule=rule, window=window, first=first)


CARD = Card.single(
    title="Barzilai-Borwein",
    summary="gradient descent with a step from two gradients",
    family="steps at the server",
    authors="Jonathan Barzilai, Jonathan M. Borwein",
    paper="Two-Point Step Size Gradient Methods",
    venue="IMA Journal of Numerical Analysis 8, 141-148",
    year=1988,
    rule=lambda L, agents, scale: barzilai_borwein(first=scale),
    guarantee=Guarantee("NC: every limit point is stationary"),
    only_models=False,
    parameters={
        "rule": '`"long"` or `"short"`, which of the two steps is taken',
        "window": "W, the accepted values that a new one is compared with",
        "first": "the length of the first step",
    },
)
