"""The server's side as pure functions: when the next communication is, what to order, what to make of the answers."""

from collections.abc import Container, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from tree_math import Vector

from fedpd.core import Algorithm, Key, Tree
from fedpd.engine.rounds import coin
from fedpd.flower.carry.protocol import DONE, LOST, Order, Reply, order_record, read_reply
from fedpd.flower.carry.records import RefusedError, pack, unpack
from fedpd.flower.method.agent import call
from fedpd.flower.method.shapes import Shapes, zeros


class Terms(NamedTuple):
    """What does not change in a run."""

    algorithm: Algorithm
    spec: str  # the method's exact spec
    form: str
    shapes: Shapes
    start: Tree
    names: list[str]  # of agent 0, 1, ...
    seed: int
    run: str  # its identity

    @property
    def exchanges(self) -> int:
        return len(self.algorithm.exchanges)


class Outcome(NamedTuple):
    """What the server answered to a communication."""

    exchange: int
    broadcast: Tree


class State(NamedTuple):
    """What the server carries from communication to communication."""

    server: Any
    number: int  # communications done; the number of the next order
    step: int  # the first that is not done
    counted: list[int]  # the number of each agent's last reply that was used; -1: none
    outcomes: dict[int, Outcome]  # by number, those that anyone may still need
    last: dict[int, Tree]  # each agent's last message, where the policy may count it again


class Answer(NamedTuple):
    """A reply that is in order."""

    message: Tree | None  # None: the agent had nothing to say
    reply: Reply


def begin(terms: Terms) -> State:
    server = jax.device_get(call(terms.algorithm.server, Vector(terms.start)))
    return State(server, 0, 0, [-1] * len(terms.names), {}, {})


_coin = partial(jax.jit, static_argnums=0)(coin)


def next_meeting(terms: Terms, state: State, rounds: int) -> int | None:
    """The step at which agents next communicate; None: not before the run ends."""
    key: Key = jax.random.key(terms.seed, impl="threefry2x32")
    for step in range(state.step, rounds * terms.exchanges):
        r, e = divmod(step, terms.exchanges)
        when = terms.algorithm.exchanges[e].when
        if (when is None or call(when, jnp.int32(r))) and not _coin(terms.algorithm, key, jnp.int32(r), state.server):
            return step
    return None


