"""FedPD that skips communications and still converges: a skipped round moves by the change of the dual.

At the solution lambda_i = -grad f_i(x*), so Algorithm 2's skipped round, x_{0,i} = x_i + eta lambda_i, moves to
x* - eta grad f_i(x*), away from x*: a constant p > 0 leaves an error floor. With c the last communication and m the
mean of all agents' duals,

    x_{0,i} = x_i + eta (lambda_i - lambda_i^c + m^c)

keeps the solution a fixed point: lambda_i = lambda_i^c and m = 0 there. If local problems are solved exactly, lambda_i
= -grad f_i(x_i), and a skipped round is the implicit gradient step x_i <- prox_{eta g_i}(x_i) on

    g_i(x) = f_i(x) - <grad f_i(x_i^c) + m^c, x>,

the local problem whose gradient at the last communication is replaced by the mean gradient. For quadratics with a
common Hessian eigenvalue h, k such rounds and a communication multiply the error of the mean by (1 + eta h)^-k, and the
differences between agents by 1 - (1 + eta h)^-k. Long stretches reduce the error of the mean but not the differences;
single rounds do the opposite. docs/theory/skipping.md has the derivation, the spectral radius, and a map of the
settings in which it wins.

"corrected-exact" computes m^c from messages: agents send x_i and the change of lambda_i, and receive x_0 and m, two
models each way. "corrected" sends one model each way. Let d_j be the mean over agents of lambda_i - lambda_i^c after j
rounds, and b the true mean of the lambda_i^c. Over the k rounds between two communications, the server's model
satisfies exactly

    (x_0^new - x_0^old)/eta = d_1 + ... + d_{k-1} + 2 d_k + (k-1) m^c + b

If d_j grows linearly in j, every agent finds d_k, and so the new m, from the two server models that it already has:

    m <- m + 2 ((x_0^new - x_0^old)/eta - k m) / (k + 3)

which is exact at k = 1. (The average (x_0^new - x_0^old)/(k eta) itself lags by half a stretch. Measured on strongly
heterogeneous logistic data at eta = 0.28/L and k = 3: the average needs 30 communications to reach 1e-10, this estimate
needs 22.)

With p="auto", after each communication the server decides in how many rounds the next one is due. It uses the corrected
skipped rounds with the exact mean dual. A stretch is the k local rounds between two communications. It multiplies the
error of the mean by about (1 + eta h)^-k, where h is the curvature. It does not reduce the differences between agents;
short stretches do. So a stretch should last until the mean's distance has fallen to the differences:

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

from fedpd.base.value import attribute
from fedpd.core import Array, Change, Iterate, Key, LocalObjective, Method, Oracle, Vector, Work


class ServerOfDuals(NamedTuple):
    x0: Vector
    dual: Vector  # m, the mean of all agents' duals as far as they have been sent


class ExactAgent(NamedTuple):
    x: Vector  # x_i
    x0: Vector  # x_{0,i}
    dual: Vector  # lambda_i
    sent: Vector  # lambda_i^c, as the server knows it
    mean: Vector  # m^c
    memory: Any  # of the oracle


class EstimatingAgent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # lambda_i^c
    mean: Vector  # the estimate of m^c
    server: Vector  # x_0 of the last communication
    rounds: Array  # k, rounds since then
    memory: Any


class Corrected(Method):
    """Algorithm 2's local updates, which a class beside this one has, with x_i + eta (lambda_i - lambda_i^c + m^c)."""

    eta: float
    oracle: Oracle
    repeats = False
    with_message = attribute(None)

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent._replace(x0=agent.x0 - self.eta * (agent.sent - agent.mean)), work

    def partial(self) -> Method:
        return self

    def asynchronous(self) -> None:
        return None


class ExactRounds(Corrected):
    """Corrected skipped rounds with the exact mean dual; agents may be absent."""

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return ExactAgent(x=x, x0=x, dual=0 * x, sent=0 * x, mean=0 * x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> Any:
        return ServerOfDuals(x, 0 * x)

    def send(self, agent: Any) -> Any:
        return Iterate(agent.x), Change(agent.dual - agent.sent)

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, tuple[Vector, Vector]]:
        x, change = mean
        dual = server.dual + share * change
        server = ServerOfDuals(x + self.eta * dual, dual)
        return server, (server.x0, server.dual)

    def missed(self, agent: Any, broadcast: tuple[Vector, Vector]) -> Any:
        x0, mean = broadcast
        return agent._replace(x0=x0, mean=mean)

    def receive(self, agent: Any, broadcast: tuple[Vector, Vector]) -> Any:
        return self.missed(agent, broadcast)._replace(sent=agent.dual)

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        agent = super().rebuild(f, agent)
        return agent._replace(sent=agent.dual)


class CorrectedRounds(Corrected):
    """Corrected skipped rounds; agents estimate the mean dual from x_0."""

    needs_everyone = True

    def init(self, f: LocalObjective, x: Vector) -> Any:
        zero, memory = 0 * x, self.oracle.init(f, x)
        return EstimatingAgent(x, x, zero, zero, zero, server=x, rounds=jnp.int32(0), memory=memory)

    def local(self, f: LocalObjective, agent: EstimatingAgent, r: Array, key: Key) -> tuple[EstimatingAgent, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent._replace(rounds=agent.rounds + 1), work

    def send(self, agent: Any) -> Any:
        return Iterate(agent.x + self.eta * agent.dual)

    def receive(self, agent: EstimatingAgent, x0: Vector) -> EstimatingAgent:
        k = agent.rounds.astype(float)
        mean = agent.mean + ((x0 - agent.server) / self.eta - agent.mean * k) * (2 / (k + 3))
        return agent._replace(x0=x0, server=x0, mean=mean, sent=agent.dual, rounds=jnp.int32(0))

    def rebuild(self, f: LocalObjective, agent: EstimatingAgent) -> EstimatingAgent:
        agent = super().rebuild(f, agent)  # its models do not determine m; 0 is its value at the solution
        return agent._replace(sent=agent.dual, mean=0 * agent.mean)


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
