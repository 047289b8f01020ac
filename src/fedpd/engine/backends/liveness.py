"""Find out which arrays of an agent's state must be kept while the agent is absent.

An array is dropped if the newest broadcast replaces it anyway, or if nothing reads it. A field `personal` of the state,
the agent's own model, counts as read, because `run.personal` reads it. FedAvg keeps nothing. FedPD with
start="server" keeps one vector, the dual, although its agents have four. The traced functions of the method
(`jax.make_jaxpr`) tell what depends on what.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval

from fedpd.base.checks import refuse
from fedpd.core import Exchange, Method, Tree
from fedpd.core.agents import Functions, Shard, agent_key, objective_in_round
from fedpd.core.vectors import choose

Update = Callable[[Any, Tree], Any]  # (agent, broadcast) -> agent
Leaves = frozenset[int]  # numbers of leaves of an agent's state


class Liveness(NamedTuple):
    """Which leaves of an agent's state are kept while it is absent. It is hashable."""

    rows: tuple[int, ...]  # the numbers of the leaves that are kept
    replaced: tuple[int, ...]  # the numbers of the leaves that the newest broadcasts determine
    steady: bool  # whether they determine the agent's copy of the model, so that all copies are equal after every round


class Shapes(NamedTuple):
    """The shapes of one agent's data and state, and of the broadcasts of a round."""

    one: Shard
    agent: Any
    broadcasts: tuple[Any, ...]
    method: Method


def liveness_of(functions: Functions, shapes: Shapes) -> Liveness:
    """Return which leaves of an agent's state must be kept while it is absent."""
    algorithm = shapes.method
    if any(exchange.when is not None for exchange in algorithm.exchanges()[1:]):
        rule = "its later exchanges do not take place in every round, so an absent agent misses them in any order"
        refuse("algorithm", algorithm.description, rule, "Leave participation at 1, and give no cohort")
    replaced = _replaced(functions, shapes, algorithm)
    read = sources(lambda agent, method: method.model(agent), shapes.agent, shapes.method)
    of_model = _numbers(read[:, : len(jax.tree.leaves(shapes.agent))])
    reads = _reads(functions, shapes, algorithm)
    while True:
        live = _live(reads, (of_model - replaced) | _personal(shapes.agent))
        stale = _numbers(reads.absent[sorted(live - replaced)]) & replaced  # their old values matter
        if not stale:
            break
        replaced -= stale
    steady = of_model <= replaced and not algorithm.copies_differ
    return Liveness(tuple(sorted(live - replaced)), tuple(sorted(replaced)), steady)


def when_missed(exchange: Exchange) -> Update:
    """Return the update of an agent that missed a broadcast of this exchange."""
    return exchange.receive if exchange.missed is None else exchange.missed


def _replaced(functions: Functions, shapes: Shapes, algorithm: Method) -> Leaves:
    """Return the leaves that the broadcasts of a round determine, both for present and for absent agents."""
    everything = frozenset(range(len(jax.tree.leaves(shapes.agent))))
    if algorithm.skips:  # an agent may work and hear nothing
        return frozenset()
    present, absent, open_leaves = frozenset[int](), frozenset[int](), everything
    absent_open = everything
    for e in reversed(range(len(algorithm.exchanges()))):
        if algorithm.exchanges()[e].when is not None:
            break  # its broadcast may be older than the agent's last local work
        received, passed = _determined(shapes, e, lambda exchange: exchange.receive)
        present |= received & open_leaves
        open_leaves &= passed & _untouched(functions, shapes, e)
        missed, kept = _determined(shapes, e, when_missed)
        absent |= missed & absent_open
        absent_open &= kept
    return present & absent


def _determined(shapes: Shapes, e: int, update: Callable[[Exchange], Update]) -> tuple[Leaves, Leaves]:
    """Return the leaves that an update makes from the broadcast alone, and the leaves that it does not change."""

    def updated(agent: Any, method: Any, broadcast: Any) -> Any:
        return update(method.exchanges()[e])(agent, broadcast)

    arguments = shapes.agent, shapes.method, shapes.broadcasts[e]
    number = len(jax.tree.leaves(shapes.agent))
    alone = [i for i, row in enumerate(sources(updated, *arguments)) if not row[:number].any()]
    return frozenset(alone), _unchanged(updated, *arguments)


