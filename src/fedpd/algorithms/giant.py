"""GIANT (Wang, Roosta-Khorasani, Xu, Mahoney, 2018): the mean of the agents' own Newton directions.

    g   = mean grad f_i(x)                                                             first exchange
    p_i = (H_i + damping I)^-1 g by Q = `iterations` conjugate gradient steps,  p = mean p_i      second exchange
    x   = x - t p,  t the first of 1, 1/4, ..., 4^-9 with mean f_i(x - t p) <= f(x) - t <g, p>/10     third exchange

H_i is the Hessian of f_i at x. In the third exchange agents send eleven values of f_i instead of a model. A direction
without positive curvature ends an agent's conjugate gradient steps. A product with H_i counts as one gradient of all
samples; values of f_i do not count as gradients. It needs all agents. Not CTA: gradients and directions are sent.
Differences from the paper: `damping`, since an agent's own Hessian may be singular (0 is the paper's); if no t
decreases f enough, the smallest is taken. The mean of inverses is not the inverse of the mean: where Hessians differ,
directions stay off.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.algorithms._server_steps import choose
from fedpd.base.checks import at_least, count
from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant

LENGTHS = 10  # step lengths 4^0 to 4^-9
DECREASE = 0.1


class Agent(NamedTuple):
    x: Vector
    own: Vector  # grad f_i(x), then p_i
    mean: Vector  # grad f(x), then p
    values: Array  # f_i at x and along p


class Server(NamedTuple):
    x: Vector
    g: Vector
    p: Vector


@specified
def giant(*, iterations: int, damping: float = 0.0) -> Algorithm:
    """Return GIANT with Q = `iterations` conjugate gradient steps per agent, on Hessians plus damping I."""
    count("iterations", iterations, "Give the conjugate gradient steps of an agent, e.g. 20", bits=31)
    at_least("damping", damping, 0, "0 is the paper's; a singular Hessian of an agent needs a positive number")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, jnp.zeros(LENGTHS + 1))

    def start(x: Vector) -> Server:
        return Server(x, 0 * x, 0 * x)

    def differentiate(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return agent._replace(own=f.gradient(agent.x)), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def invert(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        steps = f.steps(iterations)

        def product(d: Vector) -> Vector:
            return jax.jvp(f.gradient, (agent.x,), (d,))[1] + damping * d

        p = conjugate_gradients(product, agent.mean, steps)
        return agent._replace(own=p), Work.of(steps, steps, f.size)

    def search(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lengths = jnp.append(0.0, 4.0 ** -jnp.arange(LENGTHS))
        values = lax.map(lambda t: f.value(agent.x - t * agent.mean), lengths)
        return agent._replace(values=values), Work(jnp.int32(0), jnp.int32(0))

    def gradient_mean(server: Server, g: Vector, share: Any) -> tuple[Server, Vector]:
        return server._replace(g=g), g

    def direction_mean(server: Server, p: Vector, share: Any) -> tuple[Server, Vector]:
        return server._replace(p=p), p

    def move(server: Server, values: Array, share: Any) -> tuple[Server, Vector]:
        lengths = 4.0 ** -jnp.arange(LENGTHS)
        enough = values[1:] <= values[0] - DECREASE * lengths * (server.g @ server.p)
        first = jnp.argmax(enough)  # the first that is enough
        x = server.x - jnp.where(enough.any(), lengths[first], lengths[-1]) * server.p
        return server._replace(x=x), x

    def keep(agent: Agent, mean: Vector) -> Agent:
        return agent._replace(mean=mean)

    exchanges = (
        Exchange(differentiate, lambda agent: agent.own, gradient_mean, keep, sends="gradient"),
        Exchange(invert, lambda agent: agent.own, direction_mean, keep, sends="gradient"),
        Exchange(search, lambda agent: agent.values, move, lambda agent, x: agent._replace(x=x), sends=(None,)),
    )
    return Algorithm("giant", init, start, exchanges, lambda agent: agent.x, away=Away(everyone=True))


class _Search(NamedTuple):
    p: Vector
    residual: Vector  # b - A p
    d: Vector
    goes_on: Array


def conjugate_gradients(product: Any, b: Vector, steps: Any) -> Vector:
    """Return p with A p = b approximately; b itself where the first direction has no positive curvature.

    Args:
        product: d -> A d.
        b: The right-hand side.
        steps: The number of steps; fewer are taken where a direction has no positive curvature or nothing is left.
    """
    tiny = jnp.finfo((b @ b).dtype).eps

    def step(q: Array, at: _Search) -> _Search:
        product_d, before = product(at.d), at.residual @ at.residual
        curvature = at.d @ product_d
        curved = curvature > tiny * (at.d @ at.d)
        length = before / jnp.where(curved, curvature, 1)
        residual = at.residual - length * product_d
        after = residual @ residual
        d = residual + after / jnp.where(before > 0, before, 1) * at.d
        new = _Search(at.p + length * at.d, residual, d, after > tiny**2 * (b @ b))
        stopped = at._replace(p=choose(q == 0, b, at.p), goes_on=jnp.bool_(False))
        return choose(at.goes_on, choose(curved, new, stopped), at)

    return lax.fori_loop(0, steps, step, _Search(0 * b, b, b, b @ b > 0)).p


CARD = Card(
    title="GIANT",
    summary="the mean of local Newton steps",
    family="Newton-type",
    reference=Reference(
        authors="Shusen Wang, Farbod Roosta-Khorasani, Peng Xu, Michael W. Mahoney",
        title="GIANT: Globally Improved Approximate Newton Method for Distributed Optimization",
        venue="Advances in Neural Information Processing Systems 31 (NeurIPS 2018); arXiv:1709.03528",
        year=2018,
        checked=(
            "The conference's page (neurips.cc/virtual/2018/poster/11243) and tomesphere.com/paper/1709.03528 confirm "
            "the authors, the title, the venue, the year and the preprint."
        ),
    ),
    variants=(
        Variant(
            "GIANT",
            lambda L, agents, scale: giant(iterations=20, damping=0.01 * L / scale),
            Guarantee("SC, samples at random; not confirmed"),
            only_models=False,
        ),
    ),
    parameters={
        "iterations": "Q, the conjugate gradient steps of an agent",
        "damping": "what is added to the diagonal of the Hessians",
    },
    theory_checked=(
        "The abstract confirms a better rate than first-order methods and that more local computation saves rounds; "
        "the rate and its assumptions were not confirmed by public material at hand."
    ),
    equations_checked=(
        "The mean gradient, local conjugate gradients, the mean direction and the constant 0.1 of the line "
        "search agree with a public Spark program (package distopt.logistic.Giant); the candidates 4^-k of the "
        "step were not confirmed."
    ),
)
