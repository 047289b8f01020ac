"""Run rounds of any method on any problem, in chunks that are compiled once."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedpd.base.checks import refuse
from fedpd.core import Array, Exchange, Key, Method, Mixing, State, Tree, Vector, Work, opened
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
    objective_in_round,
    unchanged_if_silent,
    update_agents,
    zero_for_padding,
)
from fedpd.core.vectors import choose
from fedpd.engine.measure.columns import Column, Measure
from fedpd.engine.measure.metrics import Metrics, mean_and_gap, measure_at, measure_states, not_measured, with_personal
from fedpd.engine.participation import effort

LONGEST_CHUNK = 256  # rounds; their rows stay on the device until the chunk ends
COIN = 0  # the first fold into a run's key, for the draws that all agents share


class Program(NamedTuple):
    """A method on the functions of a problem, and how the agents run."""

    algorithm: Method  # the method
    functions: Functions  # the problem's functions
    layout: Layout  # how the loop over agents runs
    partial: bool = False  # whether agents may be absent
    columns: tuple[Column, ...] = ()  # the columns to measure
    # how the loop over the agents runs over which a run measures; None: as for all agents
    measured: Layout | None = None


class Template(NamedTuple):
    """A program without its method and frozen arrays. It is hashable and selects compiled code, which takes both."""

    functions: Functions  # the problem's functions, `without_frozen`
    layout: Layout  # how the loop over agents runs
    partial: bool  # whether agents may be absent
    columns: tuple[Column, ...]  # the columns to measure
    measured: Layout | None  # how the loop over the agents runs over which a run measures; None: as for all agents

    def program(self, method: Method, frozen: Tree | None) -> Program:
        """Return the program with this method and frozen arrays (None: it has none), whose numbers may be traced."""
        return Program(method, self.functions.with_frozen(frozen), *self[1:])


class Inputs(NamedTuple):
    """The arrays of a run that do not change."""

    shard: Shard
    key: Key
    method: Method
    start: Vector | None = None  # x^0, if agents come for the first time in later rounds
    stragglers: Array | None = None
    sample: Shard | None = None  # the agents over which a run measures; None: all of them
    frozen: Tree | None = None  # the part of the model that is not trained, the same for all agents
    everyone: Shard | None = None  # all agents, on every device, if agents are dealt to them; None: `shard` has them
    central: Tree | None = None  # the samples of a central test set, on every device


class Round(NamedTuple):
    """The messages and the work of a round."""

    communicated: Array  # whether any agent received the last broadcast
    senders: Array  # (exchanges,) how many agents sent a message
    receivers: Array  # (exchanges,) how many agents fetched a broadcast
    work: Work  # (N,)


class Rows(NamedTuple):
    """The messages, the work and the measured values of each round of a chunk."""

    rounds: Round  # leaves (K, ...)
    metrics: Metrics  # (K,), NaN where the round was not measured


class MessageSum(NamedTuple):
    """The sum of the agents' messages in an exchange; if it has a `mean` of its own, the messages themselves."""

    total: Tree  # of the messages; with a `mean`, (messages, sent): leaves (C, ...) and whether each was sent, (C,)
    senders: Array  # how many agents sent a message
    receivers: Array  # how many agents receive the broadcast


def toss_coin(algorithm: Method, key: Key, r: Any, server: Any) -> Array:
    """Return whether round r skips its communication: one coin shared by all agents, or the server's decision."""
    if algorithm.waits is not None:
        return algorithm.waits(server, r)
    p = algorithm.skip_probability(jnp.asarray(r, int))
    if p is None:
        return jnp.bool_(False)
    toss = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, COIN), r), dtype=float)
    return toss < p


def init_agents(program: Program, shard: Shard, start: Vector) -> Any:
    """Return the state of all agents at the start."""

    def begin(one: Shard) -> tuple[None, Any]:
        return None, program.algorithm.init(local_objective(program.functions, one), start)

    return each_agent(begin, shard, program.layout)[1]


