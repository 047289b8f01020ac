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

from fedpd.base.checks import at_least, count
from fedpd.core import Array, Exchange, Gradient, Key, LocalObjective, Method, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import choose

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


class Giant(Method):
    """GIANT: three exchanges per round, for the gradient, the direction and its length."""

    iterations: int
    damping: float
    needs_everyone = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, jnp.zeros(LENGTHS + 1))

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x, 0 * x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (
            Exchange(self.differentiate, self.send, lambda at, g, share: (at._replace(g=g), g), self.hear_mean),
            Exchange(self.invert, self.send, lambda at, p, share: (at._replace(p=p), p), self.hear_mean),
            Exchange(self.search, lambda agent: agent.values, self.move, lambda agent, x: agent._replace(x=x)),
        )

    def differentiate(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return agent._replace(own=f.gradient(agent.x)), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def invert(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        steps = f.steps(self.iterations)

        def product(d: Vector) -> Vector:
            return jax.jvp(f.gradient, (agent.x,), (d,))[1] + self.damping * d

        p = conjugate_gradients(product, agent.mean, steps)
        return agent._replace(own=p), Work.of(steps, steps, f.size)

    def send(self, agent: Agent) -> Gradient:
        return Gradient(agent.own)

    def hear_mean(self, agent: Agent, mean: Vector) -> Agent:
        return agent._replace(mean=mean)

    def search(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lengths = jnp.append(0.0, 4.0 ** -jnp.arange(LENGTHS))
        values = lax.map(lambda t: f.value(agent.x - t * agent.mean), lengths)
        return agent._replace(values=values), Work(jnp.int32(0), jnp.int32(0))

    def move(self, server: Server, values: Array, share: Any) -> tuple[Server, Vector]:
        lengths = 4.0 ** -jnp.arange(LENGTHS)
        enough = values[1:] <= values[0] - DECREASE * lengths * (server.g @ server.p)
        first = jnp.argmax(enough)  # the first that is enough
        x = server.x - jnp.where(enough.any(), lengths[first], lengths[-1]) * server.p
        return server._replace(x=x), x


@makes(Giant)
def giant(*, iterations: int, damping: float = 0.0) -> Method:
    """Return GIANT with Q = `iterations` conjugate gradient steps per agent, on Hessians plus damping I."""
    count("iterations", iterations, "Give the conjugate gradient steps of an agent, e.g. 20", bits=31)
    at_least("damping", damping, 0, "0 is the paper's; a singular Hessian of an agent needs a positive number")
    return Giant(iterations=iterations, damping=damping)


class _Search(NamedTuple):
    p: Vector
    residual: Vector  # b - A p
    d: Vector
    goes_on: Array


def conjugate_gradients(product: Any, b: Vector, steps: Any) -> Vector:
    """Return p with A p = b approximately; b itself where the first direction has no positive curvature.

    Args:
        product: d -> A d.
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


CARD = Card.single(
    title="GIANT",
    summary="the mean of local Newton steps",
    family="Newton-type",
    authors="Shusen Wang, Farbod Roosta-Khorasani, Peng Xu, Michael W. Mahoney",
    paper="GIANT: Globally Improved Approximate Newton Method for Distributed Optimization",
    venue="Advances in Neural Information Processing Systems 31 (NeurIPS 2018); arXiv:1709.03528",
    year=2018,
    rule=lambda L, agents, scale: giant(iterations=20, damping=0.01 * L / scale),
    guarantee=Guarantee("SC, samples at random; not confirmed"),
    only_models=False,
    parameters={
        "iterations": "Q, the conjugate gradient steps of an agent",
        "damping": "what is added to the diagonal of the Hessians",
    },
)
