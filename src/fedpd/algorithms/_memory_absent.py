"""FedPD-M with partial participation: an agent that is absent keeps its last outcome.

A row of the memory is what all agents hold: the new outcome of an agent that is present, and a copy of the last outcome
of an agent that is absent. So every row of an agent is a point of its gradient's graph, and an agent that returns knows
the rows that it missed without having heard of those rounds: they are copies. It needs the newest broadcast only.

    agent   fills the rows that it missed with its newest (X_old, Lambda_old)
            x_i, lambda_i, w and Lambda as in `_memory.py`
            up: w - X_old, Lambda - Lambda_old, and 2(M + 1) + 3 numbers       (two models)
    server  xbar_k = xbar_{k-1} + q mean_S (w - X_old),   m_k = m_{k-1} + q mean_S (Lambda - Lambda_old)

with S the agents that are present and q their share of all agents. The sums that the server keeps (G and nu) are of all
agents, and change by those of S: row k of G is its row k - 1 plus q times the mean over S of what changed. Two rules of
`_memory.py` differ, and are the same when all agents are present and M > 0:

    s     the mean dual's answer to a step is that of S alone, m_{k-1} + mean_S (Lambda - Lambda_old), since the answer
          of all agents together is smaller by the factor q, and s would be longer by 1/q
    A     a^2 q G in the place of a^2 G: agents that were absent differ from the others by what they missed

eta is balanced while all agents have been present, and stays as it is after the first absence: G then says how old rows
are, not how far agents disagree. With M = 0, and where the mean of q so far is below LEAST, nothing is mixed and
s = eta: long steps without mixing diverged on a convex quadratic problem. Variables are not scaled: an agent that was
absent when the scales were sent would never hear of them. An agent whose first round is a later one has the rows
(x^0, 0) until then; they are not on its gradient's graph, which nu sees. The server does not descend where mixing
stalls, as `_memory.py` does: the values of absent agents are of other points, so their mean is no value of f.
Theorem 4 does not hold here.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

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
from fedpd.core import Array, Key, LocalObjective, Vector, Work
from fedpd.core.vectors import dots, empty_stack, in_precision_of, mix, put, row

LEAST = 0.2  # the mean share of agents present, below which nothing is mixed: it took up to 1.7 times as many rounds


class Agent(NamedTuple):
    x0: Vector  # v, this agent's copy of the global model
    xs: Vector  # X_k, a stack of models in a ring: row k is in place k mod size
    duals: Vector  # Lambda_k
    values: Array  # (size,) f_k
    bent: Array  # (size,) nu, as it is in the server's sum
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
    bent: Array  # (size,) the change of nu_l
    curvature: Array  # L_i in the first round; later the eighth power of eta times the negative curvature
    size: Array  # ||Lambda_new||^2
    moved: Array  # ||dX||^2/eta + eta ||dlambda||^2, from the last row to the mixed one


class Broadcast(NamedTuple):
    x0: Vector  # v
    weights: Array  # (size,) c
    eta: Array
    number: Array  # the next row


class Sums(NamedTuple):
    """The part of the server's state that exists because agents may be absent."""

    bent: Array  # (size,) nu, the mean over all agents
    heard: Array  # the sum of all shares


class Mean(NamedTuple):
    """The message that the server hears: the mean over the agents that are present, and their share."""

    moved: Vector  # mean_S (w - X_old)
    turned: Vector  # mean_S (Lambda - Lambda_old)
    numbers: Numbers
    share: Array  # q


