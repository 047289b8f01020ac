"""Federated methods: pure functions on the state of one agent and of the server.

Models stay the user's pytrees; inside they are wrapped in `tree_math.Vector`, so that methods read as vector algebra.
"""

from typing import Any, NamedTuple, Protocol

from tree_math import Vector

from fedpd.base.spec import Spec, label_of
from fedpd.core.objective import LocalObjective
from fedpd.core.oracle import Work
from fedpd.core.types import Array, Key, Tree


class Local(Protocol):
    """An agent computes: returns its new state, and what that cost."""

    def __call__(self, f: LocalObjective, agent: Any, r: Array, key: Key, /) -> tuple[Any, Work]: ...


class Send(Protocol):
    """Returns an agent's message: the only thing that leaves it."""

    def __call__(self, agent: Any, /) -> Tree: ...


class Aggregate(Protocol):
    """The server combines messages: returns its new state and the broadcast.

    `mean` is the mean of the messages that were sent, `share` the senders' share of all agents (1: everyone sent).
    """

    def __call__(self, server: Any, mean: Tree, share: Any, /) -> tuple[Any, Tree]: ...


class Receive(Protocol):
    """An agent hears a broadcast: returns its new state.

    Only the newest broadcast may matter: an agent that was away hears it later, and none of those before.
    """

    def __call__(self, agent: Any, broadcast: Tree, /) -> Any: ...


class Speaks(Protocol):
    """Returns whether an agent has something to send this time."""

    def __call__(self, agent: Any, /) -> Array: ...


class When(Protocol):
    """Returns whether an exchange takes place in round r."""

    def __call__(self, r: Array, /) -> Array: ...


class MixingWeights(Protocol):
    """Returns agent i's weights of all agents' messages, (N,)."""

    def __call__(self, i: Array, /) -> Array: ...


class Mixing(NamedTuple):
    """Stands in the place of a server: agent i receives the sum of all messages with its own weights."""

    weights: MixingWeights


class Exchange(NamedTuple):
    """Agents compute and send, the server averages, agents receive.

    Attributes:
        local: What an agent computes.
        send: What it sends.
        aggregate: What the server makes of the mean of the messages; or a `Mixing`, where there is no server.
        receive: What an agent makes of the broadcast.
        absent: What a broadcast means to an agent that was away in this round; None: the same as to one that was there.
        speaks: Whether an agent sends; None: always. The server goes on even if nobody does (a mean and a share of 0).
        when: In which rounds it takes place; None: in all.
    """

    local: Local
    send: Send
    aggregate: Aggregate | Mixing
    receive: Receive
    absent: Receive | None = None
    speaks: Speaks | None = None
    when: When | None = None


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
    """Returns the state of an agent that has lost its own, given what it would be had it been away since the start."""

    def __call__(self, f: LocalObjective, agent: Any, /) -> Any: ...


class Skip(Protocol):
    """Returns p_r, the probability that round r communicates nothing."""

    def __call__(self, r: Array, /) -> Any: ...


class Waits(Protocol):
    """Returns whether round r communicates nothing, where the server decides that."""

    def __call__(self, server: Any, r: Array, /) -> Array: ...


class Away(NamedTuple):
    """What a method does about agents that are away, or have lost their state.

    Attributes:
        partial: The form of the method for agents that come and go, where it differs.
        everyone: Whether the method needs all agents in every communication.
        rebuild: How an agent that has lost its state goes on; None: as if it had been away since the start.
        repeats: Whether the server may count an agent's last message once more in its stead: messages are models, not
            changes, and the server keeps no sum of them.
    """

    partial: "Algorithm | None" = None
    everyone: bool = False
    rebuild: Rebuild | None = None
    repeats: bool = False


class Timing(NamedTuple):
    """When a method communicates, and whether agents agree afterwards.

    Attributes:
        skip: The probability of skipping a round's communication; None: no coin is tossed.
        waits: The server's own decision to skip; None: it makes none.
        drifts: Whether the agents' copies of the model differ even after a communication.
    """

    skip: Skip | None = None
    waits: Waits | None = None
    drifts: bool = False

    @property
    def skips(self) -> bool:
        """Whether there may be rounds without a communication."""
        return self.skip is not None or self.waits is not None


class Algorithm(NamedTuple):
    """A federated method.

    Attributes:
        spec: What the method was made with: its name, and `specified` fills in the settings of its factory.
        init: The state of an agent at the start.
        server: The state of the server at the start.
        exchanges: What happens in a round, in this order.
        model: An agent's copy of the global model.
        away: What happens to agents that are away.
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
        """Samples per local step (None: all of the agent's), by which the execution over agents is chosen."""
        return None if isinstance(self.spec, str) else self.spec.find("batch")

    def with_spec(self, spec: Spec) -> "Algorithm":
        """Return the same method, and its form for agents that come and go, with this spec."""
        partial = self.away.partial
        away = self.away if partial is None else self.away._replace(partial=partial._replace(spec=spec))
        return self._replace(away=away, spec=spec)


class State(NamedTuple):
    """Everything that a run carries from round to round."""

    agents: Any  # leaves (N, ...)
    server: Any
    round: Array