def first_step(terms: Terms, state: State, agent: int) -> int:
    """Where an agent goes on: with the others, or, if it was not at the last communication, at the next round."""
    if state.number == 0 or state.counted[agent] == state.number - 1:
        return state.step
    return -(-state.step // terms.exchanges) * terms.exchanges


class Desk(NamedTuple):
    """Writes the orders of one communication; what they share is packed once."""

    terms: Terms
    state: State
    last: int
    records: dict[Any, ArrayRecord]

    def expected(self) -> list[int]:
        """The agents that can take part: not those that missed an earlier exchange of the same round."""
        agents = range(len(self.terms.names))
        return [agent for agent in agents if first_step(self.terms, self.state, agent) <= self.last]

    def orders(self, config: Mapping[str, Any] | None = None, lost: Container[str] = ()) -> dict[str, RecordDict]:
        """The orders to all that can take part, those who said that they have lost their state among them."""
        names = {self.terms.names[agent]: agent for agent in self.expected()}
        return {name: self.order(agent, lost=name in lost, config=config) for name, agent in names.items()}

    def order(self, agent: int, *, lost: bool = False, config: Mapping[str, Any] | None = None) -> RecordDict:
        """The order to an agent; to one that has `lost` its state, with all that it needs to go on."""
        terms, state = self.terms, self.state
        since = state.counted[agent]
        newest = set(newest_outcomes(state))
        past = sorted(n for n in state.outcomes if (n in newest and (lost or n > since)) or (n == since and not lost))
        exchanges = [state.outcomes[n].exchange for n in past]
        first = first_step(terms, state, agent)
        what = (terms.run, terms.spec, terms.form, terms.seed)
        order = Order(*what, agent, state.number, first, self.last, since, past, exchanges)
        content = RecordDict({"arrays": self._record(past[-1] if past else "start")})
        for number in past[:-1]:
            content[f"past-{number}"] = self._record(number)
        if state.number > 0 and (lost or since < 0):
            content["start"] = self._record("start")
        content["config"] = order_record(order, config)
        return content

    def _record(self, which: int | str) -> ArrayRecord:
        if which not in self.records:
            tree = Vector(self.terms.start) if which == "start" else self.state.outcomes[int(which)].broadcast
            self.records[which] = pack(tree)
        return self.records[which]

    def read(self, name: str, content: RecordDict) -> Answer | RecordDict:
        """A reply and its message, checked; or, to a client that has lost its state, an order to go on from."""
        reply = self.reply(name, content)
        return reply if isinstance(reply, RecordDict) else Answer(self._message(content), reply)

    def reply(self, name: str, content: RecordDict) -> Reply | RecordDict:
        """A reply without its message."""
        reply = read_reply(content)
        agent = self.terms.names.index(name)
        if (reply.run, reply.name, reply.number) != (self.terms.run, name, self.state.number):
            raise RefusedError(
                f"reply: is of {reply.name!r}, number {reply.number}, run {reply.run}; expected number "
                f"{self.state.number} of run {self.terms.run}."
            )
        first = first_step(self.terms, self.state, agent)
        if reply.status == LOST:
            if first % self.terms.exchanges:
                raise RefusedError("reply: the client lost its state in the middle of a round; it can join the next.")
            return self.order(agent, lost=True)
        if reply.status != DONE:
            raise RefusedError(f"the client refuses: {reply.note[:500]}")
        return _check_work(reply, self.last + 1 - first)

    def _message(self, content: RecordDict) -> Tree | None:
        arrays = content.array_records.get("arrays")
        if arrays is None:
            if self.terms.algorithm.exchanges[self.last % self.terms.exchanges].speaks is None:
                raise RefusedError("reply: has no arrays, and agents always send here.")
            return None
        return unpack(arrays, self.message_shapes(), "message")

    def message_shapes(self) -> Tree:
        return self.terms.shapes.messages[self.last % self.terms.exchanges]

    def newest(self) -> ArrayRecord:
        """What the orders carry as their arrays: the newest outcome, or the start."""
        return self._record(self.state.number - 1 if self.state.number else "start")


def _check_work(reply: Reply, steps: int) -> Reply:
    for name, column in (("updates", reply.updates), ("samples", reply.samples)):
        if len(column) != steps or not all(0 <= one < 2**53 for one in column):
            raise RefusedError(f"reply: {name} are not {steps} counts.")
    return reply


def newest_outcomes(state: State) -> list[int]:
    """The numbers of the newest outcome of every exchange."""
    return list({outcome.exchange: number for number, outcome in sorted(state.outcomes.items())}.values())


def mean_of(messages: Mapping[int, Tree], like: Tree) -> Tree:
    """The mean of the `messages`, of agents in order."""
    total = zeros(like)
    for agent in sorted(messages):
        total = jax.tree.map(np.add, total, messages[agent])
    number = max(len(messages), 1)
    return jax.tree.map(lambda leaf: (leaf / number).astype(leaf.dtype), total)


def aggregate(terms: Terms, state: State, last: int, mean: Tree, share: float, heard: list[int]) -> State:
    """The state after a communication: the `mean` of this `share` of the agents; the replies of `heard` were used."""
    e = last % terms.exchanges
    server, broadcast = jax.device_get(call(terms.algorithm.exchanges[e].aggregate, state.server, mean, share))
    counted = [state.number if agent in heard else since for agent, since in enumerate(state.counted)]
    outcomes = state.outcomes | {state.number: Outcome(e, broadcast)}
    new = State(server, state.number + 1, last + 1, counted, outcomes, state.last)
    needed = {*newest_outcomes(new), *counted}
    return new._replace(outcomes={n: outcome for n, outcome in outcomes.items() if n in needed})


def model_of(terms: Terms, state: State) -> Tree:
    """The server's model: every agent's copy after it has heard the newest broadcast of a round's last exchange."""
    broadcasts = [o.broadcast for _, o in sorted(state.outcomes.items()) if o.exchange == terms.exchanges - 1]
    if not broadcasts:
        return terms.start
    agent = call(terms.algorithm.exchanges[-1].receive, zeros(terms.shapes.agent), broadcasts[-1])
    return jax.device_get(terms.algorithm.model(agent).tree)
