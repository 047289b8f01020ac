"""Wrap a method, so that its messages are transformed on their way."""

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Made, Spec, spec_of
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Mean, Mixing, Tree, Work
from fedpd.transforms._attacks import Corrupted
from fedpd.transforms._chain import Transform, check_chain
from fedpd.transforms._means import MeanRule
from fedpd.transforms._server import ServerStep, with_server_step
from fedpd.transforms._uplink import OWN_POINT, Sender, Uplink, Vectors, model_in, uplink

UP = 1  # a fold into the key of (seed, round, agent), for the transforms

Transforms = Transform | list[Transform] | tuple[Transform, ...]
Rule = MeanRule | ServerStep
Means = Rule | list[Rule] | tuple[Rule, ...]


class Agent(NamedTuple):
    """An agent of a wrapped method.

    Attributes:
        inner: The method's own state.
        senders: What the agent keeps for the messages of each exchange.
    """

    inner: Any
    senders: tuple[Sender, ...]


class Server(NamedTuple):
    """The server of a wrapped method.

    Attributes:
        inner: The method's own state.
        references: What the server keeps for the messages of each exchange.
    """

    inner: Any
    references: tuple[Vectors, ...]


def wrap(
    algorithm: Algorithm,
    *,
    up: Transforms = (),
    mean: Means = (),
) -> Algorithm:
    """Return the method with transformed messages.

    Args:
        algorithm: Any method of `fedpd.algorithms`, or your own.
        up: What happens to the messages of the agents; a list composes, e.g. `[top_k(0.01), quantize(8)]`. What is not
            sent now is sent later, and messages are differences to what the server already has.
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
        [4000, 105]
    """
    if not isinstance(algorithm, Algorithm):
        refuse("algorithm", algorithm, "must be a method", "Give e.g. algorithms.fedpd(eta=..., oracle=...)")
    chain = check_chain("up", up)
    rules = _check_rules(mean)
    made = with_transforms(algorithm, chain, rules)
    bound = inspect.signature(wrap).bind(algorithm, up=chain, mean=rules)
    bound.apply_defaults()
    base, own = spec_of(algorithm), {"up": chain, "mean": rules}
    more = Spec.of("", **{name: value for name, value in own.items() if value not in ((), None)}).settings
    return made.with_spec(Spec(base.name, base.settings + more, base.usual, Made(wrap, bound, made)))


def _check_rules(mean: Any) -> tuple[Rule, ...]:
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


def with_transforms(algorithm: Algorithm, up: tuple[Transform, ...], rules: tuple[Rule, ...]) -> Algorithm:
    """Return the method, and its form for partial participation, with transformed messages."""
    if any(isinstance(exchange.aggregate, Mixing) for exchange in algorithm.exchanges):
        rule = "its agents mix their models without a server"
        refuse("algorithm", algorithm.description, rule, "Choose a method with a server, e.g. fedavg(...)")
    for step in rules:
        if isinstance(step, ServerStep):
            algorithm = with_server_step(algorithm, step)
    partial = algorithm.away.partial
    if up:
        wrapped = compressed(algorithm, up)
        # With an H over all agents, the server knows the last message of absent agents, so the whole form serves.
        whole = any(kind in OWN_POINT for exchange in algorithm.exchanges for kind in _kinds(exchange))
        partial = None if partial is None or whole else compressed(partial, up)
    else:
        wrapped = algorithm
    wrapped = wrapped._replace(away=wrapped.away._replace(partial=partial))
    mean = next((rule for rule in rules if isinstance(rule, MeanRule)), None)
    if mean is None:
        return wrapped
    _check_mean(algorithm, up, mean)
    partial = None if partial is None else _with_mean(partial, mean)
    wrapped = _with_mean(wrapped, mean)
    return wrapped._replace(away=wrapped.away._replace(partial=partial))


