"""Distributed Newton-CG: conjugate gradients at the server, one communication per product with the Hessian.

    outer   agents send f_i(z) and grad f_i(z) at z = x + t p; the server accepts z as x, or shortens t (Armijo)
    inner   H p = -grad f(x) by conjugate gradients: the server sends d, agents send H_i d, H_i the Hessian of f_i at x,
            until ||H p + grad f(x)|| <= min(1/2, forcing sqrt(||grad f(x)||/||grad f(x^0)||)) ||grad f(x)||,
            d has no positive curvature, or after Q = `iterations` products

One exchange per round: a round is either an outer or an inner one, and each is a communication. Agents send one model
and a number; the server sends z and d, since the newest message has to say all that an agent needs. A direction without
positive curvature ends the inner iteration at its last p, or at -grad f(x) if it is the first. A product H_i d counts
as one gradient of all samples: a difference of gradients would give it for that. It needs all agents in every
communication. Not CTA: gradients and products are sent.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedpd.algorithms._server_steps import Trial
from fedpd.base.checks import count, positive
from fedpd.core import Array, Key, LocalObjective, Method, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import choose


class Agent(NamedTuple):
    x: Vector
    d: Vector
    inner: Array  # whether the server asks for a product with d
    value: Array  # f_i(x)
    reply: Vector  # grad f_i(x), or H_i d


class Server(NamedTuple):
    trial: Trial
    inner: Array  # whether agents answer with a product
    p: Vector
    residual: Vector  # H p + grad f(x)
    d: Vector
    products: Array  # so far, for this x
    first: Array  # ||grad f(x^0)||


class Question(NamedTuple):
    x: Vector
    d: Vector
    inner: Array


class NewtonCG(Method):
    """Newton's method with conjugate gradients at the server."""

    iterations: int
    forcing: float
    needs_everyone = True
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.bool_(False), jnp.zeros(()), 0 * x)

    def server(self, x: Vector) -> Server:
        trial = Trial(x, jnp.asarray(jnp.inf), 0 * x, 0 * x, jnp.ones(()))
        return Server(trial, jnp.bool_(False), 0 * x, 0 * x, 0 * x, jnp.int32(0), jnp.ones(()))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        def product() -> tuple[Array, Vector]:
            return agent.value, jax.jvp(f.gradient, (agent.x,), (agent.d,))[1]

        value, reply = lax.cond(agent.inner, product, lambda: f.value_and_gradient(agent.x))
        return agent._replace(value=value, reply=reply), Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def send(self, agent: Agent) -> tuple[Array, Vector]:
        return agent.value, agent.reply

    def aggregate(self, server: Server, mean: tuple[Array, Vector], share: Any) -> tuple[Server, Question]:
        value, reply = mean
        server = choose(server.inner, self._multiplied(server, reply), _evaluated(server, value, reply))
        return server, Question(server.trial.point, server.d, server.inner)

    def _multiplied(self, server: Server, product: Vector) -> Server:
        """Return the server after the product of the mean Hessian with d."""
        gradient, d = server.trial.gradient, server.d
        size, before = jnp.sqrt(gradient @ gradient), server.residual @ server.residual
        curvature = d @ product
        curved = curvature > jnp.finfo(curvature.dtype).eps * (d @ d)
        step = before / jnp.where(curved, curvature, 1)
        p, residual = server.p + step * d, server.residual + step * product
        after = residual @ residual
        small = jnp.sqrt(after) <= jnp.minimum(0.5, self.forcing * jnp.sqrt(size / server.first)) * size
        known = choose(server.products == 0, -1.0 * gradient, server.p)
        direction = choose(curved, p, known)
        ends = small | ~curved | (server.products + 1 >= self.iterations)
        onward = -1.0 * residual + after / jnp.where(before > 0, before, 1) * d
        trial = server.trial._replace(direction=choose(ends, direction, server.trial.direction))
        return Server(trial, ~ends, p, residual, onward, server.products + 1, server.first)

    def receive(self, agent: Agent, question: Question) -> Agent:
        return agent._replace(x=question.x, d=question.d, inner=question.inner)


def _evaluated(server: Server, value: Array, gradient: Vector) -> Server:
    """Return the server after f and its gradient at the point that was tried."""
    trial, size = server.trial, jnp.sqrt(gradient @ gradient)
    here = Trial(trial.point, value, gradient, 0 * gradient, jnp.ones(()))
    first = jnp.where(jnp.isinf(trial.value), size, server.first)
    begun = Server(here, jnp.bool_(True), 0 * gradient, gradient, -1.0 * gradient, jnp.int32(0), first)
    return choose(trial.is_enough(value, trial.value), begun, server._replace(trial=trial.shorter(value)))


@makes(NewtonCG)
def newton_cg(*, iterations: int = 100, forcing: float = 1.0) -> Method:
    """Return Newton's method with at most Q = `iterations` products with the Hessian per step."""
    count("iterations", iterations, "Give the products with the Hessian per step, at most, e.g. 100", bits=31)
    positive("forcing", forcing, "The smaller, the more exact are the Newton steps; 1 is usual")
    return NewtonCG(iterations=iterations, forcing=forcing)


CARD = Card.single(
    title="Newton-CG",
    summary="Newton steps, one Hessian product per communication",
    family="Newton-type",
    authors="Ron S. Dembo, Stanley C. Eisenstat, Trond Steihaug",
    paper="Inexact Newton Methods",
    venue="SIAM Journal on Numerical Analysis 19, 400-408",
    year=1982,
    rule=lambda L, agents, scale: newton_cg(forcing=1 / scale),
    guarantee=Guarantee("SC, near the minimum: superlinear in Newton steps"),
    only_models=False,
    parameters={
        "iterations": "Q, the most products with the Hessian per Newton step",
        "forcing": "how exact the Newton steps are; smaller is more exact",
    },
)
