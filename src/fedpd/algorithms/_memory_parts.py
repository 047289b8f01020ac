"""The common parts of both forms of FedPD-M: its agents, and its server.

`_memory.py`, where all agents are present, and `_memory_absent.py`, where some may be absent, differ in how they append
a row. Everything else is here: what a local solve shows, how an agent's rows differ, the server's memory, and how the
server goes from one round to the next, with the rules for the weights c, s and eta.
"""

from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedpd.algorithms._rules import eta_above_theorem_1
from fedpd.base.checks import refuse
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Vector, Work, augmented_lagrangian
from fedpd.core.lbfgs import Secants, rounding_of, steepest
from fedpd.core.vectors import dots, empty_stack, gram, in_precision_of, mix, norm, put, row


class Rules(NamedTuple):
    """The constants of FedPD-M. Each has a value that switches its rule off, for the ablation table."""

    aim: float = 0.2  # eta grows where this times ||m||/(a sqrt(G)) is above 1, and shrinks where it is below
    # the largest factor by which eta changes in a round; 1 leaves it as it is. In round k it is at most 1 + 100/(1 +
    # k)^1.1 as well, so that changes are summable
    change: float = 10.0
    longest: float = 1e3  # the longest server step s, in units of eta; 1 takes s = eta
    bend: float = 10.0  # the weight of what is not quadratic, in nu; 0 leaves it out
    mixes: float = 1.0  # whether older rows are mixed with the newest, 1 or 0
    convex: float = 0.3  # the largest eta times the negative curvature of an f_i; infinite: any
    # what all steps beyond Algorithm 2 may sum up to, in units of eta^(1/2) ||m|| of the start; infinite: anything.
    # When it is spent, all further rounds are those of Algorithm 2
    budget: float = 1e9
    # the rounds without progress after which the server descends where an f_i is not convex; infinite: never
    patience: float = 20.0
    informed: float = 1.0  # the duals of the start in units of minus the gradients; 0 begins as Algorithm 2 does


def mixing_weights(A: Array, valid: Array) -> Array:
    """Return the c that minimises c'Ac subject to sum c = 1, with 0 where there is no row.

    A is scaled to a diagonal of 1 and n times the precision is added to it, which is what its entries are known to.
    """
    info = jnp.finfo(A.dtype)
    diagonal = jnp.where(valid, jnp.maximum(jnp.diag(A), info.tiny), 1)
    least = jnp.min(jnp.where(valid, diagonal, jnp.inf))
    scaled = jnp.where(valid, jnp.sqrt(least / diagonal), 0)  # in [0, 1], so that nothing overflows
    root = jnp.sqrt(diagonal)
    B = jnp.where(valid[:, None] & valid, A / root / root[:, None], 0)
    identity = jnp.eye(len(A), dtype=A.dtype)
    B = jnp.where(identity > 0, 1 + 10 * info.eps * len(A), B)
    c = scaled * solve_positive(B, scaled)
    return c / jnp.sum(c)


def solve_positive(B: Array, b: Array) -> Array:
    """Return B^-1 b for a symmetric positive definite B, by Gauss-Jordan elimination.

    Not by LAPACK: where agents are sharded over the cores of a CPU and there are many seeds, a batch of its calls waits
    for threads that wait for it.
    """

    def eliminate(k: Array, rows: Array) -> Array:
        pivot = rows[k] / rows[k, k]
        return (rows - jnp.outer(rows[:, k], pivot)).at[k].set(pivot)

    return lax.fori_loop(0, len(b), eliminate, jnp.concatenate([B, b[:, None]], axis=1))[:, -1]


def server_step(step: Array, eta: Array, before: Array, between: Array, after: Array, longest: float) -> Array:
    """Return s of the next round: a Barzilai-Borwein length, at least eta.

    The last step p = s m^ changed the mean dual by -q = m - m^. Where <p, q> > 0, s = ||p||/||q||. Where it is not, the
    mean of the f_i is not convex along p, or other changes hide it: twice the last step.

    Args:
        before: <m^, m^>.
        between: <m^, m>.
        after: <m, m>.
        longest: The longest s in units of eta.
    """
    moved = jnp.maximum(before - 2 * between + after, jnp.finfo(before.dtype).tiny)
    length = jnp.where(before > between, step * jnp.sqrt(before / moved), 2 * step)
    return jnp.clip(length, eta, longest * eta)