def _with_mean(algorithm: Algorithm, mean: MeanRule) -> Algorithm:
    def of(exchange: Exchange) -> Mean:
        corrupted = exchange.mean
        return corrupted._replace(mean=mean.mean) if isinstance(corrupted, Corrupted) else mean.mean

    return algorithm._replace(exchanges=tuple(each._replace(mean=of(each)) for each in algorithm.exchanges))


def _check_mean(algorithm: Algorithm, up: tuple[Transform, ...], mean: MeanRule) -> None:
    """Refuse a mean of changes to H_i: the server has only the mean of the H_i, which another mean does not fit."""
    if up and any(kind in OWN_POINT for exchange in algorithm.exchanges for kind in _kinds(exchange)):
        rule = f"does not go with up, because {algorithm.name} then sends changes of which the server keeps the mean"
        refuse("mean", spec_of(mean).label(), rule, "Leave up or mean out")


def _kinds(exchange: Exchange) -> tuple[Any, ...]:
    return exchange.sends if isinstance(exchange.sends, tuple) else (exchange.sends,)


def compressed(algorithm: Algorithm, up: tuple[Transform, ...]) -> Algorithm:
    """Return the method with packed messages to the server."""
    links = tuple(uplink(algorithm.name, exchange, up) for exchange in algorithm.exchanges)
    rebuild = algorithm.away.rebuild

    def init(f: LocalObjective, x: Vector) -> Agent:
        inner = algorithm.init(f, x)
        return Agent(inner, tuple(link.sender(inner, x) for link in links))

    def server(x: Vector) -> Server:
        return Server(algorithm.server(x), tuple(link.references(x) for link in links))

    def rebuilt(f: LocalObjective, agent: Agent) -> Agent:
        return agent if rebuild is None else agent._replace(inner=rebuild(f, agent.inner))

    exchanges = tuple(_exchange(link, e) for e, link in enumerate(links))
    away = algorithm.away._replace(rebuild=None if rebuild is None else rebuilt, repeats=False)
    return algorithm._replace(
        init=init, server=server, exchanges=exchanges, model=lambda agent: algorithm.model(agent.inner), away=away
    )


def _exchange(link: Uplink, e: int) -> Exchange:
    exchange = link.exchange
    speaks, missed = exchange.speaks, exchange.absent or exchange.receive

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner, work = exchange.local(f, agent.inner, r, key)
        message = link.packed(inner, agent.senders[e], jax.random.fold_in(key, UP))
        return Agent(inner, _with(agent.senders, e, agent.senders[e]._replace(message=message))), work

    def send(agent: Agent) -> Tree:
        return agent.senders[e].message

    def aggregate(server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
        assert not isinstance(exchange.aggregate, Mixing)
        references, mean = link.received(server.references[e], mean, share)
        inner, broadcast = exchange.aggregate(server.inner, mean, share)
        references = link.after_broadcast(references, broadcast)
        return Server(inner, _with(server.references, e, references)), broadcast

    def receive(agent: Agent, broadcast: Tree) -> Agent:
        sender = link.sent(agent.inner, agent.senders[e])
        if speaks is not None:
            sent = speaks(agent.inner)
            sender = jax.tree.map(lambda new, old: jnp.where(sent, new, old), sender, agent.senders[e])
        return heard(agent, sender, exchange.receive(agent.inner, broadcast), broadcast)

    def absent(agent: Agent, broadcast: Tree) -> Agent:
        return heard(agent, agent.senders[e], missed(agent.inner, broadcast), broadcast)

    def heard(agent: Agent, sender: Sender, inner: Any, broadcast: Tree) -> Agent:
        if sender.reference is not None:
            sender = sender._replace(reference=model_in(broadcast))
        return Agent(inner, _with(agent.senders, e, sender))

    spoken = None if speaks is None else lambda agent: speaks(agent.inner)
    return Exchange(local, send, aggregate, receive, absent, spoken, exchange.when, exchange.mean)


def _with(values: tuple[Any, ...], e: int, value: Any) -> tuple[Any, ...]:
    return (*values[:e], value, *values[e + 1 :])
