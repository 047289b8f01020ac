"""The parts of a federated method: pure functions on the state of one agent and of the server.

Users keep their models as pytrees. Methods see them as `tree_math.Vector`, so that their code reads as vector algebra.
"""

from typing import Any, Literal, NamedTuple, Protocol

from tree_math import Vector

from fedpd.base.spec import Spec, label_of
from fedpd.core.objective import LocalObjective
from fedpd.core.oracle import Work
from fedpd.core.types import Array, Key, Tree


class Local(Protocol):
    """Returns an agent's new state after its local computation, and the work that it did."""

    def __call__(self, f: LocalObjective, agent: Any, r: Array, key: Key, /) -> tuple[Any, Work]: ...


class Send(Protocol):
    """Returns an agent's message. Nothing else leaves the agent."""

    def __call__(self, agent: Any, /) -> Tree: ...


class Aggregate(Protocol):
    """Returns the server's new state and the broadcast.

    `mean` is the mean of the messages that were sent. `share` is the fraction of all agents that sent (1: all of them).
    """

    def __call__(self, server: Any, mean: Tree, share: Any, /) -> tuple[Any, Tree]: ...


class Receive(Protocol):
    """Returns an agent's new state after a broadcast.

    The new state may depend on the newest broadcast only: an absent agent receives that one later, and none before it.
    """

    def __call__(self, agent: Any, broadcast: Tree, /) -> Any: ...


class Restore(Protocol):
    """Returns a broadcast from the change that travelled to an agent which has the broadcast before it."""

    def __call__(self, agent: Any, change: Tree, /) -> Tree: ...


class Speaks(Protocol):
    """Returns whether an agent sends a message in this exchange."""

    def __call__(self, agent: Any, /) -> Array: ...


class When(Protocol):
    """Returns whether an exchange takes place in round r."""

    def __call__(self, r: Array, /) -> Array: ...


class WithMessage(Protocol):
    """Returns the state of an agent that sent `message` in place of its own message, e.g. because it was clipped."""

    def __call__(self, agent: Any, message: Tree, /) -> Any: ...


class MixingWeights(Protocol):
    """Returns the weights that agent i gives to the messages of all agents, shape (N,)."""

    def __call__(self, i: Array, /) -> Array: ...


class Mixing(NamedTuple):
    """An exchange without a server: agent i receives the sum of all messages with its own weights."""

    weights: MixingWeights


class Mean(Protocol):
    """Returns the server's mean of the messages, e.g. their median.

    `messages` has leaves (C, ...), one row per agent. `sent` is (C,), and false for rows that nobody sent. If nobody
    sent, the engine replaces the result by 0.
    """

    def __call__(self, messages: Tree, sent: Array, /) -> Tree: ...


Kind = Literal["change", "model", "iterate", "gradient", "difference", "unbiased"]


class Exchange(NamedTuple):
    """One exchange of messages: agents compute and send, the server averages, agents receive.

    Attributes:
        local: Computes an agent's new state.
        send: Returns the agent's message.
        aggregate: Updates the server with the mean of the messages; or a `Mixing`, if there is no server.
        receive: Updates an agent with the broadcast.
        absent: Updates an agent that was absent in this round with the broadcast; None: as `receive` does.
        speaks: Returns whether an agent sends; None: always. If no agent sends, the server still updates, with a mean
            and a share of 0.
        when: Returns whether the exchange takes place in a round; None: in all rounds.
        mean: Returns the server's mean of the messages; None: the arithmetic mean.
        sends: What a message is, for `transforms`, or a tuple with one entry per part of it. "change": the server adds
            it to a sum. "model": a model that comes close to the last broadcast. "iterate": a point of the agent's own
            that starts at x^0. "gradient": a vector of the agent's own that starts anywhere. "difference": a difference
            to what the server has; the agent keeps account of what arrived, by `with_message`. "unbiased": the same,
            for methods that need the right expectation. None as an entry: a part that travels as it is. None alone:
            messages must arrive as they were sent.
        restore: Returns a broadcast from its change; None: broadcasts travel whole.
        with_message: Returns the state of an agent that sent another message than its own, such that what the agent
            keeps fits what the server has. None: messages must not be clipped.
    """

    local: Local
    send: Send
    aggregate: Aggregate | Mixing
    receive: Receive
    absent: Receive | None = None
    speaks: Speaks | None = None
    when: When | None = None
    mean: Mean | None = None
    sends: Kind | tuple[Kind | None, ...] | None = None
    restore: Restore | None = None
    with_message: WithMessage | None = None