def balanced(eta: Array, dual: Array, consensus: Array, rows: Array, rules: Rules) -> Array:
    """Return eta times sqrt(aim ||m||/(a sqrt(G))), by at most a factor `change`: a larger eta lets agents differ more.

    Args:
        dual: ||m||^2 of the newest row.
        consensus: a^2 G of the newest row.
        rows: k, how many rows there have been.
    """
    ratio = jnp.sqrt(dual / jnp.maximum(consensus, jnp.finfo(dual.dtype).tiny))
    most = jnp.minimum(rules.change, 1 + 100 / (1.0 + rows) ** 1.1)
    return eta * jnp.clip(jnp.sqrt(rules.aim * ratio), 1 / most, most)


FIRST = 0.3  # eta of the start in units of 1/mean L_i
RANGE = 1e6  # eta stays within this factor of its start

Own = TypeVar("Own")


class Rows(NamedTuple):
    """The server's memory: row k is in place k mod (M + 1), as at the agents."""

    xs: Vector  # xbar_k
    duals: Vector  # m_k
    consensus: Array  # (M + 1, M + 1) G


class Server(NamedTuple, Generic[Own]):
    x0: Vector  # v
    dual: Vector  # m^
    rows: Rows
    number: Array  # of rows so far
    eta: Array
    first: Array  # the eta of the start
    step: Array  # s
    lowest: Array  # the negative curvature of the f_i so far, forgotten by a tenth per round; >= 0
    unit: Array  # eta^(1/2) ||m|| of the start, or of the first solve if that is larger
    spent: Array  # how far all steps so far went beyond Algorithm 2
    own: Own  # what only one of the two forms needs


class NewestRow(NamedTuple):
    """The numbers that agents send about the newest row, beside the row."""

    answer: Vector  # the mean dual after the last step, as if all agents had changed theirs as those present did
    bent: Array  # (M + 1,) nu
    curvature: Array  # the mean of the eighth powers of eta times the negative curvature
    size: Array  # the mean of ||Lambda_new||^2
    moved: Array  # the mean over all agents of the square of the distance from the last row to the mixed one
    share: Array  # the share of agents that are present, the mean over all rounds so far


def new_server(x: Vector, size: int, own: Own) -> Server[Own]:
    """Return the server at the start x, with room for `size` rows."""
    stack, zero = empty_stack(x, size), jnp.zeros((), float)
    rows = Rows(stack, stack, jnp.zeros((size, size)))
    return Server(x, 0 * x, rows, jnp.int32(0), zero, zero, zero, zero, zero, zero, own)


def first_server(server: Server[Own], dual: Vector, curvature: Array, eta: float | None) -> tuple[Server[Own], Array]:
    """Return the server that has the mean dual at the start, and eta; and the weights.

    Args:
        curvature: The mean of the L_i.
        eta: The penalty's eta; None finds it.
    """
    chosen = FIRST / curvature if eta is None else jnp.asarray(eta, float)
    rows, first = server.rows, jnp.int32(0)
    server = server._replace(
        x0=server.x0 + in_precision_of(dual, chosen) * dual,
        dual=dual,
        rows=rows._replace(xs=put(rows.xs, first, server.x0), duals=put(rows.duals, first, dual)),
        number=jnp.int32(1),
        eta=chosen,
        first=chosen,
        step=chosen,
        unit=jnp.sqrt(chosen) * norm(dual).astype(float),
    )
    return server, jnp.zeros(len(rows.consensus)).at[0].set(1)