class Executor:
    """Runs the steps of an exchange. This one has all agents in memory, and JAX traces all steps into one program."""

    def coin(self, program: Program, inputs: Inputs, r: Array, server: Any, /) -> Array:
        """Return whether round r skips its communication."""
        return toss_coin(program.algorithm, inputs.key, r, server)

    def compute(
        self, program: Program, number: int, inputs: Inputs, agents: Any, r: Array, /
    ) -> tuple[MessageSum, Any, Tree, Work]:
        """Return the sum of the messages, the agents' new state, the messages to mix, and the work."""
        layout, shard, exchange = program.layout, inputs.shard, program.algorithm.exchanges()[number]
        efforts = None
        if inputs.stragglers is not None:
            efforts = effort(inputs.stragglers, inputs.key, r, layout.agents)[shard.agent]
        body = partial(take_part, program, exchange, number, r, inputs.key)
        (total, sending), agents, (messages, work) = update_agents(body, agents, (shard, None, efforts), layout)
        if exchange.mean is not None:
            total, messages = gathered(layout, messages), None
        here = jnp.ones(shard.agent.shape, bool) if shard.real is None else shard.real  # files hold some of the agents
        receivers = jnp.sum(here, dtype=jnp.int32)
        receivers = receivers if layout.mesh is None else lax.psum(receivers, AXIS)
        return MessageSum(total, receivers if sending is None else sending, receivers), agents, messages, work

    def server_step(
        self, program: Program, number: int, sums: MessageSum, server: Any, skipped: Array, r: Array, /
    ) -> tuple[Any, Tree, Array | None]:
        """Return the server's new state, the broadcast, and whether the exchange is silent (None: never)."""
        exchange = program.algorithm.exchanges()[number]
        silent = is_silent(program, exchange, skipped, sums.receivers, r)
        if exchange.mixes:
            return server, None, silent
        return *combine(program, exchange, sums, server, silent), silent

    def deliver(
        self, program: Program, number: int, inputs: Inputs, agents: Any, broadcast: Tree, silent: Any, r: Array, /
    ) -> Any:
        """Return the agents' state after the broadcast; unchanged if the exchange is silent."""
        exchange, layout = program.algorithm.exchanges()[number], program.layout
        if isinstance(exchange.aggregate, Mixing):
            mixed = _mix(exchange.aggregate.weights, layout, inputs.shard, broadcast)
            return unchanged_if_silent(silent, partial(jax.vmap(exchange.receive), agents, mixed), agents)
        return each_in_place(partial(receive, exchange, broadcast), agents, None, layout, silent)


IN_MEMORY = Executor()


def one_round(program: Program, inputs: Inputs, state: State, executor: Executor = IN_MEMORY) -> tuple[State, Round]:
    """Return state r+1 from state r, and the messages and work of the round. All rounds run through this function."""
    agents, server, r = state
    skipped = executor.coin(program, inputs, r, server)
    work: Work | None = None
    senders, receivers = [], []
    for number in range(len(program.algorithm.exchanges())):
        sums, agents, messages, more = executor.compute(program, number, inputs, agents, r)
        work = more if work is None else work.plus(more)
        server, broadcast, silent = executor.server_step(program, number, sums, server, skipped, r)
        broadcast = messages if broadcast is None else broadcast
        agents = executor.deliver(program, number, inputs, agents, broadcast, silent, r)
        senders.append(messages_sent(silent, sums.senders))
        receivers.append(messages_sent(silent, sums.receivers))
    assert work is not None  # a method has at least one exchange
    done = Round(receivers[-1] > 0, jnp.stack(senders), jnp.stack(receivers), work)
    return State(agents, server, r + 1), done


def is_silent(program: Program, exchange: Exchange, skipped: Array, receivers: Array, r: Array) -> Array | None:
    """Return whether no message is sent in this exchange; None: it is never silent."""
    if not program.algorithm.skips and exchange.when is None and not program.partial:
        return None
    silent = skipped if exchange.when is None else skipped | ~exchange.when(r)
    return silent if not program.partial else silent | (receivers == 0)


def messages_sent(silent: Array | None, number: Array) -> Array:
    """Return the number of messages, which is 0 if the exchange is silent."""
    return (number if silent is None else jnp.where(silent, 0, number)).astype(jnp.int32)


