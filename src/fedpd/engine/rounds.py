"""Rounds of any Algorithm on any Problem, compiled once: the coin, the exchanges, chunks of rounds."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from tree_math import Vector

from fedpd.core import Algorithm, Array, Exchange, Key, Mixing, MixingWeights, State, Tree, Work
from fedpd.core.agents import (
    AGENTS,
    AXIS,
    SHARED,
    Functions,
    Layout,
    Shard,
    agent_key,
    each_agent,
    each_in_place,
    local_objective,
    unchanged_if_silent,
    update_agents,
    zero_for_padding,
)
from fedpd.engine.metrics import RECORDED, Metrics, measure
from fedpd.engine.participation import effort, present

COIN = 0  # the first fold into a run's key, for what all agents share


class Program(NamedTuple):
    """What a compiled run depends on; hashable, so that the same run compiles once."""

    algorithm: Algorithm
    functions: Functions
    layout: Layout
    participation: str | None = None  # the kind of the rule
    record: tuple[str, ...] = ()  # what is measured besides
    build: Callable[..., Algorithm] | None = None  # makes the algorithm of each variant from its `settings`, in a sweep

    def of(self, settings: Mapping[str, Array] | None) -> "Program":
        """The program of the variant with these settings."""
        return self if self.build is None or settings is None else self._replace(algorithm=self.build(**settings))


class Inputs(NamedTuple):
    """The arrays of a run that do not change."""

    shard: Shard
    key: Key
    participation: Array | None = None  # the numbers of the rule
    stragglers: Array | None = None
    settings: Mapping[str, Array] | None = None  # of a variant, in a sweep


class Round(NamedTuple):
    """What a round did."""

    communicated: Array  # whether anybody heard from the server
    senders: Array  # (exchanges,) how many agents sent a message
    receivers: Array  # (exchanges,) how many agents fetched a broadcast
    work: Work  # (N,)


class Rows(NamedTuple):
    """What is recorded of each round of a chunk."""

    rounds: Round  # leaves (K, ...)
    metrics: Metrics  # (K,), NaN where the round was not measured


def coin(algorithm: Algorithm, key: Key, r: Any, server: Any) -> Array:
    """Whether round r skips its communication: one coin shared by all agents, or the server's decision."""
    if algorithm.timing.waits is not None:
        return algorithm.timing.waits(server, r)
    if algorithm.timing.skip is None:
        return jnp.bool_(False)
    toss = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, COIN), r), dtype=float)
    return toss < algorithm.timing.skip(jnp.asarray(r, int))


def init_agents(program: Program, shard: Shard, start: Vector) -> Any:
    def begin(one: Shard) -> tuple[None, Any]:
        return None, program.algorithm.init(local_objective(program.functions, one), start)

    return each_agent(begin, shard, program.layout)[1]


def one_round(program: Program, inputs: Inputs, state: State) -> tuple[State, Round]:
    """State r -> state r+1, and what the round did."""
    layout = program.layout
    agents, server, r = state
    skipped = coin(program.algorithm, inputs.key, r, server)
    here, _ = attendance(program, inputs, r)
    work, senders, receivers = Work(jnp.int32(0), jnp.int32(0)), [], []
    for number, exchange in enumerate(program.algorithm.exchanges):
        heard, agents, messages, more = compute(program, number, inputs, agents, r)
        work = jax.tree.map(jnp.add, work, more)
        silent = silence(program, exchange, skipped, heard.listening, r)
        if isinstance(exchange.aggregate, Mixing):
            mixed = _mix(exchange.aggregate.weights, layout, inputs.shard, messages)
            receive = partial(jax.vmap(exchange.receive), agents, mixed)
            agents = unchanged_if_silent(silent, receive, agents)
        else:
            server, broadcast = answer(program, exchange, heard, server, silent)
            agents = each_in_place(partial(hear, exchange, broadcast), agents, here, layout, silent)
        senders.append(moved(silent, heard.sending))
        receivers.append(moved(silent, heard.listening))
    done = Round(receivers[-1] > 0, jnp.stack(senders), jnp.stack(receivers), work)
    return State(agents, server, r + 1), done


