"""FedPD with p="auto": after each communication the server decides in how many rounds the next one is due.

It uses the corrected skipped rounds (_corrected.py). A stretch is the k local rounds between two communications. It
multiplies the error of the mean by about (1 + eta h)^-k, where h is the curvature. It does not reduce the differences
between agents; short stretches do. So a stretch should last until the mean's distance has fallen to the differences:

    k = log(R ||m||/(h X)) / log(1 + eta h),   X^2 = (1/N) sum_i ||x_i - mean x||^2

||m||/h estimates the mean's distance from the solution. R = 10, because differences of ten times that distance do
little harm: they reach the mean only through differences of the Hessians. The server uses these quantities:

    m       the mean dual, which "corrected-exact" has
    h       ||change of lambda_i|| / ||change of x_i|| in the agents' last round, since lambda_i = -grad f_i(x_i). The
            server keeps the largest value so far, and reduces it by a tenth per communication
    X       computed from squares that agents send with their models: three numbers, in the same message
    trust   the e-foldings that one stretch may aim for. At most 5: differences of the Hessians make more useless. It is
            halved when a stretch increased the agents' differences (X) more than it moved their mean, else doubled.
            If the agents agree far better than that (equal data: X = 0), their agreement sets the limit instead.
    stall   five communications in which ||m|| (smoothed) did not fall by a tenth. The rest is then noise (stochastic
            gradients, rounding), which communication does not reduce. The server doubles the shortest allowed stretch,
            up to two e-foldings, and halves it on progress. If longer stretches double ||m||, it is one round again.

No stretch is longer than 1000 rounds. The solution is a fixed point for every k, so a bad k costs time but does not
change the limit: there is no error floor.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.algorithms._corrected import ServerOfDuals
from fedpd.base.value import attribute
from fedpd.core import Array, Key, LocalObjective, Method, Work

HARMLESS = 10.0  # R
FOLDS = 5.0  # largest number of e-foldings of the mean's error that one stretch may aim for
NOISY_FOLDS = 2.0  # the same when only noise is left; ten times as many would raise the noise
MEMORY = 0.9  # factor on the largest curvature, per communication
LONGEST = 1000  # rounds in the longest stretch
PATIENCE = 5  # communications without progress that count as a stall
SMOOTHING = 0.7  # weight of the old value in the smoothed ||m||, per communication


class Observer(NamedTuple):
    """The state of an agent of corrected-exact, with measurements of its last round."""

    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector
    mean: Vector
    memory: Any
    server: Vector  # x_0 of the last communication
    model_change: Array  # ||x_i - x_i before||^2 of the last round
    dual_change: Array  # ||lambda_i - lambda_i before||^2 of the last round


class Planner(NamedTuple):
    """The state of the server of corrected-exact, with its plan for the next communication."""

    duals: ServerOfDuals
    x: Vector  # the mean of the x_i at the last communication
    curvature: Array  # h, 0 while unknown
    trust: Array  # e-foldings
    stretch: Array  # k, the rounds until the next communication
    due: Array  # the round that ends with the next communication
    level: Array  # ||m||, smoothed over communications
    lowest: Array  # the reference value of `level`, from the last progress or change of `shortest`
    stalled: Array  # communications since `level` last fell by a tenth
    shortest: Array  # the smallest number of rounds that a stretch may have


class Observed(NamedTuple):
    """The measurements of the server at a communication."""

    distance: Array  # ||m||
    mean_change: Array  # ||change of the mean of the x_i|| in this stretch
    spread: Array  # X
    curvature: Array  # of the agents' last round


class PlannedRounds(Method):
    """Beside `ExactRounds`: a server that plans the communications."""

    eta: float
    p: str
    needs_everyone = True
    missed = attribute(None)

    def init(self, f: LocalObjective, x: Vector) -> Any:
        zero = jnp.zeros((), float)
        return Observer(**super().init(f, x)._asdict(), server=x, model_change=zero, dual_change=zero)

    def server(self, x: Vector) -> Planner:
        zero = jnp.zeros((), float)
        one, none = jnp.int32(1), jnp.int32(0)
        duals = super().server(x)
        return Planner(duals, x, zero, zero + FOLDS, one, due=none, level=zero, lowest=zero, stalled=none, shortest=one)

    def local(self, f: LocalObjective, agent: Observer, r: Array, key: Key) -> tuple[Observer, Work]:
        new, work = super().local(f, agent, r, key)
        return new._replace(model_change=_square(new.x - agent.x), dual_change=_square(new.dual - agent.dual)), work

    def send(self, agent: Any) -> Any:
        numbers = jnp.stack([agent.model_change, agent.dual_change, _square(agent.x - agent.server)])
        return super().send(agent), numbers

    def aggregate(self, planner: Planner, mean: tuple[Any, Array], share: Any) -> tuple[Planner, Any]:
        message, (model_change, dual_change, offset) = mean
        duals, broadcast = super().aggregate(planner.duals, message, share)
        x = message[0]
        spread = jnp.sqrt(jnp.maximum(offset - _square(x - planner.duals.x0), 0))
        curvature = jnp.sqrt(_ratio(dual_change, model_change))
        curvature = jnp.where(planner.due == 0, 0, curvature)  # unknown at first: lambda^0 = 0 is no gradient
        observed = Observed(jnp.sqrt(_square(duals.dual)), jnp.sqrt(_square(x - planner.x)), spread, curvature)
        return plan(planner._replace(duals=duals, x=x), observed, self.eta), broadcast

    def receive(self, agent: Observer, broadcast: Any) -> Observer:
        x0, mean = broadcast
        return agent._replace(x0=x0, mean=mean, sent=agent.dual, server=x0)

    def waits(self, planner: Planner, r: Array) -> Array:
        return r < planner.due

    def skip_probability(self, r: Any) -> None:
        return None


def plan(planner: Planner, observed: Observed, eta: Any) -> Planner:
    """Return the server's state after a communication, with the round of the next one."""
    planner = _notice_stall(planner, observed.distance)
    diverging = observed.spread > observed.mean_change
    trust = jnp.where(diverging, planner.trust / 2, jnp.minimum(FOLDS, 2 * planner.trust))
    trust = jnp.where(planner.stretch > 1, trust, planner.trust)
    curvature = jnp.maximum(observed.curvature, MEMORY * planner.curvature)
    eta_h = jnp.where(curvature > 0, eta * curvature, 1.0)
    wanted = _log(HARMLESS * _ratio(observed.distance * eta / eta_h, observed.spread))
    agreement = 2 * _log(_ratio(observed.mean_change, observed.spread))
    folds = jnp.minimum(wanted, jnp.maximum(trust, agreement))
    rounds = jnp.nan_to_num(jnp.round(folds / jnp.log1p(eta_h)), nan=1.0)
    shortest = jnp.minimum(planner.shortest, jnp.maximum(1, jnp.round(NOISY_FOLDS / jnp.log1p(eta_h))))
    stretch = jnp.clip(rounds, shortest, LONGEST).astype(jnp.int32)
    return planner._replace(curvature=curvature, trust=trust, stretch=stretch, due=planner.due + stretch)


def _notice_stall(planner: Planner, distance: Array) -> Planner:
    """Return the server's state with `shortest` doubled after a stall and halved on progress."""
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
    """Return a/b, which is large where b = 0 < a, and 0 where both are 0."""
    return a / jnp.maximum(b, jnp.finfo(a.dtype).tiny)


def _log(number: Array) -> Array:
    return jnp.log(jnp.maximum(number, jnp.finfo(number.dtype).tiny))
