"""The server as pure functions: when to communicate next, which orders to send, and how replies change its state."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from jax.extend.core import Literal, Var
from tree_math import Vector

from fedpd.core import Exchange, Key, Kind, Method, Tree, Update, has_packed, opened
from fedpd.core.message import merged, part_of
from fedpd.engine.loop import toss_coin
from fedpd.engine.participation import Participation, participants
from fedpd.flower.carry.protocol import (
    CheckedReply,
    Form,
    Order,
    Reply,
    check_nonce,
    new_nonce,
    order_record,
    read_reply,
)
from fedpd.flower.carry.records import LARGE, RefusedError, one_line, pack, stored, unpack
from fedpd.flower.method.agent import call_compiled, call_exchange
from fedpd.flower.method.shapes import Shapes, zeros


class ServerSetup(NamedTuple):
    """The constants of a run.

    Attributes:
        algorithm: The method, in its form; if the server delivers the mean of its models, the method that does so.
        spec: Its exact spec, as JSON.
        form: "whole" or "partial", as in `Order`.
        shapes: The shapes of states and messages.
        start: The model x^0.
        names: The names of agent 0, 1, ...
        seed: The seed of the run.
        run: The identity of the run.
        present: The rule for who takes part in a round, which is a cohort; None: all agents.
        superseded: Whether a later broadcast replaces all that an earlier one leaves at an agent.
        store: The folder for large arrays, which are in files (`stored`); None: the system's folder for such files.
        sizes: Each agent's number of samples, if cohorts are drawn by size; else zeros.
        model_of: The newest broadcast of a round's last exchange -> the server's model. It is one function per run, so
            that JAX compiles it once.
        kinds: The type of each part of the messages of each exchange, if the server clips them; else ().
        rounds: T, the number of rounds.
    """

    algorithm: Method
    spec: str
    form: Form
    shapes: Shapes
    start: Tree
    names: list[str]
    seed: int
    run: str
    present: Participation | None
    superseded: bool
    store: Path | None
    sizes: Sequence[int]
    model_of: Callable[[Tree], Tree]
    kinds: Sequence[tuple[Kind | None, ...]]
    rounds: int

    @property
    def exchanges(self) -> int:
        """The number of exchanges per round."""
        return len(self.algorithm.exchanges())


class Outcome(NamedTuple):
    """The broadcast of a communication, and the exchange that it belongs to."""

    exchange: int
    broadcast: Tree


class ServerState(NamedTuple):
    """The state of the server between two communications.

    Attributes:
        server: The method's own state of the server.
        number: The number of communications done, which is the number of the next order.
        step: The first step that is not done.
        counted: For each agent, the number of its last reply that the server used; -1 if there is none.
        outcomes: By number, the outcomes that an agent may still need.
        last: Each agent's last message, if the policy may use it again.
    """

    server: Any
    number: int
    step: int
    counted: list[int]
    outcomes: dict[int, Outcome]
    last: dict[int, Tree]


def initial_state(setup: ServerSetup) -> ServerState:
    """Return the state of the server before the first communication."""
    server = jax.device_get(call_compiled(setup.algorithm.server, Vector(setup.start)))
    return ServerState(stored(server, setup.store), 0, 0, [-1] * len(setup.names), {}, {})


_coin = jax.jit(toss_coin)


def next_communication(setup: ServerSetup, state: ServerState, rounds: int) -> int | None:
    """Return the step of the next communication; None if there is none before the run ends."""
    key: Key = jax.random.key(setup.seed, impl="threefry2x32")
    for step in range(state.step, rounds * setup.exchanges):
        r, e = divmod(step, setup.exchanges)
        when = setup.algorithm.exchanges()[e].when
        takes_place = when is None or call_exchange("when", e, setup.algorithm, jnp.int32(r))
        if takes_place and not _coin(setup.algorithm, key, jnp.int32(r), state.server):
            return step
    return None


def first_step(setup: ServerSetup, state: ServerState, agent: int) -> int:
    """Return the step at which an agent continues: with the others, or at the next round if it missed the last one."""
    if state.number == 0 or state.counted[agent] == state.number - 1:
        return state.step
    return -(-state.step // setup.exchanges) * setup.exchanges


def cohort_of_step(setup: ServerSetup, step: int) -> list[int]:
    """Return the agents that take part in the round of a step."""
    number = len(setup.names)
    if setup.present is None:
        return list(range(number))
    return participants(setup.present, setup.seed, [step // setup.exchanges], number)[0].tolist()


def steps_to_do(setup: ServerSetup, state: ServerState, last: int) -> dict[int, list[int]]:
    """Return, by agent, the steps that are not done yet, up to the communication at step `last`.

    Every skipped round has a cohort of its own, which does its steps before the newest broadcast is replaced. An agent
    that missed an earlier exchange of a round has no more steps in that round.
    """
    found: dict[int, list[int]] = {}
    for step in range(state.step, last + 1):
        for agent in cohort_of_step(setup, step):
            if first_step(setup, state, agent) <= step:
                found.setdefault(agent, []).append(step)
    return dict(sorted(found.items()))


class LazyMapping(Mapping[str, RecordDict]):
    """A mapping that makes a value whenever it is asked for.

    Args:
        keys: The keys.
        make: (key) -> value.
    """

    def __init__(self, keys: list[str], make: Callable[[str], RecordDict]) -> None:
        self._keys, self._make = keys, make

    def __getitem__(self, key: str) -> RecordDict:
        return self._make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class Communication(NamedTuple):
    """Writes the orders of one communication and checks the replies.

    Attributes:
        setup: The constants of the run.
        state: The state of the server before the communication.
        last: The step of the communication.
        steps: By agent, the steps to do; agents without steps get no order.
        records: The arrays that orders share, each packed once; a new dictionary for each communication.
        nonces: By agent, the random text that its reply must repeat; a new dictionary for each communication.
    """

    setup: ServerSetup
    state: ServerState
    last: int
    steps: dict[int, list[int]]
    records: dict[int | str, ArrayRecord]
    nonces: dict[int, str]

    def subject(self) -> tuple[str, int]:
        """Return the identity of the run and the number of the communication."""
        return self.setup.run, self.state.number

    def cohort(self) -> list[int]:
        """Return the agents that take part in the round of the communication."""
        return cohort_of_step(self.setup, self.last)

    def senders(self) -> list[int]:
        """Return the agents that can send, without those that missed an earlier exchange of the same round."""
        return [agent for agent, steps in self.steps.items() if steps[-1] == self.last]

    def senders_by_name(self) -> list[str]:
        """Return the names of the agents that can send."""
        return [self.setup.names[agent] for agent in self.senders()]

    def orders(self, config: Mapping[str, Any] | None = None, lost: Container[str] = ()) -> dict[str, RecordDict]:
        """Return the orders to the clients that have steps to do, by name.

        Args:
            config: Further entries for the orders, such as a clipping norm.
            lost: The names of clients that have lost their state.
        """
        names = {self.setup.names[agent]: agent for agent in self.steps}
        return {name: self.order(agent, lost=name in lost, config=config) for name, agent in names.items()}

    def lazy_orders(self) -> Mapping[str, RecordDict]:
        """Return the orders as `orders` does; large ones are made anew for every use, so that nobody keeps them."""
        names = {self.setup.names[agent]: agent for agent in self.steps}
        large = max(self.setup.shapes.costs.bytes_down) > LARGE
        return LazyMapping(list(names), lambda name: (self._replace(records={}) if large else self).order(names[name]))

    def order(self, agent: int, *, lost: bool = False, config: Mapping[str, Any] | None = None) -> RecordDict:
        """Return the order to an agent; if it has `lost` its state, the order has everything that it needs."""
        setup, state = self.setup, self.state
        since = state.counted[agent]
        newest = set(newest_outcomes(state))
        past = sorted(n for n in state.outcomes if (n in newest and (lost or n > since)) or (n == since and not lost))
        exchanges = [state.outcomes[n].exchange for n in past]
        method, steps = (setup.run, setup.spec, setup.form, setup.seed), self.steps[agent]
        order = Order(*method, len(setup.names), agent, state.number, steps, self.last, since, past, exchanges)
        order = order._replace(nonce=self.nonces.setdefault(agent, new_nonce()), rounds=setup.rounds)
        known = None if lost else since  # the agent has the broadcasts before this one
        content = RecordDict({"arrays": self._record(past[-1] if past else "start", known)})
        for number in past[:-1]:
            content[f"past-{number}"] = self._record(number, known)
        if state.number > 0 and (lost or since < 0):
            content["start"] = self._record("start")
        content["config"] = order_record(order, config)
        return content

    def _record(self, which: int | str, known: int | None = None) -> ArrayRecord:
        tree = Vector(self.setup.start) if which == "start" else self.state.outcomes[int(which)].broadcast
        name = which
        if isinstance(tree, Update):
            tree, name = (tree.change, which) if which == known else (tree.whole, f"whole-{which}")
        if name not in self.records:
            self.records[name] = pack(tree)
        return self.records[name]

    def read(self, name: str, content: RecordDict) -> CheckedReply | RecordDict:
        """Return a reply and its message; for a client that has lost its state, return a new order for it."""
        reply = self.check_reply(name, content)
        if isinstance(reply, RecordDict):
            return reply
        sends = self.steps[self.setup.names.index(name)][-1] == self.last
        return CheckedReply(self._message(content) if sends else None, reply)

    def check_reply(self, name: str, content: RecordDict) -> Reply | RecordDict:
        """Return a reply without its message; for a client that has lost its state, return a new order for it."""
        reply = read_reply(content)
        agent = self.setup.names.index(name)
        if (reply.run, reply.name, reply.number) != (self.setup.run, name, self.state.number):
            raise RefusedError(
                f"reply: has name {reply.name!r}, number {reply.number} and run {reply.run}; expected number "
                f"{self.state.number} of run {self.setup.run}."
            )
        check_nonce(self.nonces.get(agent, ""), reply.nonce)
        steps = self.steps[agent]
        if reply.status == "lost":
            if steps[0] % self.setup.exchanges:
                raise RefusedError("reply: the client lost its state in the middle of a round; it can join the next.")
            return self.order(agent, lost=True)
        if reply.status != "done":
            raise RefusedError(f"the client refuses: {one_line(reply.note)}")
        return _check_work(reply, len(steps))

    def _message(self, content: RecordDict) -> Tree | None:
        arrays = content.array_records.get("arrays")
        if arrays is None:
            if self.setup.algorithm.exchanges()[self.last % self.setup.exchanges].speaks is None:
                raise RefusedError("reply: has no arrays, but agents of this method always send.")
            return None
        message = unpack(arrays, self.message_shapes(), "message")
        if has_packed(message):
            message = jax.device_get(call_compiled(opened, message))
        return stored(message, self.setup.store)

    def message_shapes(self) -> Tree:
        """Return the shapes and types of a message as it travels."""
        return self.setup.shapes.messages[self.last % self.setup.exchanges]

    def newest_broadcast(self) -> ArrayRecord:
        """Return the arrays in the orders: the newest broadcast, or the start."""
        return self._record(self.state.number - 1 if self.state.number else "start")


MOST = 2**40  # updates or samples of a step, so that sums over all rounds and clients fit 64 bits


def _check_work(reply: Reply, steps: int) -> Reply:
    for name, column in (("updates", reply.updates), ("samples", reply.samples)):
        if len(column) != steps or not all(0 <= one < MOST for one in column):
            raise RefusedError(f"reply: {name} are not {steps} counts.")
    if reply.rebuilt not in (0, 1):
        raise RefusedError(f"reply: rebuilt = {reply.rebuilt} is not 0 or 1.")
    if not 0 <= reply.epsilon < math.inf:
        raise RefusedError(f"reply: epsilon = {reply.epsilon} is not a number of at least 0.")
    return reply


def newest_outcomes(state: ServerState) -> list[int]:
    """Return the numbers of the newest outcome of every exchange."""
    return list({outcome.exchange: number for number, outcome in sorted(state.outcomes.items())}.values())


def mean_of(exchange: Exchange, messages: Mapping[int, Tree], like: Tree) -> Tree:
    """Return the mean of the opened messages, in the order of the agents; `like` has the shapes of a packed one."""
    total = zeros(jax.eval_shape(opened, like))
    if exchange.mean is not None and messages:
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(messages[agent] for agent in sorted(messages)))
        return jax.device_get(call_compiled(exchange.mean, rows, np.ones(len(messages), bool)))
    for agent in sorted(messages):
        jax.tree.map(lambda leaf, part: np.add(leaf, part, out=leaf), total, messages[agent])
    number = max(len(messages), 1)
    return jax.tree.map(lambda leaf: np.divide(leaf, number, out=leaf, casting="unsafe"), total)


def server_step(
    setup: ServerSetup, state: ServerState, last: int, mean: Tree, share: float, used: Container[int]
) -> ServerState:
    """Return the state after a communication.

    Args:
        setup: The constants of the run.
        state: The state before.
        last: The step of the communication.
        mean: The mean of the messages.
        share: The fraction of all agents that sent.
        used: The agents whose replies were used.
    """
    e = last % setup.exchanges
    made = jax.device_get(call_exchange("aggregate", e, setup.algorithm, state.server, mean, share))
    server, broadcast = (stored(part, setup.store) for part in made)
    counted = [state.number if agent in used else since for agent, since in enumerate(state.counted)]
    outcomes = state.outcomes | {state.number: Outcome(e, broadcast)}
    new = ServerState(server, state.number + 1, last + 1, counted, outcomes, state.last)
    needed = {*newest_outcomes(new), *(() if setup.superseded else counted)}
    return new._replace(outcomes={n: outcome for n, outcome in outcomes.items() if n in needed})


def server_model(setup: ServerSetup, state: ServerState) -> Tree:
    """Return the server's model, which is every agent's copy after the newest broadcast of a round's last exchange."""
    broadcasts = [o.broadcast for _, o in sorted(state.outcomes.items()) if o.exchange == setup.exchanges - 1]
    if not broadcasts:
        return setup.start
    model = jax.device_get(call_compiled(setup.model_of, broadcasts[-1]))
    keeps = setup.algorithm.is_personal
    if keeps is None:
        return model
    parts = part_of(Vector(model), keeps, personal=False), part_of(Vector(setup.start), keeps, personal=True)
    return merged(*parts).tree  # nobody sends personal parameters, so a new client begins with those of the start


