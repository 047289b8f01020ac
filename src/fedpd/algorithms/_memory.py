"""FedPD-M: FedPD with memory, and an eta that finds itself.

FedPD at p = 0 with a deterministic oracle is a fixed-point iteration, so mixing its last outcomes accelerates it
(Anderson 1965; Pulay's DIIS). After an exact local solve lambda_i = -grad f_i(x_i), so every outcome (x_i, lambda_i) is
a point of the gradient's graph, whatever its eta was: outcomes of different eta can be mixed.

Start. Agents send lambda_i = -grad f_i(x^0) and L_i, an estimate of ||Hessian of f_i|| (power iteration on gradient
differences). eta = 1/mean L_i. X_0 = x^0 is the first row of the memory. Then, in each communication,

    server  v = x^ + s m^                                               down: v, the weights c, eta
    agent   x_i = sum_k c_k X_k,   lambda_i = sum_k c_k Lambda_k        over its own last M + 1 rows
            w   = Oracle_i(L_i(., v, lambda_i)), started at x_i
            append X = w, Lambda = lambda_i + (w - v)/eta, f_i(w)       up: w, and 4(M + 1) + 2 numbers
    server  xbar = mean w,   m = m^ + (xbar - v)/eta                    append xbar and m
            c    = argmin c'Ac with sum c = 1,   A = a^2 G + K + diag(nu)
            x^   = sum_k c_k xbar_k,   m^ = sum_k c_k m_k

so that the mixed point nearly satisfies the optimality conditions, all x_i equal and mean dual 0:

    G_kl  = mean_i <X_k - xbar_k, X_l - xbar_l>      how far agents are from each other
    K_kl  = <m_k, m_l>                               the mean dual, minus the gradient of f where agents agree
    nu_k  = mean_i (6 t_k)^2/||X_k - w||^2,   t_k = |f_k - f_new + <Lambda_k + Lambda_new, X_k - w>/2|
            how far f_i is from a quadratic function between this row and the newest
    a     = eta^(-1/4) s^(-3/4)                      a length in units of a gradient

    s     a Barzilai-Borwein length, at least eta           `server_step`
    eta   times sqrt(0.3 ||m||/(a sqrt(G_new,new)))         `balanced`; at most 0.3/c if an f_i has curvature -c < 0
    guard the newest row alone is taken where the mixed step goes along negative curvature   `curvature_along`
    and   with s = eta where a step would go further beyond Algorithm 2 than is summable     `affordable`
          or where m is not above rounding

Everything that agents send is summed, and nothing else is needed of it: G from <w - v, X_l - v>, the curvature along a
step from <w - X_l, Lambda_new - Lambda_l>, its length from ||Lambda_new - Lambda_l||^2. The largest negative curvature
over agents is no sum; the eighth root of the mean of eighth powers is, and is at least N^(-1/8) of it. An agent keeps
2(M + 1) models and the oracle's memory; the server 2(M + 1). With M = 0 nothing is mixed, and s and eta remain.

What is proved (docs/theory/memory.md). With M = 0, fixed eta, s = eta and duals that begin at 0 it is Algorithm 2. For
convex f_i and exact solves it converges to a minimiser: `affordable` makes it a summable perturbation of ADMM, whose
eta changes summably. On quadratics with exact solves, fixed eta, s = eta and all rows it has the residual of GMRES. For
inexact solves and for non-convex f_i nothing is proved.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from tree_math import Vector

from fedpd.algorithms._mixing import Rules, affordable, balanced, curvature_along, mixing_weights, server_step
from fedpd.base.checks import refuse
from fedpd.core import (
    Algorithm,
    Array,
    Away,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Work,
    augmented_lagrangian,
)
from fedpd.core.lbfgs import Secants
from fedpd.core.stacked import dots, empty_stack, gram, mix, put

PROBES = 10  # gradients of the power iteration for L_i
RANGE = 1e6  # eta stays within this factor of its start


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
    turned: Array  # (M + 1,) <w - X_l, Lambda_new - Lambda_l>
    pulled: Array  # (M + 1,) ||Lambda_new - Lambda_l||^2
    bent: Array  # (M + 1,) nu_l
    curvature: Array  # L_i in the first round; later the eighth power of eta times the negative curvature
    size: Array  # ||Lambda_new||^2


class Broadcast(NamedTuple):
    x0: Vector  # v
    weights: Array  # (M + 1,) c
    eta: Array


class Rows(NamedTuple):
    """The server's memory: row k is in place k mod (M + 1), as at the agents."""

    xs: Vector  # xbar_k
    duals: Vector  # m_k
    consensus: Array  # (M + 1, M + 1) G
    turned: Array  # (M + 1, M + 1) mean_i <X_k - X_l, Lambda_k - Lambda_l>
    pulled: Array  # (M + 1, M + 1) mean_i ||Lambda_k - Lambda_l||^2