def next_server(
    server: Server[Own], rows: Rows, heard: NewestRow, rules: Rules, beyond: Array
) -> tuple[Server[Own], Array, Array]:
    """Return the server that has mixed its rows and chosen the next s and eta; the weights c; and A without nu.

    Args:
        beyond: Whether the next round may go beyond Algorithm 2; if not, it is the newest row alone, with s = eta.
    """
    eta, s, k = server.eta, server.step, server.number
    place = jnp.arange(len(rows.consensus))
    slot = k % len(place)
    length = jnp.sqrt(2 / eta) * (s - eta) * norm(server.dual).astype(float)
    spent = server.spent + jnp.sqrt(heard.moved) + length

    weight = heard.share * eta**-0.5 * s**-1.5  # a^2
    A = weight * rows.consensus + gram(rows.duals)
    c = mixing_weights(A + jnp.diag(heard.bent), place <= k)

    dual, answer = row(rows.duals, slot), heard.answer
    squared, before, between, after = (
        jnp.asarray(a @ b, float)
        for a, b in ((dual, dual), (server.dual, server.dual), (server.dual, answer), (answer, answer))
    )
    unit = jnp.where(k == 1, jnp.maximum(server.unit, jnp.sqrt(eta * squared)), server.unit)
    lowest = jnp.maximum(heard.curvature ** (1 / 8) / eta, 0.9 * server.lowest)
    precise = squared > (100 * jnp.finfo(squared.dtype).eps) ** 2 * heard.size  # else it is rounding
    balances = precise & (heard.share >= 1)  # with absent agents G says how old rows are
    eta = jnp.where(balances, balanced(eta, squared, weight * rows.consensus[slot, slot], k, rules), eta)
    eta = jnp.minimum(eta, rules.convex / jnp.maximum(lowest, jnp.finfo(eta.dtype).tiny))
    eta = jnp.clip(eta, server.first / RANGE, server.first * RANGE)
    s = server_step(s, eta, before, between, after, rules.longest)

    within = beyond & precise & (spent <= rules.budget * unit)
    c = jnp.where(within & (rules.mixes > 0) & jnp.all(jnp.isfinite(c)), c, place == slot)
    s = jnp.where(within, s, eta)
    mixed = mix(rows.duals, c)
    server = server._replace(
        x0=mix(rows.xs, c) + in_precision_of(mixed, s) * mixed,
        dual=mixed,
        rows=rows,
        number=k + 1,
        eta=eta,
        step=s,
        lowest=lowest,
        unit=unit,
        spent=spent,
    )
    return server, c, A


def symmetric(matrix: Array, slot: Array, entries: Array) -> Array:
    """Return the matrix with this row and column; a diagonal entry of a Gram matrix is not negative."""
    entries = entries.at[slot].max(0)
    return matrix.at[slot].set(entries).at[:, slot].set(entries)


def minus(stack: Vector, x: Vector) -> Vector:
    """Return the stack of x_k - x."""
    return jax.tree.map(lambda leaf, one: leaf - one, stack, x)


PROBES = 10  # gradients of the power iteration for L_i
USUAL = Rules()

Held = TypeVar("Held", bound=Any)  # an agent of either form


class Remembering(Method):
    """FedPD-M in both forms. `eta="auto"` finds eta."""

    eta: float | Literal["auto"]
    oracle: Oracle
    memory: int
    start: Literal["local", "server"]
    rules: Rules = USUAL
    compares_rounds = True

    @property
    def given_eta(self) -> Any:
        """The penalty's eta; None if the run finds it."""
        return None if isinstance(self.eta, str) else self.eta

    def model(self, agent: Any) -> Vector:
        return agent.x0

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        rule = "mixes each agent's past outcomes, and this agent has lost its own"
        refuse("memory", self.memory, rule, "Start the run again, from x^0 or from its last model")

    def caution(self, L: float) -> str | None:
        return None if self.given_eta is None else eta_above_theorem_1(self.given_eta, L)


class Solve(NamedTuple):
    """The facts that a local solve has shown beside its outcome."""

    memory: Any  # of the oracle
    lowest: Array  # the negative curvature of f_i that the oracle met; >= 0
    largest: Array  # the largest curvature
    work: Work