def _untouched(functions: Functions, shapes: Shapes, e: int) -> Leaves:
    """Return the leaves that the local computation of an exchange does not change."""

    def computed(agent: Any, method: Any, one: Shard, r: Any, key: Any) -> Any:
        return method.exchanges()[e].local(objective_in_round(functions, one, key, r), agent, r, key)[0]

    return _unchanged(computed, shapes.agent, shapes.method, shapes.one, np.int32(0), _key())


class _Reads(NamedTuple):
    """Which leaves are read in a round. A row is an output, and a column is a leaf before the round."""

    sent: np.ndarray  # the rows are the leaves of the messages and the work
    present: np.ndarray  # the rows are the leaves after a round of an agent that is present
    absent: np.ndarray  # and of one that is absent


def _reads(functions: Functions, shapes: Shapes, algorithm: Method) -> _Reads:
    heard = [np.bool_(True)] * len(algorithm.exchanges())

    def attend(agent: Any, method: Any, one: Shard, broadcasts: Any, heard: Any, r: Any, key: Any) -> Any:
        messages = []
        f = objective_in_round(functions, one, key, r)
        for e, exchange in enumerate(method.exchanges()):
            agent, work = exchange.local(f, agent, r, agent_key(key, r, one.agent, e))
            speaks = None if exchange.speaks is None else exchange.speaks(agent)
            messages.append((exchange.send(agent), work, speaks))
            received = exchange.receive(agent, broadcasts[e])
            silent = method.skips or exchange.when is not None
            agent = choose(heard[e], received, agent) if silent else received
        return agent, messages

    def miss(agent: Any, method: Any, broadcasts: Any, heard: Any) -> Any:
        for e, exchange in enumerate(method.exchanges()):
            agent = choose(heard[e], when_missed(exchange)(agent, broadcasts[e]), agent)
        return agent

    number = len(jax.tree.leaves(shapes.agent))
    arguments = shapes.agent, shapes.method, shapes.one, shapes.broadcasts, heard, np.int32(0), _key()
    there = sources(attend, *arguments)[:, :number]
    away = sources(miss, shapes.agent, shapes.method, shapes.broadcasts, heard)[:, :number]
    return _Reads(there[number:], there[:number], away)


def _live(reads: _Reads, needed: Leaves) -> Leaves:
    """Return the leaves that any later round reads, directly or through other leaves, and those in `needed`."""
    live = _numbers(reads.sent) | needed
    # What a live leaf is made of is live as well, so go on until nothing is added; there are finitely many leaves.
    while (more := live | _numbers((reads.present | reads.absent)[sorted(live)])) > live:
        live = more
    return live


def _personal(agent: Any) -> Leaves:
    """Return the leaves of the agent's own model, if the method trains one."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(agent)]
    return frozenset(i for i, path in enumerate(paths) if path and getattr(path[0], "name", "") == "personal")


def _key() -> Any:
    return jax.random.key(0, impl="threefry2x32")


def sources(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """Return which leaves of the arguments each leaf of the result depends on, (outputs, inputs).

    JAX's own elimination of dead code says so: for one output alone, it keeps the inputs that this output needs. It
    looks into loops and conditions, which a walk over the equations would have to do again.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    rows = []
    for i in range(len(jaxpr.outvars)):
        rows.append(partial_eval.dce_jaxpr(jaxpr, [j == i for j in range(len(jaxpr.outvars))])[1])
    return np.array(rows, bool).reshape(len(jaxpr.outvars), len(jaxpr.invars))


def _unchanged(function: Callable[..., Any], *arguments: Any) -> Leaves:
    """Return the leaves of the result that are the same leaves of the first argument, unchanged.

    A leaf that a function returns as it got it is the same variable of the traced program, not a copy.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    pairs = zip(jaxpr.outvars, jaxpr.invars[: len(jaxpr.outvars)], strict=True)
    return frozenset(i for i, (new, old) in enumerate(pairs) if new is old)


def _numbers(rows: np.ndarray) -> Leaves:
    """Return the columns in which any row is true."""
    return frozenset(np.flatnonzero(rows.any(axis=0)).tolist())