class Server(NamedTuple):
    x0: Vector  # v
    dual: Vector  # m^
    rows: Rows
    number: Array  # of rows so far
    eta: Array
    first: Array  # the eta of the start
    step: Array  # s
    lowest: Array  # the negative curvature of the f_i so far, forgotten by a tenth per round; >= 0
    unit: Array  # eta^(1/2) ||m|| of the start, or of the first solve if that is larger
    beyond: Array  # how many steps went beyond Algorithm 2


def with_memory(
    eta: float | None, oracle: Oracle, memory: int, start: str = "local", rules: Rules | None = None
) -> Algorithm:
    """Return FedPD-M.

    Args:
        eta: The penalty's eta; None finds it.
        oracle: The local solver. If it takes batches, f_i is not evaluated, and rules.bend must be 0.
        memory: M, the outcomes that are mixed with the newest.
        start: Where the oracle begins: "local" at the mixed x_i, "server" at v.
        rules: The constants; None: the usual ones.
    """
    rules = Rules() if rules is None else rules
    rules = rules if eta is None else rules._replace(change=1.0, convex=float("inf"))
    size = memory + 1

    def init(f: LocalObjective, x: Vector) -> Agent:
        row, zero = jnp.zeros(size), jnp.zeros((), float)
        stack, numbers = empty_stack(x, size), Numbers(row, row, row, row, zero, zero)
        return Agent(x, x, 0 * x, stack, stack, row, zero, numbers, oracle.init(f, x))

    def server(x: Vector) -> Server:
        stack, square = empty_stack(x, size), jnp.zeros((size, size))
        zero, none = jnp.zeros((), float), jnp.int32(0)
        rows = Rows(stack, stack, square, square, square)
        return Server(x, 0 * x, rows, none, zero, zero, zero, zero, zero, none)

    def begin(f: LocalObjective, agent: Agent) -> tuple[Agent, Work]:
        value, gradient = f.value_and_gradient(agent.x0)
        dual = -rules.informed * gradient
        smoothness = largest_curvature(f, agent.x0, gradient) if eta is None else jnp.ones((), float)
        agent = agent._replace(
            x=dual,  # is sent
            dual=dual,
            xs=put(agent.xs, jnp.int32(0), agent.x0),
            duals=put(agent.duals, jnp.int32(0), dual),
            values=agent.values.at[0].set(value.astype(float)),
            numbers=agent.numbers._replace(curvature=smoothness),
        )
        gradients = 1 + PROBES if eta is None else 1
        return agent, Work(jnp.int32(0), gradients * jnp.asarray(f.size, jnp.int32))

    def proceed(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, agent.eta)
        w, kept, work = oracle.solve(lagrangian, agent.x if start == "local" else agent.x0, agent.memory, r, key)
        dual = agent.dual + (w - agent.x0) / agent.eta
        value, lowest, more = seen_in_solve(f, w, kept, oracle)
        slot = r % size
        agent = agent._replace(
            x=w,
            dual=dual,
            memory=kept,
            xs=put(agent.xs, slot, w),
            duals=put(agent.duals, slot, dual),
            values=agent.values.at[slot].set(value),
        )
        numbers = compare_rows(agent, value, rules.bend)._replace(curvature=(agent.eta * lowest) ** 8)
        return agent._replace(numbers=numbers), work._replace(samples=work.samples + more)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return lax.cond(r == 0, partial(begin, f), partial(proceed, f, r=r, key=key), agent)

    def send(agent: Agent) -> tuple[Vector, Numbers]:
        return agent.x, agent.numbers

    def aggregate(server: Server, mean: tuple[Vector, Numbers], share: Any) -> tuple[Server, Broadcast]:
        first, later = partial(first_server_step, eta=eta), partial(later_server_step, rules=rules)
        return lax.cond(server.number == 0, first, later, server, *mean)

    def receive(agent: Agent, broadcast: Broadcast) -> Agent:
        x0, weights, eta = broadcast
        return agent._replace(x=mix(agent.xs, weights), x0=x0, dual=mix(agent.duals, weights), eta=eta)

    def rebuild(f: LocalObjective, agent: Any) -> Agent:
        rule = "mixes each agent's past outcomes, and this agent has lost its own"
        refuse("memory", memory, rule, "Start the run again, from x^0 or from its last model")

    return Algorithm(
        "fedpd",
        init=init,
        server=server,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x0,
        away=Away(everyone=True, rebuild=rebuild),
    )