def delivered_model(setup: ServerSetup, state: ServerState) -> Tree:
    """Return the model of the run: what the server delivers, such as a mean of its models, or else its model."""
    if setup.algorithm.delivers is None:
        return server_model(setup, state)
    return jax.device_get(call_compiled(setup.algorithm.delivers, state.server)).tree


def model_function(algorithm: Method, agent: Any) -> Callable[[Tree], Tree]:
    """Return the function `ServerSetup.model_of`; `agent` has the shapes of an agent's state."""

    def model_of(broadcast: Tree) -> Tree:
        nobody = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), agent)
        return algorithm.model(algorithm.exchanges()[-1].receive(nobody, broadcast)).tree

    return model_of


def is_superseded(algorithm: Method, shapes: Shapes) -> bool:
    """Return whether a later broadcast replaces all that an earlier one leaves at an agent.

    A client that replied to communication n and was not asked since has not yet received outcome n. When the server
    asks it again, it calls `receive` with outcome n and then `missed` with the newest one. The server would have to
    keep outcome n for it, and to send two broadcasts. In FedPD, FedAvg, SCAFFOLD and most other methods, the result
    does not depend on outcome n. The traced program shows this, whatever the numbers are.

    It returns False for a method with several exchanges per round, and where the program does not show it.
    """
    if len(algorithm.exchanges()) > 1:
        return False
    exchange, broadcast = algorithm.exchanges()[0], shapes.broadcasts[0]
    missed = exchange.missed or exchange.receive

    def both(earlier: Tree, agent: Tree, newest: Tree) -> Tree:
        return missed(exchange.receive(agent, earlier), newest)

    program = jax.make_jaxpr(both)(broadcast, shapes.agent, broadcast).jaxpr
    needed = _variables(program.outvars)
    for equation in reversed(program.eqns):
        if needed & _variables(equation.outvars):
            needed |= _variables(equation.invars)
    return needed.isdisjoint(program.invars[: len(jax.tree.leaves(broadcast))])


def _variables(atoms: list[Var | Literal]) -> set[Var]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}
