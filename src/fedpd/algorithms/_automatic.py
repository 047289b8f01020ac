"""FedPD with p="auto": the server says after each communication in how many rounds the next one is due.

Built on the corrected skipped rounds (_corrected.py), in which a stretch of k local rounds multiplies the error of the
mean by about (1 + eta h)^-k, h the curvature, while the differences between agents stay, to be removed by short
stretches. So a stretch should be as long as it takes the mean's distance to come down to the differences:

    k = log(R ||m||/(h X)) / log(1 + eta h),   X^2 = (1/N) sum_i ||x_i - mean x||^2

||m||/h is how far the mean has to go. R = 10: differences of ten times that distance do little harm, since they reach
the mean only through differences of the Hessians. What is observed:

    m       the mean dual, which "corrected-exact" has
    h       ||change of lambda_i|| / ||change of x_i|| in the agents' last round, since lambda_i = -grad f_i(x_i): the
            largest so far, forgotten by a tenth a communication
    X       from the squares that agents send beside their models: three numbers, no message of their own
    trust   e-foldings that one stretch may bring: at most 5, since differences of the Hessians make more pointless;
            halved whenever a stretch drove the agents further apart (X) than it moved their mean, doubled when not.
            Where agents agree far better than that (all alike: X = 0) their agreement is the limit.
    stall   five communications in which ||m|| (smoothed) did not fall by a tenth: what is left is noise (stochastic
            gradients, rounding), which communicating does not reduce. The shortest allowed stretch is then doubled, to
            two e-foldings at most, and halved on progress; where longer ones double ||m||, it is one round again.

No stretch is longer than 1000 rounds. Since the solution is a fixed point for every k, a bad k costs time, never the
limit: there is no floor.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.algorithms._corrected import ServerOfDuals, corrected_exact
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Mixing, Oracle, Work

HARMLESS = 10.0  # R
FOLDS = 5.0  # e-foldings of the mean's error that one stretch may aim for
NOISY_FOLDS = 2.0  # e-foldings of a stretch that only noise is left to lengthen; ten times as many raise the noise
MEMORY = 0.9  # of the largest curvature, per communication
LONGEST = 1000  # rounds of a stretch
PATIENCE = 5  # communications without progress
SMOOTHING = 0.7  # of ||m||, per communication


class Observer(NamedTuple):
    """The state of an agent of corrected-exact, with measurements of its last round."""

    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector
    mean: Vector
    memory: Any
    server: Vector  # x_0 of the last communication
    moved: Array  # ||x_i - x_i before||^2 of the last round
    turned: Array  # ||lambda_i - lambda_i before||^2 of the last round


class Planner(NamedTuple):
    """The state of the server of corrected-exact, with its plan for the next communication."""

    duals: ServerOfDuals
    x: Vector  # the mean of the x_i at the last communication
    curvature: Array  # h, 0 while unknown
    trust: Array  # e-foldings
    stretch: Array  # k, rounds up to the next communication
    due: Array  # the round that ends in it
    level: Array  # ||m||, smoothed over communications
    lowest: Array  # level since the last change of `shortest`
    stalled: Array  # communications since it last fell by a tenth
    shortest: Array  # rounds that a stretch must have


class Observed(NamedTuple):
    """What the server measures at a communication."""

    distance: Array  # ||m||
    moved: Array  # ||change of the mean of the x_i|| in this stretch
    spread: Array  # X
    curvature: Array  # of the agents' last round


def automatic(paper: Algorithm, eta: Any, oracle: Oracle) -> Algorithm:
    """Return Algorithm 2 (`paper`) with corrected skipped rounds, which communicates when it pays."""
    exact = corrected_exact(paper, eta, oracle)
    inner = exact.exchanges[0]
    assert not isinstance(inner.aggregate, Mixing)
    combine = inner.aggregate

    def init(f: LocalObjective, x: Vector) -> Observer:
        zero = jnp.zeros((), float)
        return Observer(**exact.init(f, x)._asdict(), server=x, moved=zero, turned=zero)

    def server(x: Vector) -> Planner:
        zero = jnp.zeros((), float)
        one, none = jnp.int32(1), jnp.int32(0)
        return Planner(
            exact.server(x), x, zero, zero + FOLDS, one, due=none, level=zero, lowest=zero, stalled=none, shortest=one
        )

    def local(f: LocalObjective, agent: Observer, r: Array, key: Key) -> tuple[Observer, Work]:
        new, work = inner.local(f, agent, r, key)
        return new._replace(moved=_square(new.x - agent.x), turned=_square(new.dual - agent.dual)), work

    def send(agent: Observer) -> tuple[Any, Array]:
        return inner.send(agent), jnp.stack([agent.moved, agent.turned, _square(agent.x - agent.server)])

    def aggregate(planner: Planner, mean: tuple[Any, Array], share: Any) -> tuple[Planner, Any]:
        message, (moved, turned, offset) = mean
        duals, broadcast = combine(planner.duals, message, share)
        x = message[0]
        spread = jnp.sqrt(jnp.maximum(offset - _square(x - planner.duals.x0), 0))
        curvature = jnp.where(planner.due == 0, 0, jnp.sqrt(_ratio(turned, moved)))  # lambda^0 = 0 is no gradient
        observed = Observed(jnp.sqrt(_square(duals.dual)), jnp.sqrt(_square(x - planner.x)), spread, curvature)
        return plan(planner._replace(duals=duals, x=x), observed, eta), broadcast

    def receive(agent: Observer, broadcast: Any) -> Observer:
        return inner.receive(agent, broadcast)._replace(server=broadcast[0])

    return exact._replace(
        init=init,
        server=server,
        exchanges=(Exchange(local, send, aggregate, receive),),
        away=exact.away._replace(everyone=True),
        timing=exact.timing._replace(waits=lambda planner, r: r < planner.due),
    )


def plan(planner: Planner, observed: Observed, eta: Any) -> Planner:
    """Return the server after a communication, with the round of the next one."""
    planner = _notice_stall(planner, observed.distance)
    apart = observed.spread > observed.moved
    trust = jnp.where(apart, planner.trust / 2, jnp.minimum(FOLDS, 2 * planner.trust))
    trust = jnp.where(planner.stretch > 1, trust, planner.trust)
    curvature = jnp.maximum(observed.curvature, MEMORY * planner.curvature)
    bend = jnp.where(curvature > 0, eta * curvature, 1.0)  # eta h
    wanted = _log(HARMLESS * _ratio(observed.distance * eta / bend, observed.spread))
    agreed = 2 * _log(_ratio(observed.moved, observed.spread))
    folds = jnp.minimum(wanted, jnp.maximum(trust, agreed))
    rounds = jnp.nan_to_num(jnp.round(folds / jnp.log1p(bend)), nan=1.0)
    shortest = jnp.minimum(planner.shortest, jnp.maximum(1, jnp.round(NOISY_FOLDS / jnp.log1p(bend))))
    stretch = jnp.clip(rounds, shortest, LONGEST).astype(jnp.int32)
    return planner._replace(curvature=curvature, trust=trust, stretch=stretch, due=planner.due + stretch)


def _notice_stall(planner: Planner, distance: Array) -> Planner:
    first = planner.due == 0
    level = jnp.where(first, distance, SMOOTHING * planner.level + (1 - SMOOTHING) * distance)
    progress = first | (level < 0.9 * planner.lowest)
    stalled = jnp.where(progress, 0, planner.stalled + 1)
    enough = stalled >= PATIENCE
    longer = jnp.where(level < 2 * planner.lowest, jnp.minimum(2 * planner.shortest, LONGEST), 1)
    shorter = jnp.maximum(planner.shortest // 2, 1)
    return planner._replace(
        level=level,
        lowest=jnp.where(progress | enough, level, planner.lowest),
        stalled=jnp.where(enough, 0, stalled),
        shortest=jnp.where(progress, shorter, jnp.where(enough, longer, planner.shortest)),
    )


def _square(v: Vector) -> Array:
    return jnp.asarray(v @ v, float)


def _ratio(a: Array, b: Array) -> Array:
    """Return a/b: large where b = 0 < a, and 0 where both are 0."""
    return a / jnp.maximum(b, jnp.finfo(a.dtype).tiny)


def _log(number: Array) -> Array:
    return jnp.log(jnp.maximum(number, jnp.finfo(number.dtype).tiny))