class Init(Protocol):
    """Returns the state of an agent at the start x^0."""

    def __call__(self, f: LocalObjective, x: Vector, /) -> Any: ...


class InitServer(Protocol):
    """Returns the state of the server at the start x^0."""

    def __call__(self, x: Vector, /) -> Any: ...


class Model(Protocol):
    """Returns an agent's copy of the global model (FedPD: x_{0,i}); f is measured at the mean of the copies."""

    def __call__(self, agent: Any, /) -> Vector: ...


class Rebuild(Protocol):
    """Returns a new state for an agent that lost its own. `agent` is the state of an agent absent since the start."""

    def __call__(self, f: LocalObjective, agent: Any, /) -> Any: ...


class Skip(Protocol):
    """Returns p_r, the probability that round r communicates nothing."""

    def __call__(self, r: Array, /) -> Any: ...


class Waits(Protocol):
    """Returns whether the server decides that round r communicates nothing."""

    def __call__(self, server: Any, r: Array, /) -> Array: ...


class Away(NamedTuple):
    """How a method treats agents that are absent or have lost their state.

    Attributes:
        partial: The form of the method for partial participation, if it differs.
        everyone: Whether the method needs all agents in every communication.
        rebuild: Returns a new state for an agent that lost its own; None: the agent continues as if it had been absent
            since the start.
        repeats: Whether the server may use an absent agent's last message again. This is possible if messages are
            models, not changes, and the server keeps no sum of them.
        stale: The form of the method whose server can use messages that agents computed from an old broadcast, for
            asynchronous runs; True: this form; False: there is none.
    """

    partial: "Algorithm | None" = None
    everyone: bool = False
    rebuild: Rebuild | None = None
    repeats: bool = False
    stale: "Algorithm | bool" = False


class Timing(NamedTuple):
    """When a method communicates, and whether agents agree afterwards.

    Attributes:
        skip: The probability of skipping a round's communication; None: no round is skipped at random.
        waits: The server's own decision to skip; None: the server never skips.
        drifts: Whether the agents' copies of the model differ even after a communication.
        moves: Whether agents change the model by themselves, all in the same way, and a broadcast does not replace it.
    """

    skip: Skip | None = None
    waits: Waits | None = None
    drifts: bool = False
    moves: bool = False

    @property
    def skips(self) -> bool:
        """Whether there may be rounds without a communication."""
        return self.skip is not None or self.waits is not None


class Algorithm(NamedTuple):
    """A federated method.

    Attributes:
        spec: The method's name; `specified` replaces it by the name and the arguments of the factory.
        init: Returns the state of an agent at the start.
        server: Returns the state of the server at the start.
        exchanges: The exchanges of a round, in order.
        model: Returns an agent's copy of the global model.
        away: How to treat absent agents.
        timing: When to communicate.
    """

    spec: Spec | str
    init: Init
    server: InitServer
    exchanges: tuple[Exchange, ...]
    model: Model
    away: Away = Away()
    timing: Timing = Timing()

    @property
    def description(self) -> str:
        return label_of(self.spec)

    @property
    def name(self) -> str:
        return self.spec if isinstance(self.spec, str) else self.spec.name

    @property
    def batch(self) -> int | None:
        """Samples per local step (None: all samples of the agent); the engine chooses how to run the agents by it."""
        return None if isinstance(self.spec, str) else self.spec.find("batch")

    def with_spec(self, spec: Spec) -> "Algorithm":
        """Return the same method, and its form for partial participation, with this spec."""
        partial = self.away.partial
        away = self.away if partial is None else self.away._replace(partial=partial._replace(spec=spec))
        return self._replace(away=away, spec=spec)


class State(NamedTuple):
    """The state that a run carries from round to round."""

    agents: Any  # leaves (N, ...)
    server: Any
    round: Array
