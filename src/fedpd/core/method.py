"""A federated method: what an agent does, what it sends, and what the server makes of it.

Users keep their models as pytrees. Methods see them as `tree_math.Vector`, so that their code reads as vector algebra.

A layer around a method is a method whose messages or whose server something changes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec
from fedpd.base.value import Value, attribute, parts_of
from fedpd.core.message import Kind, kinds_of
from fedpd.core.objective import LocalObjective
from fedpd.core.oracle import Oracle, Work, step_above_limit
from fedpd.core.vectors import Array, Key, Tree


class Mixing(NamedTuple):
    """Stands for an exchange's `aggregate` if there is no server: agent i receives a sum of all messages.

    Attributes:
        weights: Returns the weights that agent i gives to the messages of all agents, shape (N,).
    """

    weights: Callable[[Array], Array]


class Exchange(NamedTuple):
    """One exchange of messages: agents compute and send, the server averages, agents receive.

    Attributes:
        local: (f_i, agent, r, key) -> the agent's new state and its work.
        send: (agent) -> its message. Nothing else leaves the agent.
        aggregate: (server, mean, share) -> the server's new state and the broadcast. `mean` is the mean of the messages
            that were sent, `share` the fraction of all agents that sent (1: all of them). Or a `Mixing`.
        receive: (agent, broadcast) -> the agent's new state. It may depend on the newest broadcast only: an absent
            agent receives that one later, and none before it.
        missed: The same for an agent that was absent in this round; None: as `receive`.
        speaks: (agent) -> whether it sends; None: always. If no agent sends, the server still updates, with a mean and
            a share of 0.
        when: (r) -> whether the exchange takes place in round r; None: in all rounds.
        mean: (messages, sent) -> the server's mean, e.g. a median; None: the arithmetic mean. `messages` has leaves
            (C, ...), one row per agent; `sent` is (C,), false for rows that nobody sent. If nobody sent, it is 0.
        restore: (agent, change) -> the broadcast, if only its change travelled; None: broadcasts travel whole.
        with_message: (agent, message) -> the state of an agent that sent this in place of its own message, e.g. because
            it was clipped, such that what it keeps fits what the server has. None: messages must not be clipped.
    """

    local: Callable[[LocalObjective, Any, Array, Key], tuple[Any, Work]]
    send: Callable[[Any], Tree]
    aggregate: Callable[[Any, Tree, Any], tuple[Any, Tree]] | Mixing
    receive: Callable[[Any, Tree], Any]
    missed: Callable[[Any, Tree], Any] | None = None
    speaks: Callable[[Any], Array] | None = None
    when: Callable[[Array], Array] | None = None
    mean: Callable[[Tree, Array], Tree] | None = None
    restore: Callable[[Any, Tree], Tree] | None = None
    with_message: Callable[[Any, Tree], Any] | None = None

    @property
    def mixes(self) -> bool:
        """Whether agents mix their messages without a server."""
        return isinstance(self.aggregate, Mixing)


class Method(Value):
    """A federated method. A simple one has fields for its settings, and `init`, `local`, `send` and `receive`.

    The server of such a method keeps the mean of the messages and sends it to all agents. Override `server` and
    `aggregate` for another server, and `exchanges` for several exchanges in a round. The functions that are None here
    are optional; `Exchange` says what they do.

    Attributes:
        needs_everyone: Whether it needs all agents in every communication.
        repeats: Whether the server may use an absent agent's last message again. This is possible if messages are
            models, not changes, and the server keeps no sum of them.
        copies_differ: Whether the agents' copies of the model differ even after a communication.
        only_at_agents: Whether agents change the model by themselves, all in the same way, so that the server does not
            know it.
        plain_steps: Whether its local steps must be plain gradient steps, without momentum, because it divides by them.
        model_first: Whether the state of a server that keeps more than a model begins with it, as the broadcast does,
            and the rest fits any model in its place. An optimiser may then take the server's step.
        waits: (server, r) -> whether the server decides that round r communicates nothing; None: it never does.
        delivers: (server) -> the model of a run, if only the server keeps it; None: the mean of the agents' copies.
        rebuild: (f_i, agent) -> a new state for an agent that lost its own, where `agent` is the state of an agent that
            was absent since the start; None: it continues from that state.
        is_personal: (path of a parameter) -> whether it stays at its agent, so that the agents' models differ there;
            None: the agents have one model.
        local_gradient: (f_i, agent) -> the gradient of what an agent minimises in its local solve, where the last solve
            ended; None: the state does not show it. Its largest squared norm is eps_1.
    """

    needs_everyone = attribute(False)
    repeats = attribute(False)
    copies_differ = attribute(False)
    only_at_agents = attribute(False)
    plain_steps = attribute(False)
    model_first = attribute(False)
    missed = attribute(None)
    speaks = attribute(None)
    with_message = attribute(None)
    waits = attribute(None)
    delivers = attribute(None)
    rebuild = attribute(None)
    local_gradient = attribute(None)
    is_personal = attribute(None)

    def init(self, f: LocalObjective, x: Vector) -> Any:
        """Return the state of an agent at the start x^0."""
        self.needs("init(self, f, x)")

    def server(self, x: Vector) -> Any:
        """Return the state of the server at the start x^0."""
        return x

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        """Return an agent's new state after its local computation, and the work that it did."""
        self.needs("local(self, f, agent, r, key)")

    def send(self, agent: Any) -> Tree:
        """Return an agent's message. Nothing else leaves the agent."""
        self.needs("send(self, agent)")

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Tree]:
        """Return the server's new state and the broadcast."""
        return mean, mean

    def receive(self, agent: Any, broadcast: Any) -> Any:
        """Return an agent's new state after a broadcast, which is its x unless this function says otherwise.

        A method with a model() of its own keeps the global model elsewhere, so it has a receive() of its own, too.
        """
        if type(self).model is Method.model and hasattr(agent, "x"):
            model: Any = jax.tree.structure(agent.x)
            if jax.tree.structure(broadcast) == model:
                return agent._replace(x=broadcast)
        return self.needs("receive(self, agent, broadcast)")

    def model(self, agent: Any) -> Vector:
        """Return an agent's copy of the global model (FedPD: x_{0,i}); f is measured at the mean of the copies."""
        if isinstance(agent, Vector):
            return agent
        return agent.x if hasattr(agent, "x") else self.needs("model(self, agent)")

    def exchanges(self) -> tuple[Exchange, ...]:
        """Return the exchanges of a round, in order."""
        own = Exchange(self.local, self.send, self.aggregate, self.receive, self.missed, self.speaks)
        return (own._replace(with_message=self.with_message),)

    def partial(self) -> "Method":
        """Return the form of the method for rounds in which agents are absent."""
        return self

    def asynchronous(self) -> "Method | None":
        """Return the form whose server can use messages computed from an old broadcast; None: there is none."""
        return None

    def skip_probability(self, r: Any) -> Any:
        """Return p_r, the probability that round r communicates nothing; None: no round is skipped at random."""
        return None

    @property
    def skips(self) -> bool:
        """Whether there may be rounds without a communication."""
        return self.waits is not None or self.skip_probability(jnp.int32(0)) is not None

    @property
    def oracles(self) -> tuple[Oracle, ...]:
        """The local solvers among its settings."""
        return tuple(part for part in parts_of(self) if isinstance(part, Oracle))

    @property
    def samples_per_step(self) -> int | None:
        """Samples per local step (None: all samples of the agent); the engine chooses how to run the agents by it."""
        batches = [getattr(self, "batch", None), *(oracle.batch for oracle in self.oracles)]
        return max((batch for batch in batches if batch is not None), default=None)

    @property
    def local_epochs(self) -> int | None:
        """Passes of a round over each agent's own samples; None: all agents do equally many local steps."""
        passes = [getattr(self, "epochs", None), *(oracle.epochs for oracle in self.oracles)]
        return max((number for number in passes if number is not None), default=None)

    @property
    def compares_rounds(self) -> bool:
        """Whether it compares gradients of different rounds, as variance reduction and secant pairs do.

        The loss must then be the same function in all rounds, without dropout.
        """
        return any(oracle.compares_rounds for oracle in self.oracles)

    def caution(self, L: float) -> str | None:
        """Return a sentence if no theorem covers a run on a problem with smoothness L, else None."""
        sentences = (step_above_limit(oracle, L) for oracle in self.oracles)
        return next((sentence for sentence in sentences if sentence), None)

    @property
    def largest_variance(self) -> float | None:
        """The variance of an unbiased transform of messages that its theorem allows; None: it says nothing of it."""
        return None

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        """Refuse settings that do not fit N agents, of which at least `fewest()` send in a communication."""