class Outcome(NamedTuple):
    """A row of an agent, or a stack of rows."""

    x: Vector
    dual: Vector
    value: Array  # of f_i


def largest_curvature(f: LocalObjective, x: Vector, gradient: Vector) -> Array:
    """Return L_i, an estimate of ||Hessian of f_i(x)||, by power iteration on PROBES gradient differences."""
    flat, unravel = ravel_pytree(x)
    info = jnp.finfo(flat.dtype)
    length = info.eps**0.25 * (1 + norm(x))
    start = unravel(jax.random.normal(jax.random.key(0, impl="threefry2x32"), flat.shape, flat.dtype))

    def probe(_: Any, carry: tuple[Vector, Array]) -> tuple[Vector, Array]:
        direction, _ = carry
        step = direction * (length / jnp.maximum(norm(direction), info.tiny))
        change = (f.gradient(x + step) - gradient) / length
        return change, norm(change)

    _, largest = lax.fori_loop(0, PROBES, probe, (start, jnp.zeros((), flat.dtype)))
    return jnp.maximum(largest, info.tiny).astype(float)


def outcome_of_start(f: LocalObjective, x: Vector, eta: float | None, rules: Rules) -> tuple[Outcome, Array, Work]:
    """Return the first row of an agent, L_i (1 if eta is given), and the work."""
    value, gradient = f.value_and_gradient(x)
    smoothness = largest_curvature(f, x, gradient) if eta is None else jnp.ones((), float)
    work = Work.of(0, 1 + PROBES if eta is None else 1, f.size)
    return Outcome(x, -rules.informed * gradient, value.astype(float)), smoothness, work


def solve_locally(
    oracle: Oracle, f: LocalObjective, agent: Any, first: Vector, dual: Vector, r: Array, key: Key
) -> tuple[Outcome, Solve]:
    """Return an agent's new outcome, and what its local solve, from `first` with the mixed dual, has shown."""
    v, eta = agent.x0, agent.eta
    w, kept, work = oracle.solve(augmented_lagrangian(f, v, dual, eta), first, agent.memory, r, key)
    if isinstance(kept, Secants):
        value, solve = kept.value, Solve(kept, -kept.lowest, steepest(kept), work)
    else:
        value, none = f.value(w).astype(float), jnp.zeros((), float)
        solve = Solve(kept, none, none, work.plus(Work.of(0, 1, f.size)))
    return Outcome(w, dual + (w - v) / eta, value), solve


def with_outcome(agent: Held, outcome: Outcome, slot: Array) -> Held:
    """Return the agent with a row in its place."""
    return agent._replace(
        xs=put(agent.xs, slot, outcome.x),
        duals=put(agent.duals, slot, outcome.dual),
        values=agent.values.at[slot].set(outcome.value),
    )


def bend_of_rows(rows: Outcome, newest: Outcome, L: Array, bend: float) -> Array:
    """Return nu_l: how far f_i is from a quadratic between each row and the newest. L: its curvature, for rounding."""
    w, dual, value = newest
    apart = minus(rows.x, w)  # X_l - w
    duals = jax.tree.map(lambda leaf, one: leaf + one, rows.dual, dual)
    excess = jnp.abs(rows.value - value + dots(apart, duals) / 2)
    rounding = rounding_of(rows.value, dots(rows.x, rows.x), L) + rounding_of(value, (w @ w).astype(float), L)
    excess = jnp.maximum(excess - rounding, 0)
    distance = jnp.maximum(dots(apart, apart), jnp.finfo(excess.dtype).tiny)
    return jnp.where(excess > 0, (bend * excess) ** 2 / distance, 0)


def distance_to_row(agent: Any, x: Vector, dual: Vector, slot: Array) -> Array:
    """Return the square of the distance of (x, dual) from the agent's row in a place, in the norm of Theorem 4."""
    dx, turned = (one - row(stack, slot) for one, stack in ((x, agent.xs), (dual, agent.duals)))
    return (dx @ dx).astype(float) / agent.eta + agent.eta * (turned @ turned).astype(float)
