"""L-BFGS at the server (Nocedal, 1980; Liu and Nocedal, 1989): one gradient per communication, nothing to tune.

    agents   send f_i(z) and grad f_i(z) at the server's point z = x + t d
    server   if f(z) <= f(x) + 1e-4 t <grad f(x), d>:
                 keep the pair (z - x, grad f(z) - grad f(x));  x = z;  d = -H grad f(x);  t = 1
             otherwise t = the minimum of a parabola, between t/10 and t/2
             send z = x + t d

H is the L-BFGS matrix of the last m = `memory` pairs. The first step has the length `first`. A point that is refused
has cost a communication. A pair counts only if `<s, y> > 1e-10 ||s|| ||y||`, so that d is a descent direction for
non-convex f too. All memory is at the server, so that it may be large: on the suite's unscaled ridge regression 5, 10,
20 and 40 pairs take more than 2000, 827, 98 and 59 communications to 1e-10. Agents send a gradient and one number (not
CTA), the server sends z. It needs all agents in every communication, since pairs of different agents' gradients say
nothing. Differences from the paper: it backtracks until f decreases enough (Armijo), where the paper asks for the Wolfe
conditions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedpd.algorithms._server_steps import LineSearch, Trial
from fedpd.base.checks import count, positive
from fedpd.core import Array, Method, Vector, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import choose

CURVED = 1e-10  # a pair counts if <s, y> exceeds this share of ||s|| ||y||


class SecantPairs(NamedTuple):
    """The last m pairs, newest last."""

    steps: Any  # the s_k, leaves (m, ...)
    changes: Any  # the y_k, leaves (m, ...)
    inverse: Array  # (m,) the 1/<s_k, y_k>; 0 where there is no pair
    scale: Array  # <s, y>/<y, y> of the newest pair; 1 before there is one


def no_pairs(x: Vector, memory: int) -> SecantPairs:
    """Return room for `memory` pairs of vectors like x."""
    room = jax.tree.map(lambda leaf: jnp.zeros((memory, *leaf.shape), leaf.dtype), x)
    number = jnp.zeros(()).dtype
    return SecantPairs(room, room, jnp.zeros(memory, number), jnp.ones((), number))


def add_pair(pairs: SecantPairs, s: Vector, y: Vector) -> SecantPairs:
    """Return the pairs with (s, y) as the newest, or as they are if the gradient did not grow along s."""
    product = s @ y
    counts = product > CURVED * jnp.sqrt((s @ s) * (y @ y))

    def shift(room: Any, new: Any) -> Any:
        return jnp.where(counts, jnp.roll(room, -1, axis=0).at[-1].set(new), room)

    safe = jnp.where(counts, product, 1)
    return SecantPairs(
        jax.tree.map(shift, pairs.steps, s),
        jax.tree.map(shift, pairs.changes, y),
        shift(pairs.inverse, 1 / safe),
        jnp.where(counts, safe / jnp.where(counts, y @ y, 1), pairs.scale),
    )


def times_inverse(pairs: SecantPairs, g: Vector) -> Vector:
    """Return H g, H the L-BFGS matrix of the pairs on top of scale * I (two-loop recursion)."""
    memory = len(pairs.inverse)

    def row(room: Any, k: Array) -> Vector:
        return jax.tree.map(lambda leaf: leaf[k], room)

    def backward(j: Array, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        (q, weights), k = carry, memory - 1 - j
        weight = pairs.inverse[k] * (row(pairs.steps, k) @ q)
        return q - weight * row(pairs.changes, k), weights.at[k].set(weight)

    def forward(k: Array, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        q, weights = carry
        weight = pairs.inverse[k] * (row(pairs.changes, k) @ q)
        return q + (weights[k] - weight) * row(pairs.steps, k), weights

    q, weights = lax.fori_loop(0, memory, backward, (g, jnp.zeros_like(pairs.inverse)))
    return lax.fori_loop(0, memory, forward, (pairs.scale * q, weights))[0]


class Server(NamedTuple):
    trial: Trial
    pairs: SecantPairs


class LBFGS(LineSearch):
    """L-BFGS at the server."""

    memory: int
    first: float

    def server(self, x: Vector) -> Server:
        return first_trial(x, self.memory)

    def aggregate(self, server: Server, mean: tuple[Array, Vector], share: Any) -> tuple[Server, Vector]:
        value, gradient = mean
        length = jnp.sqrt(gradient @ gradient)
        steepest = self.first / jnp.where(length > 0, length, 1)
        server = next_trial(server, server.trial.point, value, gradient, steepest)
        return server, server.trial.point


@makes(LBFGS)
def lbfgs(*, memory: int = 20, first: float = 1.0) -> Method:
    """Return L-BFGS with m = `memory` pairs and a first step of length `first`."""
    count("memory", memory, "Give the number of pairs that are kept, e.g. 20")
    positive("first", first, "The length of the first step, e.g. 1")
    return LBFGS(memory=memory, first=first)


def first_trial(x: Vector, memory: int) -> Server:
    """Return the server that will accept x, where nothing is known yet."""
    return Server(Trial(x, jnp.asarray(jnp.inf), 0 * x, 0 * x, jnp.ones(())), no_pairs(x, memory))


def next_trial(server: Server, tried: Vector, value: Array, gradient: Vector, steepest: Array) -> Server:
    """Return the server that has accepted or refused a point, with the point to try next.

    Args:
        value: f there.
        gradient: grad f there.
        steepest: The step size while there is no pair.
    """
    trial = server.trial
    pairs = add_pair(server.pairs, tried - trial.x, gradient - trial.gradient)
    pairs = choose(jnp.isinf(trial.value), server.pairs, pairs)  # at x^0 there is no gradient to compare with
    pairs = pairs._replace(scale=jnp.where(pairs.inverse[-1] == 0, steepest, pairs.scale))
    direction = -1.0 * times_inverse(pairs, gradient)
    onward = Server(Trial(tried, value, gradient, direction, jnp.ones(())), pairs)
    back = Server(trial.shorter(value), server.pairs)
    return choose(trial.is_enough(value, trial.value), onward, back)


CARD = Card.single(
    title="L-BFGS",
    summary="quasi-Newton steps at the server, nothing to tune",
    family="steps at the server",
    authors="Dong C. Liu, Jorge Nocedal",
    paper="On the limited memory BFGS method for large scale optimization",
    venue="Mathematical Programming 45, 503-528",
    year=1989,
    rule=lambda L, agents, scale: lbfgs(first=scale),
    guarantee=Guarantee("SC", "log(1/e)", "log(1/e)", "M log(1/e)"),
    only_models=False,
    parameters={"memory": "m, the pairs that the server keeps", "first": "the length of the first step"},
)