def combine(
    program: Program, exchange: Exchange, sums: MessageSum, server: Any, silent: Array | None
) -> tuple[Any, Tree]:
    """Return the server's new state and the broadcast, from the mean of the messages; (server, 0) if silent."""
    agents = program.layout.agents
    whole = not program.partial and exchange.speaks is None
    number = agents if whole else sums.senders.astype(float)

    def step() -> tuple[Any, Tree]:
        assert not isinstance(exchange.aggregate, Mixing)
        if exchange.mean is None:
            mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(number, 1).astype(leaf.dtype), sums.total)
        else:
            mean = jax.tree.map(lambda leaf: jnp.where(number > 0, leaf, 0), exchange.mean(*sums.total))
        return exchange.aggregate(server, mean, number / agents)

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(step)[1])
    return unchanged_if_silent(silent, step, (server, nothing))


def receive(exchange: Exchange, broadcast: Tree, agent: Any, here: Array | None) -> Any:
    """Return an agent's state after the broadcast; `here` is whether the agent is present (None: it is)."""
    received = exchange.receive(agent, broadcast)
    if here is None or exchange.missed is None:
        return received
    return choose(here, received, exchange.missed(agent, broadcast))


def take_part(
    program: Program, exchange: Exchange, number: int, r: Array, key: Key, agent: Any, one: tuple[Shard, Any, Any]
) -> tuple[tuple[Tree, Array | None], Any, tuple[Tree, Work]]:
    """Return one agent's part of an exchange: (message to sum, whether it is sent), state, (message to mix, work)."""
    shard, here, effort = one
    f = objective_in_round(program.functions, shard, key, r, effort)

    def compute(agent: Any) -> tuple[Any, Work]:
        return exchange.local(f, agent, r, agent_key(key, r, shard.agent, number))

    def stay(agent: Any) -> tuple[Any, Work]:
        return agent, Work(jnp.int32(0), jnp.int32(0))

    if here is None:
        agent, work = compute(agent)
    elif program.layout.parallel and shard.offset is not None:  # a condition would copy the rows of all for each agent
        agent, work = choose(here, compute(agent), stay(agent))
    else:
        agent, work = lax.cond(here, compute, stay, agent)
    message, sends = opened(exchange.send(agent)), here
    if exchange.speaks is not None:
        sends = exchange.speaks(agent) if here is None else here & exchange.speaks(agent)
    if exchange.mean is not None:
        sends = jnp.bool_(True) if sends is None else sends
        sends = zero_for_padding(shard, sends)
        return (None, sends.astype(jnp.int32)), agent, ((message, sends), work)
    if sends is None:
        to_mix = message if exchange.mixes else None
        return (zero_for_padding(shard, message), None), agent, (to_mix, work)
    sent = jax.tree.map(lambda leaf: jnp.where(sends, leaf, 0), message)
    return zero_for_padding(shard, (sent, sends.astype(jnp.int32))), agent, (None, work)


def gathered(layout: Layout, messages: Tree) -> Tree:
    """Return the messages of all agents on each device."""
    return messages if layout.mesh is None else lax.all_gather(messages, AXIS, tiled=True)


def _mix(weights_of: Callable[[Array], Array], layout: Layout, shard: Shard, messages: Tree) -> Tree:
    """Return every agent's own weighted sum of all messages."""
    everyone = gathered(layout, messages)
    weights = jax.vmap(weights_of)(jnp.asarray(shard.agent))  # (N, N)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf[: layout.agents], 1), everyone)


# Runs round t of a chunk: (state, t) -> the new state, what happened, and a function that measures the new state; None:
# the rounds of this chunk are not measured, because a measurement needs agents that are not in the chunk.
Step = Callable[[Any, Array], tuple[Any, Round, Callable[[], Metrics] | None]]


def step_of_everyone(program: Program, inputs: Inputs, state: State, t: Array) -> tuple[State, Round, Any]:
    """Run a round of all agents; see `Step`."""
    state, happened = one_round(program, inputs, state)
    return state, happened, partial(measure_copies, program, inputs, state, ~happened.communicated)