class Heard(NamedTuple):
    """What agents have to say, summed over them."""

    total: Tree  # the messages
    sending: Array  # how many there are
    listening: Array  # how many agents wait for an answer


def compute(program: Program, number: int, inputs: Inputs, agents: Any, r: Array) -> tuple[Heard, Any, Tree, Work]:
    """Agents compute and send: (what is heard), their state, the messages themselves if they are to be mixed, work."""
    layout, shard, exchange = program.layout, inputs.shard, program.algorithm.exchanges[number]
    here, efforts = attendance(program, inputs, r)
    body = partial(_take_part, program, exchange, number, r, inputs.key)
    (total, sending), agents, (messages, work) = update_agents(body, agents, (shard, here, efforts), layout)
    everyone = jnp.ones(shard.agent.shape, bool) if here is None else here
    listening = _count(layout, shard, everyone)
    return Heard(total, listening if sending is None else sending, listening), agents, messages, work


def silence(program: Program, exchange: Exchange, skipped: Array, listening: Array, r: Array) -> Array | None:
    """Whether nothing moves in this exchange; None: it always does."""
    if not program.algorithm.timing.skips and exchange.when is None and program.participation is None:
        return None
    silent = skipped if exchange.when is None else skipped | ~exchange.when(r)
    return silent if program.participation is None else silent | (listening == 0)


def moved(silent: Array | None, number: Array) -> Array:
    """How many messages there are, unless it is silent."""
    return (number if silent is None else jnp.where(silent, 0, number)).astype(jnp.int32)


def answer(program: Program, exchange: Exchange, heard: Heard, server: Any, silent: Array | None) -> tuple[Any, Tree]:
    """The server hears the mean of what was sent and answers: its state, and the broadcast (0 where it is silent)."""
    agents = program.layout.agents
    whole = program.participation is None and exchange.speaks is None
    number = agents if whole else heard.sending.astype(float)

    def speak() -> tuple[Any, Tree]:
        mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(number, 1).astype(leaf.dtype), heard.total)
        assert not isinstance(exchange.aggregate, Mixing)
        return exchange.aggregate(server, mean, number / agents)

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(speak)[1])
    return unchanged_if_silent(silent, speak, (server, nothing))


def hear(exchange: Exchange, broadcast: Tree, agent: Any, here: Array | None) -> Any:
    """An agent receives the broadcast; one that was away, what it means to it."""
    received = exchange.receive(agent, broadcast)
    if here is None or exchange.absent is None:
        return received
    return jax.tree.map(partial(jnp.where, here), received, exchange.absent(agent, broadcast))


def attendance(program: Program, inputs: Inputs, r: Array) -> tuple[Array | None, Array | None]:
    """Of this device's agents: who is present in round r, and with what effort; None where it is everyone, in full."""
    here = efforts = None
    number = program.layout.agents
    if program.participation is not None and inputs.participation is not None:
        everyone = present(program.participation, inputs.participation, inputs.key, r, number)
        here = everyone[inputs.shard.agent]
    if inputs.stragglers is not None:
        efforts = effort(inputs.stragglers, inputs.key, r, number)[inputs.shard.agent]
    return here, efforts


def _count(layout: Layout, shard: Shard, who: Array) -> Array:
    number = jnp.sum(who if shard.real is None else who & shard.real, dtype=jnp.int32)
    return number if layout.mesh is None else lax.psum(number, AXIS)