def of_method(name: str) -> Any:
    """Return a property of a method around another one: that of the other."""
    return property(lambda self: getattr(self.method, name))


class Around(Method):
    """A method around another one. What the server does, and what is said of the method, is the other's.

    A subclass has `init`, `local`, `send`, `receive` and `model`, or `exchanges`, with states of its own.
    """

    method: Method
    needs_everyone = of_method("needs_everyone")
    copies_differ = of_method("copies_differ")
    only_at_agents = of_method("only_at_agents")
    waits = of_method("waits")
    delivers = of_method("delivers")
    is_personal = of_method("is_personal")
    samples_per_step = of_method("samples_per_step")
    local_epochs = of_method("local_epochs")
    compares_rounds = of_method("compares_rounds")

    @property
    def spec(self) -> Spec:
        return self.method.spec if is_of_fedpd(type(self)) else super().spec

    @property
    def name(self) -> str:
        return self.method.name if is_of_fedpd(type(self)) else super().name

    def server(self, x: Vector) -> Any:
        return self.method.server(x)

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Tree]:
        return self.method.aggregate(server, mean, share)

    def skip_probability(self, r: Any) -> Any:
        return self.method.skip_probability(r)

    def caution(self, L: float) -> str | None:
        return self.method.caution(L)

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        self.method.check_agents(agents, fewest)


