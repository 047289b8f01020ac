"""FedPD-M: FedPD with memory, and an eta that finds itself.

FedPD at p = 0 with a deterministic oracle is a fixed-point iteration, so mixing its last outcomes accelerates it
(Anderson 1965; Pulay's DIIS). After an exact local solve lambda_i = -grad f_i(x_i), so every outcome (x_i, lambda_i) is
a point of the gradient's graph, whatever its eta was: outcomes of different eta can be mixed.

Start. Agents send lambda_i = -grad f_i(x^0) and L_i, an estimate of ||Hessian of f_i|| (power iteration on gradient
differences). eta = 0.3/mean L_i. X_0 = x^0 is the first row of the memory. Then, in each communication,

    server  v = x^ + s m^                                               down: v, the weights c, eta
    agent   x_i = sum_k c_k X_k,   lambda_i = sum_k c_k Lambda_k        over its own last M + 1 rows
            w   = Oracle_i(L_i(., v, lambda_i)), started at x_i
            append X = w, Lambda = lambda_i + (w - v)/eta, f_i(w)       up: w, and 2(M + 1) + 4 numbers
    server  xbar = mean w,   m = m^ + (xbar - v)/eta                    append xbar and m
            c    = argmin c'Ac with sum c = 1,   A = a^2 G + K + diag(nu)
            x^   = sum_k c_k xbar_k,   m^ = sum_k c_k m_k

so that the mixed point nearly satisfies the optimality conditions, all x_i equal and mean dual 0:

    G_kl  = mean_i <X_k - xbar_k, X_l - xbar_l>      how far agents are from each other
    K_kl  = <m_k, m_l>                               the mean dual, minus the gradient of f where agents agree
    nu_k  = mean_i (10 t_k)^2/||X_k - w||^2,   t_k = |f_k - f_new + <Lambda_k + Lambda_new, X_k - w>/2|
            how far f_i is from a quadratic function between this row and the newest
    a     = eta^(-1/4) s^(-3/4)                      a length in units of a gradient

    s     a Barzilai-Borwein length, at least eta           `server_step`
    eta   times sqrt(0.2 ||m||/(a sqrt(G_new,new)))         `balanced`; at most 0.3/c if an f_i has curvature -c < 0
    guard the newest row alone is taken, with s = eta, once all steps so far went further beyond Algorithm 2 than a
          constant allows, or where m is not above rounding
    and   the server descends on f where mixing stalls and an f_i is not convex

`_memory_parts.py` has the server's rules, and `_memory_absent.py` the form for partial participation.

Everything that agents send is summed, and nothing else is needed of it: G from <w - v, X_l - v>, the length of the last
step from the distance of the mixed row to the row before. The largest negative curvature over agents is no sum; the
eighth root of the mean of eighth powers is, and is at least N^(-1/8) of it. An agent keeps 2(M + 1) models and the
oracle's memory; the server 4(M + 1). With M = 0 nothing is mixed, and s and eta remain.

What is proved (docs/theory/memory.md). With M = 0, fixed eta, s = eta and duals that begin at 0 it is Algorithm 2. For
convex f_i and exact solves it converges to a minimiser: the guard makes it a summable perturbation of ADMM, whose eta
changes summably. On quadratics with exact solves, fixed eta, s = eta and all rows it has the residual of GMRES. For
inexact solves and for non-convex f_i nothing is proved.

Where mixing stalls, the server uses L-BFGS with a line search on f. Mixing lowers ||grad f||, which may have a local
minimum that is no stationary point where f is not convex. There, if the residual of the newest row has not halved in
`patience` rounds, the server takes over for good: it goes back to the row with the smallest residual and descends from
there as `lbfgs.py` does. Agents do what they always do, with a small eta: then their models nearly agree with v, m is
nearly -grad f(xbar), and

    F = mean_i (f_i(w) + <Lambda_i, w - v>) - <m, xbar - v>

is f(xbar) up to the square of the agents' differences. Agents send its first term, one number. A point is refused where
agents are not near v: F says nothing there. Agents go on from the row of the last accepted point. A search that only
finds points above its start is given up, and the next point is accepted whatever its value.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedpd.algorithms._memory_absent import FedPDMWithAbsent
from fedpd.algorithms._memory_parts import (
    NewestRow,
    Outcome,
    Remembering,
    Rows,
    Rules,
    Server,
    bend_of_rows,
    distance_to_row,
    first_server,
    minus,
    new_server,
    next_server,
    outcome_of_start,
    solve_locally,
    symmetric,
    with_outcome,
)
from fedpd.algorithms.lbfgs import Server as Search
from fedpd.algorithms.lbfgs import first_trial, next_trial
from fedpd.core import Array, Key, LocalObjective, Method, Vector, Work
from fedpd.core.vectors import choose, dots, empty_stack, in_precision_of, mix, put, row

UNMIXED = 1e3  # the budget without mixing: on "one agent 100 times steeper", 1e6 swings far away and 1e9 diverges
CLOSE = 1e-2  # eta of a descent, in units of the first eta or of 1/negative curvature
NEAR = 0.3  # how far agents may be from v, relative to the step to it
GROWTH = 10.0  # of a step, relative to the last: where curvature changes its sign, L-BFGS may propose any length
SHORTEST = 1e-4  # length of a trial, below which a search is given up


class Agent(NamedTuple):
    x: Vector  # x_i, mixed; after the local solve w, which is sent
    x0: Vector  # v, this agent's copy of the global model
    dual: Vector  # lambda_i, mixed
    xs: Vector  # X_k, a stack of M + 1 models in a ring: row k is in place k mod (M + 1)
    duals: Vector  # Lambda_k
    values: Array  # (M + 1,) f_k
    eta: Array
    numbers: "Numbers"  # what is sent beside the model
    memory: Any  # of the oracle


class Numbers(NamedTuple):
    """The numbers that agents send beside a model; the server averages all of them."""

    near: Array  # (M + 1,) <w - v, X_l - v>
    bent: Array  # (M + 1,) nu_l
    curvature: Array  # L_i in the first round; later the eighth power of eta times the negative curvature
    size: Array  # ||Lambda_new||^2
    level: Array  # f_i(w) + <Lambda_new, w - v>
    moved: Array  # ||dX||^2/eta + eta ||dlambda||^2, from the last row to the mixed one


class Broadcast(NamedTuple):
    x0: Vector  # v
    weights: Array  # (M + 1,) c
    eta: Array


class FedPDM(Remembering):
    """FedPD-M with all agents in every communication."""

    @property
    def own_rules(self) -> Rules:
        """The constants, without those that an eta of the user's own or a memory of 0 rules out."""
        rules = self.rules
        if self.given_eta is not None:
            rules = rules._replace(change=1.0, convex=float("inf"), patience=float("inf"))
        if self.memory == 0:  # no mixing mends a server step that is too long
            rules = rules._replace(budget=min(rules.budget, UNMIXED))
        return rules

    def init(self, f: LocalObjective, x: Vector) -> Any:
        size = self.memory + 1
        none, zero = jnp.zeros(size), jnp.zeros((), float)
        stack, numbers = empty_stack(x, size), Numbers(none, none, zero, zero, zero, zero)
        return Agent(x, x, 0 * x, stack, stack, none, zero, numbers, self.oracle.init(f, x))

    def server(self, x: Vector) -> Any:
        return new_server(x, self.memory + 1, no_descent(x, max(self.memory, 1)))

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        return lax.cond(r == 0, partial(self.begin, f), partial(self.proceed, f, r=r, key=key), agent)

    def begin(self, f: LocalObjective, agent: Agent) -> tuple[Agent, Work]:
        """Return an agent after the first round."""
        outcome, smoothness, work = outcome_of_start(f, agent.x0, self.given_eta, self.rules)
        agent = with_outcome(agent, outcome, jnp.int32(0))
        numbers = agent.numbers._replace(curvature=smoothness)
        return agent._replace(x=outcome.dual, dual=outcome.dual, numbers=numbers), work  # x is sent

    def proceed(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        """Return an agent after a later round."""
        size = self.memory + 1
        moved = distance_to_row(agent, agent.x, agent.dual, (r - 1) % size)
        first = agent.x if self.start == "local" else agent.x0
        outcome, solve = solve_locally(self.oracle, f, agent, first, agent.dual, r, key)
        agent = with_outcome(agent, outcome, r % size)._replace(x=outcome.x, dual=outcome.dual, memory=solve.memory)
        numbers = compare_rows(agent, outcome, solve.largest, self.rules.bend)
        numbers = numbers._replace(curvature=(agent.eta * solve.lowest) ** 8, moved=moved)
        return agent._replace(numbers=numbers), solve.work

    def send(self, agent: Any) -> Any:
        return agent.x, agent.numbers

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        first, later = partial(first_server_step, eta=self.given_eta), partial(later_server_step, rules=self.own_rules)
        return lax.cond(server.number == 0, first, later, server, *mean)

    def receive(self, agent: Any, broadcast: Any) -> Any:
        x0, weights, eta = broadcast
        return agent._replace(x=mix(agent.xs, weights), x0=x0, dual=mix(agent.duals, weights), eta=eta)

    def partial(self) -> Method:
        settings: dict[str, Any] = {"eta": self.eta, "oracle": self.oracle, "memory": self.memory, "start": self.start}
        return FedPDMWithAbsent(**settings, rules=self.rules)


class Descent(NamedTuple):
    """The server's record of a stall, and its search."""

    search: Search  # L-BFGS
    least: Array  # the square of the residual at the last progress
    waited: Array  # the rounds since then
    on: Array  # whether the server descends
    base: Array  # the place of the row of the last accepted point


def no_descent(x: Vector, memory: int) -> Descent:
    """Return the state at the start, with room for `memory` secant pairs."""
    return Descent(first_trial(x, memory), jnp.full((), jnp.inf), jnp.int32(0), jnp.bool_(False), jnp.int32(0))


def notice_stall(descent: Descent, residual: Array, convex: Array, patience: float) -> tuple[Descent, Array]:
    """Return the state after a round, and whether a descent begins now.

    Args:
        residual: The square of the newest row's residual.
        convex: Whether no f_i showed negative curvature.
    """
    fell = residual < descent.least / 4
    waited = jnp.where(fell, 0, descent.waited + 1)
    begins = ~descent.on & ~convex & (waited > patience)
    least = jnp.where(fell, residual, descent.least)
    return descent._replace(least=least, waited=waited, on=descent.on | begins), begins


def descend(
    search: Search, tried: Vector, value: Array, dual: Vector, apart: Array, step: Array
) -> tuple[Search, Array]:
    """Return the search with its next trial, and whether it has accepted the last one.

    Args:
        tried: xbar.
        value: F there.
        dual: m there, nearly minus the gradient.
        apart: mean_i ||w - v||^2.
        step: The step size while there is no pair.
    """
    search = choose(search.trial.length < SHORTEST, first_trial(tried, len(search.pairs.inverse)), search)
    trial = search.trial
    reach = jnp.asarray(trial.direction @ trial.direction, apart.dtype) * trial.length**2
    far = jnp.isfinite(trial.value) & ~(apart <= NEAR**2 * reach)
    value = jnp.where(far, jnp.inf, value)
    accepted = trial.is_enough(value, trial.value)
    search = next_trial(search, tried, value, -1.0 * dual, step)
    last, new = tried - trial.x, search.trial.direction
    share = jnp.sqrt(GROWTH**2 * (last @ last) / jnp.maximum(new @ new, jnp.finfo(apart.dtype).tiny))
    share = jnp.where(accepted & jnp.isfinite(trial.value), jnp.minimum(1, share), 1)
    return search._replace(trial=search.trial._replace(direction=share * new)), accepted


def small_eta(first: Array, lowest: Array) -> Array:
    """Return the eta of a descent.

    Args:
        first: The eta of the start.
        lowest: The negative curvature of the f_i.
    """
    return CLOSE * jnp.minimum(first, 1 / jnp.maximum(lowest, jnp.finfo(lowest.dtype).tiny))


def compare_rows(agent: Agent, newest: Outcome, L: Array, bend: float) -> Numbers:
    """Return what the newest row has to do with each of the rows; 0 with places still empty.

    Empty places hold zeros, which the server's weights leave out.
    """
    w, dual, value = newest
    v = agent.x0
    near = dots(minus(agent.xs, v), w - v)
    bent = bend_of_rows(Outcome(agent.xs, agent.duals, agent.values), newest, L, bend)
    none, level = jnp.zeros_like(value), value + (dual @ (w - v)).astype(float)
    return Numbers(near, bent, none, (dual @ dual).astype(float), level, none)


def first_server_step(
    server: Server[Descent], dual: Vector, numbers: Numbers, eta: float | None
) -> tuple[Server[Descent], Broadcast]:
    """Return the server that has the mean dual at the start, and eta."""
    server, weights = first_server(server, dual, numbers.curvature, eta)
    return server, Broadcast(server.x0, weights, server.eta)


def later_server_step(
    before: Server[Descent], xbar: Vector, numbers: Numbers, rules: Rules
) -> tuple[Server[Descent], Broadcast]:
    """Return the server that has appended a row, mixed all rows or descended, and chosen the next s and eta."""
    v, place = before.x0, jnp.arange(len(before.rows.consensus))
    slot = before.number % len(place)
    dual = before.dual + (xbar - v) / in_precision_of(v, before.eta)
    rows = append(before.rows, slot, v, xbar, dual, numbers)
    heard = NewestRow(dual, numbers.bent, numbers.curvature, numbers.size, numbers.moved, jnp.ones((), float))
    server, c, A = next_server(before, rows, heard, rules, jnp.bool_(True))

    descent, begins = notice_stall(server.own, A[slot, slot], server.lowest <= 0, rules.patience)
    best = jnp.argmin(jnp.where(place <= before.number, jnp.diag(A), jnp.inf)).astype(jnp.int32)
    value = numbers.level - (dual @ (xbar - v)).astype(float)
    search, accepted = descend(descent.search, xbar, value, dual, numbers.near[slot], server.first)
    search = choose(begins, first_trial(row(rows.xs, best), len(search.pairs.inverse)), search)
    base = jnp.where(begins, best, jnp.where(accepted, slot, descent.base)).astype(jnp.int32)
    downhill = descending(server, search, row(rows.duals, base))
    descent = choose(descent.on, descent._replace(search=search, base=base), descent)
    server = choose(descent.on, downhill, server)._replace(own=descent)
    return server, Broadcast(server.x0, jnp.where(descent.on, place == base, c), server.eta)


def descending(server: Server[Descent], search: Search, dual: Vector) -> Server[Descent]:
    """Return the server that tries a point of a descent, from one row alone, whose mean dual this is."""
    eta = small_eta(server.first, server.lowest)
    return server._replace(x0=search.trial.point, dual=dual, eta=eta, step=eta)


def append(rows: Rows, slot: Array, v: Vector, xbar: Vector, dual: Vector, numbers: Numbers) -> Rows:
    """Return the rows with the newest in its place."""
    xs = put(rows.xs, slot, xbar)
    near = numbers.near - dots(minus(xs, v), xbar - v)
    return Rows(xs, put(rows.duals, slot, dual), symmetric(rows.consensus, slot, near))