def _take_part(
    program: Program, exchange: Exchange, number: int, r: Array, key: Key, agent: Any, one: tuple[Shard, Any, Any]
) -> tuple[tuple[Tree, Array | None], Any, tuple[Tree, Work]]:
    """One agent's part of an exchange: (message and whether it is sent, to sum), state, (message to mix, work)."""
    shard, here, effort = one
    f = local_objective(program.functions, shard, effort)

    def compute(agent: Any) -> tuple[Any, Work]:
        return exchange.local(f, agent, r, agent_key(key, r, shard.agent, number))

    def stay(agent: Any) -> tuple[Any, Work]:
        return agent, Work(jnp.int32(0), jnp.int32(0))

    agent, work = compute(agent) if here is None else lax.cond(here, compute, stay, agent)
    message, sends = exchange.send(agent), here
    if exchange.speaks is not None:
        sends = exchange.speaks(agent) if here is None else here & exchange.speaks(agent)
    if sends is None:
        return (
            (zero_for_padding(shard, message), None),
            agent,
            (message if isinstance(exchange.aggregate, Mixing) else None, work),
        )
    sent = jax.tree.map(lambda leaf: jnp.where(sends, leaf, 0), message)
    return zero_for_padding(shard, (sent, sends.astype(jnp.int32))), agent, (None, work)


def _mix(weights_of: MixingWeights, layout: Layout, shard: Shard, messages: Tree) -> Tree:
    """Every agent's own weighted sum of all messages."""
    everyone = messages if layout.mesh is None else lax.all_gather(messages, AXIS, tiled=True)
    weights = jax.vmap(weights_of)(shard.agent)  # (N, N)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf[: layout.agents], 1), everyone)


def chunk(
    program: Program,
    length: int,
    every: int,
    stop_early: bool,
    inputs: Inputs,
    state: State,
    count: Array,
    last: Array,
) -> tuple[State, Rows]:
    """`count` <= `length` rounds, with what each of them did; measured every `every` rounds and at round `last`.

    The number of rounds is data and not part of the program: the same program runs a whole chunk, the rest of one, and
    what is left after a resume. So chunk sizes, checkpoints and interruptions cannot change a bit, nor recompile.
    With `stop_early` it ends where a measured value is not finite.
    """
    empty = _empty_rows(program, length, len(inputs.shard.agent))

    def onward(carry: tuple[Array, Array, State, Rows]) -> Array:
        done, healthy, _, _ = carry
        return (done < count) & healthy

    def play(carry: tuple[Array, Array, State, Rows]) -> tuple[Array, Array, State, Rows]:
        done, healthy, state, rows = carry
        state, happened = one_round(program, inputs, state)
        measured = (state.round % every == 0) | (state.round == last)

        def metrics() -> Metrics:
            return measure(*program[:3], inputs.shard, state.agents, ~happened.communicated, program.record)

        metrics_now = lax.cond(measured, metrics, partial(not_measured, program.record))
        if stop_early:
            healthy = ~measured | jnp.isfinite(sum(metrics_now[:3]))
        rows = jax.tree.map(lambda buffer, value: buffer.at[done].set(value), rows, Rows(happened, metrics_now))
        return done + 1, healthy, state, rows

    _, _, state, rows = lax.while_loop(onward, play, (jnp.int32(0), jnp.bool_(True), state, empty))
    return state, rows


def not_measured(record: tuple[str, ...]) -> Metrics:
    nothing = jnp.asarray(jnp.nan, float)
    columns = {column: nothing for name in record for column in RECORDED[name]}
    return Metrics(nothing, nothing, nothing, columns)


def _empty_rows(program: Program, length: int, agents: int) -> Rows:
    work = jnp.zeros((length, agents), jnp.int32)
    messages = jnp.zeros((length, len(program.algorithm.exchanges)), jnp.int32)
    metrics = jax.tree.map(lambda nothing: jnp.full(length, nothing), not_measured(program.record))
    return Rows(Round(jnp.zeros(length, bool), messages, messages, Work(work, work)), metrics)


INPUTS = Inputs(AGENTS, SHARED, SHARED, SHARED, SHARED)  # type: ignore[arg-type]
STATE = State(AGENTS, SHARED, SHARED)  # type: ignore[arg-type]
ROWS = Rows(Round(SHARED, SHARED, SHARED, PartitionSpec(None, AXIS)), SHARED)  # type: ignore[arg-type]
