"""Wrap a method, so that its messages are transformed on their way."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec
from fedpd.core import Array, Key, Kind, LocalObjective, Tree, Update, Vector, Work, opened
from fedpd.core.dp_sgd import FROM_SYSTEM
from fedpd.core.message import IsPersonal
from fedpd.core.method import (
    Exchange,
    Layer,
    Method,
    Mixing,
    form_with_absent,
    inside,
    layers_of,
    message_kinds,
    read_inside,
)
from fedpd.transforms._attacks import Corrupted
from fedpd.transforms._lora import Exact, ExactLora, with_exact_lora
from fedpd.transforms._means import MeanRule, Weighted, Weights, with_weights
from fedpd.transforms._personal import Personal, with_personal_parameters
from fedpd.transforms._private import Gaussian, Private, with_noise
from fedpd.transforms._server import ServerStep, Stepped, with_server_step
from fedpd.transforms._ways import (
    OWN_POINT,
    Held,
    Receiver,
    Sender,
    Told,
    Transform,
    Uplink,
    broadcast_shapes,
    check_bias,
    check_chain,
    pack_broadcast,
    restored,
    start_held,
    uplink,
)

KNOWN_KINDS: dict[Any, tuple[tuple[Kind | None, ...], ...]] = {}  # by the structure of a method
MOST_KINDS = 256  # a structure keeps the functions of a method alive, and what they hold
UP = 1  # a fold into the key of (seed, round, agent), for the transforms

Transforms = Transform | Gaussian | list[Transform] | list[Gaussian] | tuple[Transform, ...]
Rule = MeanRule | ServerStep | Weights | ExactLora
Means = Rule | list[Rule] | tuple[Rule, ...]


class Agent(NamedTuple):
    """An agent of a wrapped method."""

    inner: Any  # the method's own state
    senders: tuple[Sender, ...]  # what the agent keeps for the messages of each exchange; () if they travel as they are
    held: tuple[Tree, ...]  # the last broadcast of each exchange; () if broadcasts travel whole


class Server(NamedTuple):
    """The server of a wrapped method."""

    inner: Any  # the method's own state
    receivers: tuple[Receiver, ...]  # what the server keeps for the messages of each exchange
    held: tuple[Held, ...]  # what the server keeps for the broadcasts of each exchange


def wrap(
    algorithm: Method,
    *,
    up: Transforms = (),
    down: Transforms = (),
    mean: Means = (),
    personal: IsPersonal | None = None,
) -> Method:
    """Return the method with transformed messages.

    Args:
        algorithm: Any method of `fedpd.algorithms`, or your own.
        up: What happens to the messages of the agents; a list composes, e.g. `[top_k(0.01), quantize(8)]`. What is not
            sent now is sent later, and messages are differences to what the server already has.
        down: The same for the broadcasts of the server. It needs all agents in every communication.
        mean: How the server combines the messages, in place of their mean, or who takes its step, e.g. `median()`,
            `weighted("samples")` or `server_optimizer(optax.adam(0.01))`, or a list, e.g. of the last two. The exact
            mean of LoRA's products, `exact_lora(net)`, goes alone.
        personal: (path of a parameter, such as "head/kernel") -> whether it stays at its agent, and is never sent.
            Agent i then trains f_i(s, v_i), with shared parameters s and its own v_i, at which fedpd measures it. It
            must be the only argument beside the method.

    Raises:
        FedpdError: The method does not work with a transform.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, simulate, theory, transforms
        >>> problem = problems.random_quadratic(agents=5, dimension=100)
        >>> eta = 1 / theory.smoothness(problem)
        >>> plain = algorithms.fedpd(eta=eta, oracle=oracles.gd(step=eta / 2, iterations=8))
        >>> small = transforms.wrap(plain, up=[transforms.top_k(0.1), transforms.quantize(8)])
        >>> [int(simulate(one, problem, rounds=1).history["bytes_up"][-1]) for one in (plain, small)]
        [4000, 130]
    """
    if not isinstance(algorithm, Method):
        refuse("algorithm", algorithm, "must be a method", "Give e.g. algorithms.fedpd(eta=..., oracle=...)")
    layers = layers_of(algorithm)
    if any(isinstance(one, Personal) for one in layers) or (personal is not None and (up, down, mean) != ((), (), ())):
        refuse(
            "personal",
            algorithm.description,
            "goes alone: messages are neither packed nor weighed then",
            "Give personal alone",
        )
    if personal is not None:
        if len(layers) > 1:
            refuse("algorithm", algorithm.description, "is wrapped already", "Give personal to the method itself")
        return with_personal_parameters(algorithm, personal)
    if any(isinstance(one, Exact) for one in layers):
        refuse(
            "algorithm", algorithm.description, "averages products exactly, which goes alone", "Wrap the method itself"
        )
    if any(isinstance(one, Private) for one in layers):
        rule_text = "is private, and its epsilon is that of the sum of the messages as agents sent them"
        refuse("algorithm", algorithm.description, rule_text, "Wrap the method itself")
    if any(isinstance(one, Wrapped) and (one.up or one.down) for one in layers):
        rule_text = "its messages are packed already"
        refuse("algorithm", algorithm.description, rule_text, "Give all transforms in one call of wrap")
    if (rule := _private_rule(up, down, mean)) is not None:
        return with_noise(algorithm, rule)
    chains = check_chain("up", up), check_chain("down", down)
    rules = check_rules(mean)
    exact = next((one for one in rules if isinstance(one, ExactLora)), None)
    if exact is None:
        return transformed(algorithm, *chains, rules)
    if len(rules) > 1 or len(layers) > 1 or chains != ((), ()):
        refuse("mean", exact.description, "goes alone: it needs the messages as agents sent them", "Give it alone")
    return with_exact_lora(algorithm, exact)


def _private_rule(up: Any, down: Any, mean: Any) -> Gaussian | None:
    """Return the clipping and noise of `up`, if it has any; refuse anything beside it."""
    given = up if isinstance(up, list | tuple) else (up,)
    rule = next((one for one in given if isinstance(one, Gaussian)), None)
    if rule is not None and (len(given) > 1 or down not in ((), []) or mean not in ((), [])):
        text = "must be the only transform, because epsilon is that of the sum of the messages as agents sent them"
        refuse("up", rule.description, text, "Leave the other transforms out")
    return rule


def private_parts(algorithm: Method) -> tuple[Method, Gaussian] | None:
    """Return the method itself and its clipping and noise; None: its messages are not private."""
    return (algorithm.method, algorithm.up) if isinstance(algorithm, Private) else None


def with_system_noise(algorithm: Method) -> Method:
    """Return the method with noise from the operating system, which nobody can predict; others are unchanged."""
    return replace(algorithm, normal=FROM_SYSTEM.normal) if isinstance(algorithm, Private) else algorithm


def check_rules(mean: Any) -> tuple[Rule, ...]:
    """Return one rule of the server or a list of them as a tuple; refuse anything else, and two of a kind."""
    rules = mean if isinstance(mean, list | tuple) and not isinstance(mean, Rule) else (mean,)
    remedy = "Give e.g. mean=transforms.median(), or mean=[transforms.median(), transforms.server_optimizer(...)]"
    for rule in rules:
        if not isinstance(rule, Rule):
            refuse("mean", mean, "must be rules of the server", remedy)
    for kind in (MeanRule | Weights, ServerStep):
        if sum(isinstance(rule, kind) for rule in rules) > 1:
            refuse("mean", [rule.description for rule in rules], "must have one rule of a kind", remedy)
    return tuple(rules)


def transformed(
    algorithm: Method, up: tuple[Transform, ...], down: tuple[Transform, ...], mean: tuple[Rule, ...]
) -> Method:
    """Return the method with transformed messages."""
    if any(exchange.mixes for exchange in algorithm.exchanges()):
        why = "its agents mix their models without a server"
        refuse("algorithm", algorithm.description, why, "Choose a method with a server, e.g. fedavg(...)")
    method = algorithm
    for step in mean:
        if isinstance(step, ServerStep):
            method = with_server_step(method, step)
    if any(isinstance(one, Weights) for one in mean):
        if up:
            why = "does not go with up, because agents send n_i times their message"
            refuse("mean", [one.description for one in mean], why, "Leave up or weighted out")
        method = with_weights(method)  # around a step of the server, whose method then gets the weighted mean
    rule = next((rule for rule in mean if isinstance(rule, MeanRule)), None)
    made = Wrapped(method=method, up=up, down=down, mean=mean, everyone=True)
    if rule is not None and made.has_own_points:
        why = f"does not go with up, because {algorithm.name} then sends changes of which the server keeps the mean"
        refuse("mean", rule.description, why, "Leave up or mean out")
    check_bias("down", algorithm.name, down)
    made.exchanges()  # refuses a method whose messages must arrive as they were sent
    return made


class Wrapped(Layer):
    """A method with packed messages and broadcasts, or another mean."""

    up: tuple[Transform, ...]  # what happens to the messages
    down: tuple[Transform, ...]  # what happens to the broadcasts
    mean: tuple[Rule, ...]  # how the server combines the messages, and who takes its step
    everyone: bool  # whether all agents hear all broadcasts

    @property
    def kinds(self) -> tuple[tuple[Kind | None, ...], ...]:
        """The types of the messages of each exchange; () if they travel as they are."""
        return _kinds(self.method) if self.up else ()

    @property
    def has_own_points(self) -> bool:
        return any(kind in OWN_POINT for parts in self.kinds for kind in parts)

    @property
    def spec(self) -> Spec:
        ways = {"up": self.up, "down": self.down, "mean": self.mean}
        return self.algorithm.spec.plus(**{name: value for name, value in ways.items() if value})

    @property
    def algorithm(self) -> Method:
        """The method that was wrapped."""
        method = self.method
        while isinstance(method, Stepped | Weighted):
            method = method.method
        return method

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Method:
        own = {name: changes[name] for name in ("up", "down", "mean") if name in changes}
        rest = {name: value for name, value in changes.items() if name not in own}
        return wrap(self.algorithm.changed(rest, within), **{"up": self.up, "down": self.down, "mean": self.mean} | own)

    @property
    def packs(self) -> bool:
        return bool(self.up or self.down)

    @property
    def links(self) -> tuple[Uplink, ...]:
        """The way up of each exchange; () if messages travel as they are."""
        if not self.up:
            return ()
        pairs = zip(self.method.exchanges(), self.kinds, strict=True)
        return tuple(uplink(self.name, exchange, kinds, self.up, self.everyone) for exchange, kinds in pairs)

    def partial(self) -> Method:
        if self.down or self.method.needs_everyone or not self.everyone:
            return self
        # With an H over all agents, the server knows the last message of absent agents, so the whole form serves.
        form = self.method if self.has_own_points else form_with_absent(self.method)
        return replace(self, method=form, everyone=False)

    @property
    def needs_everyone(self) -> bool:
        return self.method.needs_everyone or bool(self.down)

    @property
    def repeats(self) -> bool:
        return self.method.repeats and not self.up

    def held(self, x: Vector) -> tuple[Tree, ...]:
        """Return the last broadcast of each exchange at the start; () if broadcasts travel whole."""
        shapes, links = broadcast_shapes(self.method, x) if self.down else (), self.links
        told = [_told(links[e] if links else None, one, jnp.uint8(0)) for e, one in enumerate(shapes)]
        return tuple(start_held(one, x) for one in told)

    def init(self, f: LocalObjective, x: Vector) -> Any:
        inner = self.method.init(f, x)
        if not self.packs:
            return inner
        return Agent(inner, tuple(link.sender(inner, x) for link in self.links), self.held(x))

    def server(self, x: Vector) -> Any:
        if not self.packs:
            return self.method.server(x)
        broadcasts = tuple(Held(whole, jnp.int32(0)) for whole in self.held(x))
        return Server(self.method.server(x), tuple(link.receiver(x) for link in self.links), broadcasts)

    def model(self, agent: Any) -> Vector:
        return self.method.model(agent.inner if self.packs else agent)

    @property
    def waits(self) -> Any:
        return read_inside(self.method.waits) if self.packs else self.method.waits

    @property
    def delivers(self) -> Any:
        return read_inside(self.method.delivers) if self.packs else self.method.delivers

    @property
    def rebuild(self) -> Any:
        return self._rebuilt if self.packs else self.method.rebuild

    def _rebuilt(self, f: LocalObjective, agent: Agent) -> Agent:
        inner = agent.inner if self.method.rebuild is None else self.method.rebuild(f, agent.inner)
        return agent._replace(inner=inner, senders=tuple(one._replace(fresh=jnp.uint8(1)) for one in agent.senders))

    def exchanges(self) -> tuple[Exchange, ...]:
        own = self.method.exchanges()
        if self.packs:
            links = self.links
            own = tuple(_exchange(one, links[e] if links else None, self.down, e) for e, one in enumerate(own))
        rule = next((rule for rule in self.mean if isinstance(rule, MeanRule)), None)
        return own if rule is None else tuple(_with_mean(one, rule) for one in own)


def _kinds(method: Method) -> tuple[tuple[Kind | None, ...], ...]:
    """Return what the messages of a method are. It does not depend on the numbers, and a round asks several times."""
    structure = jax.tree.structure(method)
    if structure not in KNOWN_KINDS:
        if len(KNOWN_KINDS) >= MOST_KINDS:
            KNOWN_KINDS.clear()
        KNOWN_KINDS[structure] = tuple(message_kinds(method))
    return KNOWN_KINDS[structure]


def _with_mean(exchange: Exchange, rule: MeanRule) -> Exchange:
    corrupted = exchange.mean
    mean = replace(corrupted, mean=rule.mean) if isinstance(corrupted, Corrupted) else rule.mean
    return exchange._replace(mean=mean)


def _exchange(exchange: Exchange, link: Uplink | None, down: tuple[Transform, ...], e: int) -> Exchange:
    """Return exchange e with packed messages (if there is a link) and packed broadcasts (if `down` is given)."""
    plain, missed = inside(exchange), exchange.missed or exchange.receive

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent, work = plain.local(f, agent, r, key)
        if link is None:
            return agent, work
        message = link.packed(agent.inner, agent.senders[e], jax.random.fold_in(key, UP))
        return _keep(agent, e, agent.senders[e]._replace(message=message)), work

    def send(agent: Agent) -> Tree:
        return exchange.send(agent.inner) if link is None else agent.senders[e].message

    def aggregate(server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
        assert not isinstance(exchange.aggregate, Mixing)
        receivers, held = server.receivers, server.held
        if link is not None:
            own, mean, reset = link.received(receivers[e], mean, share)
        inner, broadcast = exchange.aggregate(server.inner, mean, share)
        if link is not None:
            broadcast = _told(link, broadcast, reset)
        if down:
            kept, broadcast = pack_broadcast(down, held[e], broadcast)
            held = _with(held, e, kept)
        if link is not None:
            own = own._replace(reference=own.reference.after(whole_of(broadcast)))
            receivers = _with(receivers, e, own)
        return Server(inner, receivers, held), broadcast

    def receive(agent: Agent, broadcast: Tree) -> Agent:
        inner = agent.inner
        if link is not None and link.tells_method:
            assert exchange.with_message is not None  # of a Difference
            inner = exchange.with_message(inner, opened(agent.senders[e].message))
        whole = whole_of(broadcast)
        inner = exchange.receive(inner, whole.broadcast if isinstance(whole, Told) else whole)
        if link is None:
            return heard(agent, inner, broadcast)
        sender = link.sent(agent.inner, agent.senders[e])
        if plain.speaks is not None:
            sent = plain.speaks(agent)
            sender = jax.tree.map(lambda new, old: jnp.where(sent, new, old), sender, agent.senders[e])
        if isinstance(whole, Told):
            sender = link.told(sender, whole.reset)
        return heard(_keep(agent, e, sender), inner, broadcast)

    def absent(agent: Agent, broadcast: Tree) -> Agent:
        whole = whole_of(broadcast)
        return heard(agent, missed(agent.inner, whole.broadcast if isinstance(whole, Told) else whole), broadcast)

    def heard(agent: Agent, inner: Any, broadcast: Tree) -> Agent:
        whole = whole_of(broadcast)
        if link is not None:
            agent = _keep(agent, e, agent.senders[e]._replace(reference=agent.senders[e].reference.after(whole)))
        return agent._replace(inner=inner, held=_with(agent.held, e, whole) if down else ())

    restore = (lambda agent, change: restored(agent.held[e], change)) if down else None
    return Exchange(
        local, send, aggregate, receive, absent, plain.speaks, exchange.when, exchange.mean, restore=restore
    )


def _told(link: Uplink | None, broadcast: Tree, reset: Array) -> Tree:
    """Return a broadcast, with `reset` if agents need to know it."""
    return Told(broadcast, reset) if link is not None and link.resets else broadcast


def whole_of(broadcast: Tree) -> Tree:
    """Return the broadcast itself."""
    return broadcast.whole if isinstance(broadcast, Update) else broadcast


def _keep(agent: Agent, e: int, sender: Sender) -> Agent:
    return agent._replace(senders=_with(agent.senders, e, sender))


def _with(values: tuple[Any, ...], e: int, value: Any) -> tuple[Any, ...]:
    return (*values[:e], value, *values[e + 1 :])
