"""Wrap a method, so that its messages are transformed on their way."""

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Made, Spec, spec_of
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Mean, Mixing, Tree, Update, Work, opened
from fedpd.transforms._attacks import Corrupted
from fedpd.transforms._chain import Transform, check_chain
from fedpd.transforms._downlink import Held, broadcast_shapes, pack_broadcast, restored, start_held
from fedpd.transforms._means import MeanRule
from fedpd.transforms._private import Gaussian, from_system, with_noise
from fedpd.transforms._server import ServerStep, with_server_step
from fedpd.transforms._uplink import OWN_POINT, Receiver, Sender, Told, Uplink, check_bias, uplink

UP = 1  # a fold into the key of (seed, round, agent), for the transforms

Transforms = Transform | Gaussian | list[Transform] | list[Gaussian] | tuple[Transform, ...]
Rule = MeanRule | ServerStep
Means = Rule | list[Rule] | tuple[Rule, ...]


class Agent(NamedTuple):
    """An agent of a wrapped method.

    Attributes:
        inner: The method's own state.
        senders: What the agent keeps for the messages of each exchange; () if they travel as they are.
        held: The last broadcast of each exchange; () if broadcasts travel whole.
    """

    inner: Any
    senders: tuple[Sender, ...]
    held: tuple[Tree, ...]


class Server(NamedTuple):
    """The server of a wrapped method.

    Attributes:
        inner: The method's own state.
        receivers: What the server keeps for the messages of each exchange.
        held: What the server keeps for the broadcasts of each exchange.
    """

    inner: Any
    receivers: tuple[Receiver, ...]
    held: tuple[Held, ...]