def chunk(
    program: Program,
    length: int,
    stop_early: bool,
    step: Step,
    agents: int,
    state: Any,
    count: Array,
    every: Array,
    last: Array,
    targets: Array,
) -> tuple[Any, Rows]:
    """Run `count` <= `length` rounds, and return the state after them and the row of each. There is no other loop.

    The chunk measures every `every` rounds and at round `last`. These numbers are data, not part of the program: the
    same program runs a whole chunk, a shorter one, and the rounds that are left after a resume. So chunk sizes,
    checkpoints and interruptions change no bit of the result and need no compilation. With `stop_early`, the chunk ends
    when a measured value is not finite, or when the measured columns have reached their `targets` (NaN: no target).

    Args:
        stop_early: Whether a chunk may end early. Variants that run at once do not end at the same round.
        agents: The agents of a round, for the table of their work.
        every: Every how many rounds the run measures.
        last: The last round of the run, which is always measured.
        targets: (columns,) their targets.
    """

    def continues(carry: tuple[Array, Array, Any, Rows]) -> Array:
        done, unfinished, _, _ = carry
        return (done < count) & unfinished

    def run_next(carry: tuple[Array, Array, Any, Rows]) -> tuple[Array, Array, Any, Rows]:
        done, unfinished, state, rows = carry
        state, happened, measure = step(state, done)
        measured = (state.round % every == 0) | (state.round == last)
        metrics = not_measured(program.columns)
        if measure is not None:
            metrics = lax.cond(measured, measure, lambda: metrics)
        if measure is not None and stop_early:
            finite = jnp.isfinite(sum(metrics[name] for name in ("loss", "stationarity", "consensus")))
            unfinished = ~measured | (finite & ~are_reached(program.columns, metrics, targets))
        rows = jax.tree.map(lambda buffer, value: buffer.at[done].set(value), rows, Rows(happened, metrics))
        return done + 1, unfinished, state, rows

    # A while loop and not a scan: its length is data. The rows are buffers of the carry, which XLA updates in place.
    begin = jnp.int32(0), jnp.bool_(True), state, empty_rows(program, length, agents)
    _, _, state, rows = lax.while_loop(continues, run_next, begin)
    return state, rows


def measure_copies(program: Program, inputs: Inputs, state: State, skipped: Any) -> Metrics:
    """Return the values of the columns, for agents in memory; `skipped`: the round communicated nothing."""
    x, gap = mean_and_gap(program.algorithm, program.layout, inputs.shard, state.agents, skipped)
    of_states = measure_states(
        program.algorithm, program.functions, program.layout, inputs.shard, state, program.columns
    )
    if program.algorithm.is_personal is not None:
        copies = jax.vmap(program.algorithm.model)(state.agents)
        inputs = inputs._replace(shard=with_personal(inputs.shard, program.algorithm, copies))
    return measure_model(program, inputs, delivered_or(program, state.server, x), gap, of_states)


def delivered_or(program: Program, server: Any, x: Vector) -> Vector:
    """Return the model of a run: what the server delivers, or x, the mean of the agents' copies."""
    return x if program.algorithm.delivers is None else program.algorithm.delivers(server)


def measure_model(
    program: Program, inputs: Inputs, x: Vector, gap: Any, of_states: Mapping[Measure, Array] | None = None
) -> Metrics:
    """Return the values of the columns at the model x, whose copies are at most `gap` from each other."""
    if program.algorithm.is_personal is not None and inputs.sample is not None:
        refuse("metrics_agents", len(inputs.sample.agent), "does not go with personal parameters", "Leave it out")
    shard = inputs.shard if inputs.sample is None else inputs.sample
    layout = program.measured or program.layout
    return measure_at(program.functions, layout, shard, x, gap, program.columns, of_states, inputs.central)


def are_reached(columns: tuple[Column, ...], metrics: Metrics, targets: Array) -> Array:
    """Return whether there are targets and all of them are reached."""
    given = ~jnp.isnan(targets)
    reached = [column.reaches(metrics[column.name].astype(float), targets[i]) for i, column in enumerate(columns)]
    return given.any() & (~given | jnp.stack(reached)).all()


def empty_rows(program: Program, length: int, agents: int) -> Rows:
    work = jnp.zeros((length, agents), jnp.int32)
    messages = jnp.zeros((length, len(program.algorithm.exchanges())), jnp.int32)
    metrics = jax.tree.map(lambda nothing: jnp.full(length, nothing), not_measured(program.columns))
    return Rows(Round(jnp.zeros(length, bool), messages, messages, Work(work, work, work)), metrics)


# The sharding of each array.
_agents: Any = AGENTS
_shared: Any = SHARED
_rounds: Any = PartitionSpec(None, AXIS)
INPUTS = Inputs(_agents, _shared, _shared, _shared, _shared, _agents, _shared, _shared, _shared)
STATE = State(_agents, _shared, _shared)
ROWS = Rows(Round(_shared, _shared, _shared, _rounds), _shared)