class FedPDMWithAbsent(Remembering):
    """The form of FedPD-M for partial participation."""

    @property
    def size(self) -> int:
        """The rows of the memory: the newest and the one before it are compared, even where nothing is mixed."""
        return max(self.memory, 1) + 1

    @property
    def own_rules(self) -> Rules:
        return self.rules if self.given_eta is None else self.rules._replace(change=1.0, convex=float("inf"))

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        none, zero, row_0 = jnp.zeros(self.size), jnp.zeros((), float), jnp.int32(0)
        stack, numbers = empty_stack(x, self.size), Numbers(none, none, zero, zero, zero)
        kept, change = self.oracle.init(f, x), (0 * x, 0 * x)
        agent = Agent(x, stack, stack, none, none, row_0, none, zero, row_0, change, numbers, kept)
        return with_outcome(agent, Outcome(x, 0 * x, f.value(x).astype(float)), row_0)

    def server(self, x: Vector) -> Server[Sums]:
        return new_server(x, self.size, Sums(jnp.zeros(self.size), jnp.zeros((), float)))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return lax.cond(agent.number == 0, partial(self.begin, f), partial(self.proceed, f, r=r, key=key), agent)

    def begin(self, f: LocalObjective, agent: Any) -> tuple[Any, Work]:
        outcome, smoothness, work = outcome_of_start(f, agent.x0, self.given_eta, self.rules)
        numbers = agent.numbers._replace(curvature=smoothness)
        agent = with_outcome(agent, outcome, jnp.int32(0))
        return agent._replace(change=(0 * outcome.x, outcome.dual), numbers=numbers), work

    def proceed(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        agent = with_missed_rows(agent)
        slot, before = agent.number % self.size, (agent.number - 1) % self.size
        x, dual = mix(agent.xs, agent.weights), mix(agent.duals, agent.weights)
        moved = distance_to_row(agent, x, dual, before)
        first = x if self.start == "local" else agent.x0
        outcome, solve = solve_locally(self.oracle, f, agent, first, dual, r, key)
        change = (outcome.x - row(agent.xs, before), outcome.dual - row(agent.duals, before))
        agent = with_outcome(agent, outcome, slot)
        rows = Outcome(agent.xs, agent.duals, agent.values)
        bent = bend_of_rows(rows, outcome, solve.largest, self.rules.bend)
        near = dots(minus(agent.xs, agent.x0), change[0])
        lengths = (agent.eta * solve.lowest) ** 8, (outcome.dual @ outcome.dual).astype(float), moved
        numbers = Numbers(near, bent - agent.bent, *lengths)
        agent = agent._replace(bent=bent, last=agent.number, change=change, numbers=numbers, memory=solve.memory)
        return agent, solve.work

    def send(self, agent: Agent) -> tuple[tuple[Vector, Vector], Numbers]:
        return agent.change, agent.numbers

    def aggregate(self, server: Server[Sums], mean: Any, share: Any) -> tuple[Server[Sums], Broadcast]:
        (moved, turned), numbers = mean
        heard = Mean(moved, turned, numbers, jnp.asarray(share, float))
        first = partial(first_server_step, eta=self.given_eta)
        later = partial(later_server_step, mixes=self.memory > 0, rules=self.own_rules)
        server, weights = lax.cond(server.number == 0, first, later, server, heard)
        return server, Broadcast(server.x0, weights, server.eta, server.number)

    def receive(self, agent: Agent, broadcast: Broadcast) -> Agent:
        x0, weights, eta, number = broadcast
        return agent._replace(x0=x0, weights=weights, eta=eta, number=number)


def with_missed_rows(agent: Agent) -> Agent:
    """Return the agent with copies of its newest row in the places of the rows that it missed."""
    size = len(agent.values)
    newest = agent.number - 1
    held = newest - (newest - jnp.arange(size)) % size  # the row that is in each place
    missed, slot = held > agent.last, agent.last % size

    def fill(leaf: Array) -> Array:
        return jnp.where(missed.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf[slot], leaf)

    xs, duals, values = jax.tree.map(fill, (agent.xs, agent.duals, agent.values))
    return agent._replace(xs=xs, duals=duals, values=values, bent=jnp.where(missed, 0, agent.bent))


def first_server_step(server: Server[Sums], mean: Mean, eta: float | None) -> tuple[Server[Sums], Array]:
    """Return the server that has the mean dual at the start, and eta; and the weights."""
    dual = in_precision_of(mean.turned, mean.share) * mean.turned
    server, weights = first_server(server, dual, mean.numbers.curvature, eta)
    return server._replace(own=server.own._replace(heard=mean.share)), weights


def later_server_step(server: Server[Sums], mean: Mean, mixes: bool, rules: Rules) -> tuple[Server[Sums], Array]:
    """Return the server that has appended a row, mixed all rows, and chosen s and eta of the next round; and c."""
    size, k, numbers, q = len(server.rows.consensus), server.number, mean.numbers, mean.share
    slot, before = k % size, (k - 1) % size
    rows = append(server.rows, slot, before, server.x0, mean)
    bent = jnp.maximum(server.own.bent + q * numbers.bent, 0).at[slot].set(0)
    heard = server.own.heard + q
    share = heard / (k + 1.0)
    answer = row(server.rows.duals, before) + mean.turned
    newest = NewestRow(answer, bent, numbers.curvature, numbers.size, q * numbers.moved, share)
    server, c, _ = next_server(server, rows, newest, rules, jnp.asarray(mixes) & (share >= LEAST))
    return server._replace(own=Sums(bent, heard)), c


def append(rows: Rows, slot: Array, before: Array, v: Vector, mean: Mean) -> Rows:
    """Return the rows with the newest in its place; absent agents have their last outcomes in it."""
    q, moved = mean.share, mean.moved

    def newest(stack: Vector, change: Vector) -> Vector:
        return put(stack, slot, row(stack, before) + in_precision_of(change, q) * change)

    xs = newest(rows.xs, moved)
    near = q * (mean.numbers.near - dots(minus(xs, v), moved))
    consensus = rows.consensus[before] + near
    consensus = consensus.at[slot].set(consensus[before] + near[slot])
    return Rows(xs, newest(rows.duals, mean.turned), symmetric(rows.consensus, slot, consensus))
