"""FedPD-M with partial participation: an agent that is absent keeps its last outcome.

A row of the memory is what all agents hold: the new outcome of an agent that is present, and a copy of the last outcome
of an agent that is absent. So every row of an agent is a point of its gradient's graph, and an agent that returns knows
the rows that it missed without having heard of those rounds: they are copies. It needs the newest broadcast only.

    agent   fills the rows that it missed with its newest (X_old, Lambda_old)
            x_i, lambda_i, w and Lambda as in `_memory.py`
            up: w - X_old, Lambda - Lambda_old, and 4(M + 1) + 2 numbers       (two models)
    server  xbar_k = xbar_{k-1} + q mean_S (w - X_old),   m_k = m_{k-1} + q mean_S (Lambda - Lambda_old)

with S the agents that are present and q their share of all agents. The sums that the server keeps (G, nu, curvature,
lengths) are of all agents, and change by those of S: the row k of such a matrix is its row k - 1 plus q times the mean
over S of what changed. Two rules of `_memory.py` differ, and are the same when all agents are present:

    s     the mean dual's answer to a step is that of S alone, m_{k-1} + mean_S (Lambda - Lambda_old), since the answer
          of all agents together is smaller by the factor q, and s would be longer by 1/q
    A     a^2 q G in the place of a^2 G: agents that were absent differ from the others by what they missed

eta is balanced while all agents have been present, and stays as it is after the first absence: G then says how old rows
are, not how far agents disagree. Where the mean of q so far is below LEAST, nothing is mixed. Variables are not scaled:
an agent that was absent when the scales were sent would never hear of them. An agent whose first round is a later one
has the rows (x^0, 0) until then; they are not on its gradient's graph, which nu sees.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.algorithms._memory import PROBES, RANGE, Rows, largest_curvature, mixed_step, seen_in_solve
from fedpd.algorithms._mixing import Rules, affordable, balanced, server_step
from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Oracle, Work, augmented_lagrangian
from fedpd.core.stacked import dots, empty_stack, mix, put

LEAST = 0.2  # the mean share of agents present, below which nothing is mixed: it took up to 1.7 times as many rounds


class Agent(NamedTuple):
    x0: Vector  # v, this agent's copy of the global model
    xs: Vector  # X_k, a stack of models in a ring: row k is in place k mod size
    duals: Vector  # Lambda_k
    values: Array  # (size,) f_k
    last: Array  # the newest row of its own
    weights: Array  # (size,) c
    eta: Array
    number: Array  # the next row; 0 before the first communication
    change: tuple[Vector, Vector]  # w - X_old and Lambda - Lambda_old, which are sent
    numbers: "Numbers"  # what is sent beside the models
    memory: Any  # of the oracle


class Numbers(NamedTuple):
    """The numbers that agents send beside two models; the server averages all of them."""

    near: Array  # (size,) <w - X_old, X_l - v>
    turned: Array  # (size,) the change of <X_new - X_l, Lambda_new - Lambda_l>, where X_new was X_old
    pulled: Array  # (size,) the change of ||Lambda_new - Lambda_l||^2
    bent: Array  # (size,) the change of nu_l
    curvature: Array  # L_i in the first round; later the eighth power of eta times the negative curvature
    size: Array  # ||Lambda_new||^2


class Broadcast(NamedTuple):
    x0: Vector  # v
    weights: Array  # (size,) c
    eta: Array
    number: Array  # the next row


class Server(NamedTuple):
    x0: Vector  # v
    dual: Vector  # m^
    rows: Rows
    bent: Array  # (size,) nu
    number: Array  # of rows so far
    heard: Array  # the sum of all shares
    eta: Array
    first: Array  # the eta of the start
    step: Array  # s
    lowest: Array  # the negative curvature of the f_i so far, forgotten by a tenth per round; >= 0
    unit: Array  # eta^(1/2) ||m|| of the start, or of the first solve if that is larger
    beyond: Array  # how many steps went beyond Algorithm 2


class Mean(NamedTuple):
    """What the server hears: the mean over the agents that are present, and their share."""

    moved: Vector  # mean_S (w - X_old)
    turned: Vector  # mean_S (Lambda - Lambda_old)
    numbers: Numbers
    share: Array  # q


def with_absent_agents(
    eta: float | None, oracle: Oracle, memory: int, start: str = "local", rules: Rules | None = None
) -> Algorithm:
    """Return the form of FedPD-M for partial participation; the arguments are those of `with_memory`."""
    rules = Rules() if rules is None else rules
    rules = rules if eta is None else rules._replace(change=1.0, convex=float("inf"))
    size = max(memory, 1) + 1  # the newest row and the one before it are compared, even where nothing is mixed

    def init(f: LocalObjective, x: Vector) -> Agent:
        row, zero, none = jnp.zeros(size), jnp.zeros((), float), jnp.int32(0)
        stack, numbers = empty_stack(x, size), Numbers(row, row, row, row, zero, zero)
        values = row if oracle.batch is not None else jnp.full(size, f.value(x), float)
        xs = put(stack, none, x)
        return Agent(x, xs, stack, values, none, row, zero, none, (0 * x, 0 * x), numbers, oracle.init(f, x))

    def server(x: Vector) -> Server:
        stack, row, square = empty_stack(x, size), jnp.zeros(size), jnp.zeros((size, size))
        zero, none = jnp.zeros((), float), jnp.int32(0)
        rows = Rows(put(stack, none, x), stack, square, square, square)
        return Server(x, 0 * x, rows, row, none, zero, zero, zero, zero, zero, zero, none)

    def begin(f: LocalObjective, agent: Agent) -> tuple[Agent, Work]:
        gradient = f.gradient(agent.x0)
        dual = -rules.informed * gradient
        smoothness = largest_curvature(f, agent.x0, gradient) if eta is None else jnp.ones((), float)
        agent = agent._replace(
            duals=put(agent.duals, jnp.int32(0), dual),
            change=(0 * dual, dual),
            numbers=agent.numbers._replace(curvature=smoothness),
        )
        gradients = 1 + PROBES if eta is None else 1
        return agent, Work(jnp.int32(0), gradients * jnp.asarray(f.size, jnp.int32))

    def proceed(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent = with_missed_rows(agent)
        k, v = agent.number, agent.x0
        x, dual = mix(agent.xs, agent.weights), mix(agent.duals, agent.weights)
        lagrangian = augmented_lagrangian(f, v, dual, agent.eta)
        w, kept, work = oracle.solve(lagrangian, x if start == "local" else v, agent.memory, r, key)
        value, lowest, more = seen_in_solve(f, w, kept, oracle)
        agent = with_row(agent, w, dual + (w - v) / agent.eta, value, rules.bend)
        numbers = agent.numbers._replace(curvature=(agent.eta * lowest) ** 8)
        agent = agent._replace(last=k, memory=kept, numbers=numbers)
        return agent, work._replace(samples=work.samples + more)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return lax.cond(agent.number == 0, partial(begin, f), partial(proceed, f, r=r, key=key), agent)

    def send(agent: Agent) -> tuple[tuple[Vector, Vector], Numbers]:
        return agent.change, agent.numbers

    def aggregate(server: Server, mean: Any, share: Any) -> tuple[Server, Broadcast]:
        (moved, turned), numbers = mean
        heard = Mean(moved, turned, numbers, jnp.asarray(share, float))
        first, later = partial(first_server_step, eta=eta), partial(later_server_step, mixes=memory > 0, rules=rules)
        return lax.cond(server.number == 0, first, later, server, heard)

    def receive(agent: Agent, broadcast: Broadcast) -> Agent:
        x0, weights, eta, number = broadcast
        return agent._replace(x0=x0, weights=weights, eta=eta, number=number)

    return Algorithm(
        "fedpd",
        init=init,
        server=server,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x0,
        away=Away(),
    )


def with_missed_rows(agent: Agent) -> Agent:
    """Return the agent with copies of its newest row in the places of the rows that it missed."""
    size = len(agent.values)
    newest = agent.number - 1
    held = newest - (newest - jnp.arange(size)) % size  # the row that is in each place
    missed, slot = held > agent.last, agent.last % size

    def fill(leaf: Array) -> Array:
        return jnp.where(missed.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf[slot], leaf)

    xs, duals, values = jax.tree.map(fill, (agent.xs, agent.duals, agent.values))
    return agent._replace(xs=xs, duals=duals, values=values)


def with_row(agent: Agent, w: Vector, dual: Vector, value: Array, bend: float) -> Agent:
    """Return the agent that has appended (w, Lambda, f_i(w)), with the changes that it sends."""
    size = len(agent.values)
    before, slot = (agent.number - 1) % size, agent.number % size
    held = (agent.xs, agent.duals, agent.values)
    x_old, dual_old, value_old = jax.tree.map(lambda leaf: leaf[before], held)
    values = agent.values.at[slot].set(value)
    agent = agent._replace(xs=put(agent.xs, slot, w), duals=put(agent.duals, slot, dual), values=values)
    change = (w - x_old, dual - dual_old)
    near = dots(_minus(agent.xs, agent.x0), change[0])
    now, then = compare(agent, w, dual, value, bend), compare(agent, x_old, dual_old, value_old, bend)
    turned, pulled, bent = (one - other for one, other in zip(now, then, strict=True))
    numbers = Numbers(near, turned, pulled, bent, jnp.zeros_like(value), (dual @ dual).astype(float))
    return agent._replace(change=change, numbers=numbers)


def compare(agent: Agent, x: Vector, dual: Vector, value: Array, bend: float) -> tuple[Array, Array, Array]:
    """Return <X_l - x, Lambda_l - dual>, ||Lambda_l - dual||^2 and nu_l of the point (x, dual, value) with each row."""
    apart, turning = _minus(agent.xs, x), _minus(agent.duals, dual)
    mean = jax.tree.map(lambda leaf, one: leaf + one, agent.duals, dual)
    excess = jnp.abs(agent.values - value + dots(apart, mean) / 2)
    info = jnp.finfo(excess.dtype)
    excess = jnp.maximum(excess - 100 * info.eps * (jnp.abs(agent.values) + jnp.abs(value)), 0)
    distance = jnp.maximum(dots(apart, apart), info.tiny)
    bent = jnp.where(excess > 0, (bend * excess) ** 2 / distance, 0)
    return dots(apart, turning), dots(turning, turning), bent


def first_server_step(server: Server, mean: Mean, eta: float | None) -> tuple[Server, Broadcast]:
    """Return the server that has the mean dual at the start, and eta."""
    chosen = 1 / mean.numbers.curvature if eta is None else jnp.asarray(eta, float)
    dual = _as(mean.share, server.dual) * mean.turned
    server = server._replace(
        x0=server.x0 + _as(chosen, dual) * dual,
        dual=dual,
        rows=server.rows._replace(duals=put(server.rows.duals, jnp.int32(0), dual)),
        number=jnp.int32(1),
        heard=mean.share,
        eta=chosen,
        first=chosen,
        step=chosen,
        unit=jnp.sqrt(chosen * (dual @ dual).astype(float)),
    )
    weights = jnp.zeros(len(server.bent)).at[0].set(1)
    return server, Broadcast(server.x0, weights, chosen, server.number)


def later_server_step(server: Server, mean: Mean, mixes: bool, rules: Rules) -> tuple[Server, Broadcast]:
    """Return the server that has appended a row, mixed all rows, and chosen s and eta of the next round."""
    eta, s, k, numbers = server.eta, server.step, server.number, mean.numbers
    place = jnp.arange(len(server.bent))
    slot, before = k % len(place), (k - 1) % len(place)
    rows, bent = append(server, mean)
    dual = jax.tree.map(lambda leaf: leaf[slot], rows.duals)
    heard = server.heard + mean.share
    usual = heard / (k + 1.0)  # the mean share
    often = jnp.asarray(mixes) & (usual >= LEAST)
    weight = usual * eta**-0.5 * s**-1.5  # a^2 q
    c, apart, pull = mixed_step(rows, place == slot, (place <= k) & (often | (place == slot)), weight, bent, s, rules)

    answer = jax.tree.map(lambda leaf: leaf[before], server.rows.duals) + mean.turned
    before_step, between, after = (
        jnp.asarray(a @ b, float) for a, b in ((server.dual, server.dual), (server.dual, answer), (answer, answer))
    )
    newest = (dual @ dual).astype(float)
    unit = jnp.where(k == 1, jnp.maximum(server.unit, jnp.sqrt(eta * newest)), server.unit)
    lowest = jnp.maximum(numbers.curvature ** (1 / 8) / eta, 0.9 * server.lowest)
    precise = newest > (100 * jnp.finfo(after.dtype).eps) ** 2 * numbers.size  # else it is rounding
    balance = precise & (usual >= 1)
    eta = jnp.where(balance, balanced(eta, newest, weight * rows.consensus[slot, slot], k, rules), eta)
    eta = jnp.minimum(eta, rules.convex / jnp.maximum(lowest, jnp.finfo(eta.dtype).tiny))
    eta = jnp.clip(eta, server.first / RANGE, server.first * RANGE)
    s = server_step(s, eta, before_step, between, after, rules.longest)

    mixed = mix(rows.duals, c)
    beyond = jnp.sqrt(apart / eta + eta * pull) + jnp.sqrt(2 / eta * (mixed @ mixed).astype(float)) * (s - eta)
    within = precise & affordable(beyond, unit, server.beyond, rules.budget)
    c, s = jnp.where(within, c, place == slot), jnp.where(within, s, eta)
    mixed = mix(rows.duals, c)
    x0 = mix(rows.xs, c) + _as(s, mixed) * mixed
    steps = server.beyond + within
    server = Server(x0, mixed, rows, bent, k + 1, heard, eta, server.first, s, lowest, unit, steps)
    return server, Broadcast(x0, c, eta, server.number)


def append(server: Server, mean: Mean) -> tuple[Rows, Array]:
    """Return the rows with the newest in its place, and nu; absent agents have their last outcomes in it."""
    rows, numbers, q = server.rows, mean.numbers, mean.share
    size = len(server.bent)
    slot, before = server.number % size, (server.number - 1) % size

    def newest(stack: Vector, change: Vector) -> Vector:
        return put(stack, slot, jax.tree.map(lambda leaf: leaf[before], stack) + _as(q, change) * change)

    xs = newest(rows.xs, mean.moved)
    near = q * (numbers.near - dots(_minus(xs, server.x0), mean.moved))
    consensus = (rows.consensus[before] + near).at[slot].set(0)
    consensus = consensus.at[slot].set(consensus[before] + near[slot])
    turned, pulled, bent = (
        (row + q * change).at[slot].set(0)
        for row, change in (
            (rows.turned[before], numbers.turned),
            (rows.pulled[before], numbers.pulled),
            (server.bent, numbers.bent),
        )
    )
    grams = (
        matrix.at[slot].set(row).at[:, slot].set(row)
        for matrix, row in (
            (rows.consensus, consensus.at[slot].max(0)),
            (rows.turned, turned),
            (rows.pulled, jnp.maximum(pulled, 0)),
        )
    )
    return Rows(xs, newest(rows.duals, mean.turned), *grams), jnp.maximum(bent, 0)


def _minus(stack: Vector, x: Vector) -> Vector:
    return jax.tree.map(lambda leaf, one: leaf - one, stack, x)


def _as(number: Array, x: Vector) -> Array:
    """Return the number in the precision of x."""
    return number.astype(jax.tree.leaves(x)[0].dtype)