def largest_curvature(f: LocalObjective, x: Vector, gradient: Vector) -> Array:
    """Return L_i, an estimate of ||Hessian of f_i(x)||, by power iteration on PROBES gradient differences."""
    flat, unravel = ravel_pytree(x)
    info = jnp.finfo(flat.dtype)
    length = info.eps**0.25 * (1 + _norm(x))
    start = unravel(jax.random.normal(jax.random.key(0, impl="threefry2x32"), flat.shape, flat.dtype))

    def probe(_: Any, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        direction, _ = carry
        step = direction * (length / jnp.maximum(_norm(direction), info.tiny))
        change = (f.gradient(x + step) - gradient) / length
        return change, _norm(change)

    _, largest = lax.fori_loop(0, PROBES, probe, (start, jnp.zeros((), flat.dtype)))
    return jnp.maximum(largest, info.tiny).astype(float)


def seen_in_solve(f: LocalObjective, w: Vector, kept: Any, oracle: Oracle) -> tuple[Array, Array, Any]:
    """Return f_i(w), the negative curvature that the oracle met, and the samples that this cost.

    With an oracle that takes batches f_i is not evaluated: that would take more samples than the solve.
    """
    if oracle.batch is not None:
        return jnp.zeros((), float), jnp.zeros((), float), 0
    if isinstance(kept, Secants):
        return kept.value, -kept.lowest, 0
    return f.value(w).astype(float), jnp.zeros((), float), f.size


def compare_rows(agent: Agent, value: Array, bend: float) -> Numbers:
    """Return what the newest row (w, Lambda_new, f_new) has to do with each of the rows; 0 with places still empty.

    Empty places hold zeros, which the server's weights leave out.
    """
    w, dual, xs, duals = agent.x, agent.dual, agent.xs, agent.duals
    apart = _minus(xs, w)  # X_l - w
    v = agent.x0
    near = dots(_minus(xs, v), w - v)
    turning = _minus(duals, dual)
    turned, pulled = dots(apart, turning), dots(turning, turning)
    excess = jnp.abs(agent.values - value + dots(apart, _plus(duals, dual)) / 2)
    info = jnp.finfo(excess.dtype)
    excess = jnp.maximum(excess - 100 * info.eps * (jnp.abs(agent.values) + jnp.abs(value)), 0)
    distance = jnp.maximum(dots(apart, apart), info.tiny)
    bent = jnp.where(excess > 0, (bend * excess) ** 2 / distance, 0)
    return Numbers(near, turned, pulled, bent, jnp.zeros_like(value), (dual @ dual).astype(float))


def first_server_step(server: Server, dual: Vector, numbers: Numbers, eta: float | None) -> tuple[Server, Broadcast]:
    """Return the server that has the mean dual at the start, and eta."""
    chosen = 1 / numbers.curvature if eta is None else jnp.asarray(eta, float)
    rows = server.rows._replace(
        xs=put(server.rows.xs, jnp.int32(0), server.x0), duals=put(server.rows.duals, jnp.int32(0), dual)
    )
    server = server._replace(
        x0=server.x0 + _as(chosen, dual) * dual,
        dual=dual,
        rows=rows,
        number=jnp.int32(1),
        eta=chosen,
        first=chosen,
        step=chosen,
        unit=jnp.sqrt(chosen) * _norm(dual).astype(float),
    )
    weights = jnp.zeros(len(rows.consensus)).at[0].set(1)
    return server, Broadcast(server.x0, weights, chosen)


def later_server_step(server: Server, xbar: Vector, numbers: Numbers, rules: Rules) -> tuple[Server, Broadcast]:
    """Return the server that has appended a row, mixed all rows, and chosen s and eta of the next round."""
    v, eta, s, k = server.x0, server.eta, server.step, server.number
    place = jnp.arange(len(server.rows.consensus))
    slot = k % len(place)
    dual = server.dual + (xbar - v) / _as(eta, v)
    rows = append(server.rows, slot, v, xbar, dual, numbers)
    weight = eta**-0.5 * s**-1.5  # a^2
    c, apart, pull = mixed_step(rows, place == slot, place <= k, weight, numbers.bent, s, rules)

    before, between, after = (jnp.asarray(a @ b, float) for a, b in _pairs(server.dual, dual))
    unit = jnp.where(k == 1, jnp.maximum(server.unit, jnp.sqrt(eta * after)), server.unit)
    lowest = jnp.maximum(numbers.curvature ** (1 / 8) / eta, 0.9 * server.lowest)
    precise = after > (100 * jnp.finfo(after.dtype).eps) ** 2 * numbers.size  # else it is rounding
    eta = jnp.where(precise, balanced(eta, after, weight * rows.consensus[slot, slot], k, rules), eta)
    eta = jnp.minimum(eta, rules.convex / jnp.maximum(lowest, jnp.finfo(eta.dtype).tiny))
    eta = jnp.clip(eta, server.first / RANGE, server.first * RANGE)
    s = server_step(s, eta, before, between, after, rules.longest)

    size = _norm(mix(rows.duals, c)).astype(float)
    beyond = jnp.sqrt(apart / eta + eta * pull) + jnp.sqrt(2 / eta) * (s - eta) * size
    within = precise & affordable(beyond, unit, server.beyond, rules.budget)
    c, s = jnp.where(within, c, place == slot), jnp.where(within, s, eta)
    mixed = mix(rows.duals, c)
    x0 = mix(rows.xs, c) + _as(s, mixed) * mixed
    server = Server(x0, mixed, rows, k + 1, eta, server.first, s, lowest, unit, server.beyond + within)
    return server, Broadcast(x0, c, eta)


def append(rows: Rows, slot: Array, v: Vector, xbar: Vector, dual: Vector, numbers: Numbers) -> Rows:
    """Return the rows with the newest in its place."""
    xs = put(rows.xs, slot, xbar)
    return Rows(
        xs,
        put(rows.duals, slot, dual),
        _symmetric(rows.consensus, slot, numbers.near - dots(_minus(xs, v), xbar - v)),
        _symmetric(rows.turned, slot, numbers.turned),
        _symmetric(rows.pulled, slot, numbers.pulled),
    )


def mixed_step(
    rows: Rows, newest: Array, valid: Array, weight: Array, bent: Array, s: Array, rules: Rules
) -> tuple[Array, Array, Array]:
    """Return the weights c, and how far the mixed row is from the newest: mean_i ||dX_i||^2 and mean_i ||dlambda_i||^2.

    Args:
        rows: The rows.
        newest: (M + 1,) where the newest is.
        valid: (M + 1,) where there is a row.
        weight: a^2.
        bent: (M + 1,) nu.
        s: The server's step.
        rules: The constants.
    """
    A = weight * rows.consensus + gram(rows.duals) + jnp.diag(bent)
    mixed = mixing_weights(A, valid)
    change = jnp.where(valid, mixed - newest, 0)
    moved = mix(rows.xs, change)
    apart = change @ rows.consensus @ change + (moved @ moved).astype(float)
    pull = -change @ rows.pulled @ change / 2
    uphill = s * curvature_along(change, rows.turned, apart) < -rules.uphill
    residuals = jnp.where(valid, jnp.diag(A), jnp.inf)
    risen = jnp.any(newest & (residuals > rules.falling * jnp.min(residuals)))
    alone = uphill | risen | ~jnp.all(jnp.isfinite(mixed))
    apart, pull = (jnp.where(alone, 0, jnp.maximum(square, 0)) for square in (apart, pull))
    return jnp.where(alone, newest, mixed), apart, pull


def _symmetric(matrix: Array, slot: Array, row: Array) -> Array:
    """Return the matrix with this row and column; a diagonal entry of a Gram matrix is not negative."""
    row = row.at[slot].max(0)
    return matrix.at[slot].set(row).at[:, slot].set(row)


def _pairs(a: Vector, b: Vector) -> tuple[tuple[Vector, Vector], ...]:
    return (a, a), (a, b), (b, b)


def _plus(stack: Vector, x: Vector) -> Vector:
    return jax.tree.map(lambda leaf, one: leaf + one, stack, x)


def _minus(stack: Vector, x: Vector) -> Vector:
    return jax.tree.map(lambda leaf, one: leaf - one, stack, x)


def _norm(x: Vector) -> Array:
    return jnp.sqrt(x @ x)


def _as(number: Array, x: Vector) -> Array:
    """Return the number in the precision of x."""
    return number.astype(jax.tree.leaves(x)[0].dtype)