def wrap(
    algorithm: Algorithm,
    *,
    up: Transforms = (),
    down: Transforms = (),
    mean: Means = (),
) -> Algorithm:
    """Return the method with transformed messages.

    Args:
        algorithm: Any method of `fedpd.algorithms`, or your own.
        up: What happens to the messages of the agents; a list composes, e.g. `[top_k(0.01), quantize(8)]`. What is not
            sent now is sent later, and messages are differences to what the server already has.
        down: The same for the broadcasts of the server. It needs all agents in every communication.
        mean: How the server combines the messages, in place of their mean, or who takes its step, e.g. `median()` or
            `server_optimizer(optax.adam(0.01))`, or a list with one of each.

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
    if not isinstance(algorithm, Algorithm):
        refuse("algorithm", algorithm, "must be a method", "Give e.g. algorithms.fedpd(eta=..., oracle=...)")
    if private_parts(algorithm) is not None:
        rule_text = "is private, and its epsilon is that of the sum of the messages as agents sent them"
        refuse("algorithm", algorithm.description, rule_text, "Wrap the method itself")
    if isinstance(algorithm.spec, Spec) and {"up", "down"} & {name for name, _ in algorithm.spec.settings}:
        rule_text = "its messages are packed already"
        refuse("algorithm", algorithm.description, rule_text, "Give all transforms in one call of wrap")
    if (rule := _private_rule(up, down, mean)) is not None:
        return private(algorithm, rule)
    ways = Ways(check_chain("up", up), check_chain("down", down), check_rules(mean))
    return _with_spec(algorithm, with_transforms(algorithm, ways), ways._asdict())


def _with_spec(algorithm: Algorithm, made: Algorithm, ways: dict[str, Any]) -> Algorithm:
    """Return a wrapped method with the spec of the method and of the transforms that there are."""
    bound = inspect.signature(wrap).bind(algorithm, **ways)
    bound.apply_defaults()
    base = spec_of(algorithm)
    own = Spec.of("", **{name: value for name, value in ways.items() if value not in ((), None)})
    made = made._replace(away=made.away._replace(stale=False))  # its form for old models has messages as they are
    return made.with_spec(Spec(base.name, base.settings + own.settings, base.usual, Made(wrap, bound, made)))


def _private_rule(up: Any, down: Any, mean: Any) -> Gaussian | None:
    """Return the clipping and noise of `up`, if it has any; refuse anything beside it."""
    given = up if isinstance(up, list | tuple) and not isinstance(up, Gaussian) else (up,)
    rule = next((one for one in given if isinstance(one, Gaussian)), None)
    if rule is not None and (len(given) > 1 or down not in ((), []) or mean not in ((), [])):
        text = "must be the only transform, because epsilon is that of the sum of the messages as agents sent them"
        refuse("up", spec_of(rule).label(), text, "Leave the other transforms out")
    return rule


def private(algorithm: Algorithm, rule: Gaussian) -> Algorithm:
    """Return the method with clipping and noise."""
    return _with_spec(algorithm, with_noise(algorithm, rule), {"up": rule})


def private_parts(algorithm: Algorithm) -> tuple[Algorithm, Gaussian] | None:
    """Return the method itself and its clipping and noise; None: its messages are not private."""
    made = algorithm.spec.made if isinstance(algorithm.spec, Spec) else None
    if made is None or made.factory is not wrap or not isinstance(made.arguments.arguments["up"], Gaussian):
        return None
    return made.arguments.arguments["algorithm"], made.arguments.arguments["up"]


def with_system_noise(algorithm: Algorithm) -> Algorithm:
    """Return the method with noise from the operating system, which nobody can predict; others are unchanged."""
    parts = private_parts(algorithm)
    return algorithm if parts is None else with_noise(*parts, normal=from_system).with_spec(spec_of(algorithm))


class Ways(NamedTuple):
    """The transforms of a wrapped method."""

    up: tuple[Transform, ...]
    down: tuple[Transform, ...]
    mean: tuple[Rule, ...]


def check_rules(mean: Any) -> tuple[Rule, ...]:
    """Return one rule of the server or a list of them as a tuple; refuse anything else, and two of a kind."""
    rules = mean if isinstance(mean, list | tuple) and not isinstance(mean, Rule) else (mean,)
    remedy = "Give e.g. mean=transforms.median(), or mean=[transforms.median(), transforms.server_optimizer(...)]"
    for rule in rules:
        if not isinstance(rule, Rule):
            refuse("mean", mean, "must be rules of the server", remedy)
    for kind in (MeanRule, ServerStep):
        if sum(isinstance(rule, kind) for rule in rules) > 1:
            refuse("mean", [spec_of(rule).label() for rule in rules], "must have one rule of a kind", remedy)
    return tuple(rules)


def with_transforms(algorithm: Algorithm, ways: Ways) -> Algorithm:
    """Return the method, and its form for partial participation, with transformed messages."""
    if any(isinstance(exchange.aggregate, Mixing) for exchange in algorithm.exchanges):
        why = "its agents mix their models without a server"
        refuse("algorithm", algorithm.description, why, "Choose a method with a server, e.g. fedavg(...)")
    for step in ways.mean:
        if isinstance(step, ServerStep):
            algorithm = with_server_step(algorithm, step)
    rule = next((rule for rule in ways.mean if isinstance(rule, MeanRule)), None)
    # With an H over all agents, the server knows the last message of absent agents, so the whole form serves.
    own_points = bool(ways.up) and any(kind in OWN_POINT for one in algorithm.exchanges for kind in _kinds(one))
    if rule is not None and own_points:
        why = f"does not go with up, because {algorithm.name} then sends changes of which the server keeps the mean"
        refuse("mean", spec_of(rule).label(), why, "Leave up or mean out")
    some = algorithm if own_points else algorithm.away.partial
    whole = _with_mean(compressed(algorithm, ways, everyone=True), rule)
    alone = ways.down or some is None or algorithm.away.everyone
    partial = None if alone or some is None else _with_mean(compressed(some, ways, everyone=False), rule)
    return whole._replace(away=whole.away._replace(partial=partial))


def _with_mean(algorithm: Algorithm, rule: MeanRule | None) -> Algorithm:
    if rule is None:
        return algorithm

    def of(exchange: Exchange) -> Mean:
        corrupted = exchange.mean
        return corrupted._replace(mean=rule.mean) if isinstance(corrupted, Corrupted) else rule.mean

    return algorithm._replace(exchanges=tuple(one._replace(mean=of(one)) for one in algorithm.exchanges))


def _kinds(exchange: Exchange) -> tuple[Any, ...]:
    return exchange.sends if isinstance(exchange.sends, tuple) else (exchange.sends,)


def compressed(algorithm: Algorithm, ways: Ways, everyone: bool) -> Algorithm:
    """Return the method with packed messages and broadcasts; `everyone`: all agents hear all broadcasts."""
    if not ways.up and not ways.down:
        return algorithm
    check_bias("down", algorithm.name, ways.down)
    links = tuple(uplink(algorithm.name, one, ways.up, everyone) for one in algorithm.exchanges) if ways.up else ()
    rebuild, waits = algorithm.away.rebuild, algorithm.timing.waits

    def held(x: Vector) -> tuple[Tree, ...]:
        shapes = broadcast_shapes(algorithm, x) if ways.down else ()
        told = [_told(links[e] if links else None, one, jnp.uint8(0)) for e, one in enumerate(shapes)]
        return tuple(start_held(one, x) for one in told)

    def init(f: LocalObjective, x: Vector) -> Agent:
        inner = algorithm.init(f, x)
        return Agent(inner, tuple(link.sender(inner, x) for link in links), held(x))

    def server(x: Vector) -> Server:
        broadcasts = tuple(Held(whole, jnp.int32(0)) for whole in held(x))
        return Server(algorithm.server(x), tuple(link.receiver(x) for link in links), broadcasts)

    def rebuilt(f: LocalObjective, agent: Agent) -> Agent:
        inner = agent.inner if rebuild is None else rebuild(f, agent.inner)
        return agent._replace(inner=inner, senders=tuple(one._replace(fresh=jnp.uint8(1)) for one in agent.senders))

    away = algorithm.away._replace(
        rebuild=rebuilt,
        repeats=algorithm.away.repeats and not ways.up,
        everyone=algorithm.away.everyone or bool(ways.down),
    )
    return algorithm._replace(
        init=init,
        server=server,
        exchanges=tuple(_exchange(algorithm, links, ways.down, e) for e in range(len(algorithm.exchanges))),
        model=lambda agent: algorithm.model(agent.inner),
        away=away,
        timing=algorithm.timing._replace(waits=None if waits is None else lambda server, r: waits(server.inner, r)),
    )


def _exchange(algorithm: Algorithm, links: tuple[Uplink, ...], down: tuple[Transform, ...], e: int) -> Exchange:
    """Return exchange e with packed messages (if there are links) and packed broadcasts (if `down` is given)."""
    exchange, link = algorithm.exchanges[e], links[e] if links else None
    speaks, missed = exchange.speaks, exchange.absent or exchange.receive

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner, work = exchange.local(f, agent.inner, r, key)
        agent = agent._replace(inner=inner)
        if link is None:
            return agent, work
        message = link.packed(inner, agent.senders[e], jax.random.fold_in(key, UP))
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
            assert exchange.with_message is not None  # as Exchange.sends says
            inner = exchange.with_message(inner, opened(agent.senders[e].message))
        whole = whole_of(broadcast)
        inner = exchange.receive(inner, whole.broadcast if isinstance(whole, Told) else whole)
        if link is None:
            return heard(agent, inner, broadcast)
        sender = link.sent(agent.inner, agent.senders[e])
        if speaks is not None:
            sent = speaks(agent.inner)
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

    spoken = None if speaks is None else lambda agent: speaks(agent.inner)
    restore = (lambda agent, change: restored(agent.held[e], change)) if down else None
    return Exchange(local, send, aggregate, receive, absent, spoken, exchange.when, exchange.mean, restore=restore)


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