class Layer(Around):
    """A layer that leaves the agents' states as they are. A layer with states of its own overrides what has them."""

    rebuild = of_method("rebuild")
    repeats = of_method("repeats")

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return self.method.init(f, x)

    def model(self, agent: Any) -> Vector:
        return self.method.model(agent)


class WithInner(Layer):
    """A layer whose agents have a field `inner`, the method's own state."""

    @property
    def rebuild(self) -> Any:
        return rebuilt_inside(self.method.rebuild)

    def model(self, agent: Any) -> Vector:
        return self.method.model(agent.inner)


def inside(exchange: Exchange) -> Exchange:
    """Return an exchange of a method for agents that hold the method's own state as `inner`."""

    def updated(function: Any) -> Any:
        return None if function is None else lambda agent, more: agent._replace(inner=function(agent.inner, more))

    def local(f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        inner, work = exchange.local(f, agent.inner, r, key)
        return agent._replace(inner=inner), work

    speaks = exchange.speaks
    return exchange._replace(
        local=local,
        send=lambda agent: exchange.send(agent.inner),
        receive=updated(exchange.receive),
        missed=updated(exchange.missed),
        speaks=None if speaks is None else lambda agent: speaks(agent.inner),
        with_message=updated(exchange.with_message),
    )


def rebuilt_inside(rebuild: Any) -> Any:
    """Return a method's `rebuild` for states that hold the method's own as `inner`; None if it has none."""
    return None if rebuild is None else lambda f, agent: agent._replace(inner=rebuild(f, agent.inner))


def read_inside(function: Any) -> Any:
    """Return a method's `waits` or `delivers` for servers that hold its own as `inner`; None if it has none."""
    return None if function is None else lambda server, *more: function(server.inner, *more)


def layers_of(method: Method) -> list[Method]:
    """Return the layers around a method, the outermost first, and the method itself."""
    return [method, *layers_of(method.method)] if isinstance(method, Layer) else [method]


class State(NamedTuple):
    """The state that a run carries from round to round."""

    agents: Any  # leaves (N, ...)
    server: Any
    round: Array


def form_with_absent(method: Method) -> Method:
    """Return the form of a method for rounds in which agents are absent, under the name that the method has.

    Raises:
        FedpdError: The form is that of a class of fedpd, without what the user's own subclass changes.
    """
    form = method.partial()
    check_form(method, form, "partial")
    return form if form.spec == method.spec else form.called(method.spec)


def check_form(method: Method, form: "Method | None", name: str) -> None:
    """Refuse a form that a user's own subclass inherits: it would run the method of fedpd in place of the subclass."""
    kind = type(method)
    made_by = next(one for one in kind.__mro__ if name in one.__dict__)
    if form is None or type(form) is kind or is_of_fedpd(kind) or not is_of_fedpd(made_by):
        return
    rule = f"inherits {name}() of {made_by.__name__}, whose form has nothing of what {kind.__name__} changes"
    refuse("algorithm", method.description, rule, f"Write def {name}(self) in it; it may return self")


def is_of_fedpd(kind: type) -> bool:
    return kind.__module__.startswith("fedpd.")


def message_kinds(method: Method) -> list[tuple[Kind | None, ...]]:
    """Return the type of each part of the messages of each exchange; () if they must arrive as they were sent."""
    exchanges = method.exchanges()

    def messages(x: Vector) -> list[Tree]:
        agent = method.init(LocalObjective.without_samples(x), x)
        return [exchange.send(agent) for exchange in exchanges]

    return [kinds_of(message) for message in jax.eval_shape(messages, Vector(jnp.zeros(1)))]
