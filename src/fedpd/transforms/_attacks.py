r"""Let some agents send wrong messages, to see what a robust mean is worth.

An attack is for simulations. The attackers take part as everybody does and know what a client knows. They send
another message in place of m_i:

    sign_flip        y - s (m_i - y)            y is the last broadcast if m_i is a model, else 0
    noise            m_i + sigma z              z is standard normal
    little           mean_j m_j - s std_j m_j   over the agents that do not attack ("a little is enough")
    false_dual       what the agent would send if its dual were s lambda_i
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.arrays import as_array, owned
from fedpd.base.checks import as_number, positive, refuse
from fedpd.base.spec import Spec, spec_of
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Mean, Mixing, Tree, Work, specified
from fedpd.transforms._means import as_rows
from fedpd.transforms._uplink import parts_of

MODELS = ("model", "iterate")
ATTACK = 2  # a fold into the key of (seed, round, agent), for attacks


class Lie(Protocol):
    """Returns the message of an attacker, from its state, the method's `send`, the last broadcast and random bits."""

    def __call__(self, inner: Any, exchange: Exchange, reference: Vector, key: Key, /) -> Tree: ...


class Attack(NamedTuple):
    """An attack, for `attack(algorithm, ..., agents=...)`.

    Attributes:
        spec: Its name; `specified` replaces it by the name and the arguments of the factory.
        lie: Returns the message of an attacker; None: its own.
        deviations: The attackers send the others' mean minus this number of standard deviations; None: they do not.
    """

    spec: Spec | str
    lie: Lie | None = None
    deviations: float | None = None


class Agent(NamedTuple):
    """An agent that may attack.

    Attributes:
        inner: The method's own state.
        attacks: Whether it attacks.
        reference: The model of the last broadcast.
        bits: Random bits of this round.
    """

    inner: Any
    attacks: Array
    reference: Vector
    bits: Array


class Marked(NamedTuple):
    """A message, and whether an attacker sent it; the server's own mean does not see the mark."""

    message: Tree
    attacks: Array


class Corrupted(NamedTuple):
    """The mean of messages after attackers, who know all of them, have replaced their own.

    Attributes:
        deviations: As in `Attack`.
        mean: The mean of the server; None: the arithmetic mean.
    """

    deviations: float
    mean: Mean | None = None

    def __call__(self, messages: Marked, sent: Array) -> Tree:
        honest = sent & ~messages.attacks

        def replaced(leaf: Array) -> Array:
            weights = (honest / jnp.maximum(jnp.sum(honest), 1)).astype(leaf.dtype)
            middle = jnp.tensordot(weights, leaf, 1)
            spread = jnp.sqrt(jnp.tensordot(weights, (leaf - middle) ** 2, 1))
            return jnp.where(as_rows(messages.attacks, leaf), middle - self.deviations * spread, leaf)

        corrupted = jax.tree.map(replaced, messages.message)
        if self.mean is not None:
            return self.mean(corrupted, sent)
        weights = sent / jnp.maximum(jnp.sum(sent), 1)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), corrupted)


@specified
def sign_flip(scale: float = 1.0) -> Attack:
    """Return the attack that sends the opposite of its progress, times `scale`."""
    positive("scale", scale, "Give the factor of the flipped message, e.g. 1.0")

    def lie(inner: Any, exchange: Exchange, reference: Vector, key: Key) -> Tree:
        parts, structure = parts_of(exchange.send(inner))
        kinds = exchange.sends if isinstance(exchange.sends, tuple) else (exchange.sends,) * len(parts)
        pairs = zip(kinds, parts, strict=True)
        flipped = [reference - scale * (part - reference) if kind in MODELS else -scale * part for kind, part in pairs]
        return jax.tree.unflatten(structure, flipped)

    return Attack("sign_flip", lie)


@specified
def noise(deviation: float) -> Attack:
    """Return the attack that adds normal noise with this standard deviation to each entry."""
    positive("deviation", deviation, "Give the standard deviation of the noise, e.g. 1.0")

    def lie(inner: Any, exchange: Exchange, reference: Vector, key: Key) -> Tree:
        leaves, structure = jax.tree.flatten(exchange.send(inner))
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf + deviation * jax.random.normal(one, leaf.shape, leaf.dtype)
            for one, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)

    return Attack("noise", lie)


@specified
def little(deviations: float = 1.5) -> Attack:
    """Return the attack "a little is enough" (Baruch, Baruch and Goldberg, 2019).

    All attackers send the mean of the other agents' messages minus `deviations` of their standard deviations, in every
    coordinate. Each of these messages looks like that of an ordinary agent.
    """
    return Attack("little", deviations=as_number("deviations", deviations, "Give a number, e.g. 1.5"))


@specified
def false_dual(scale: float = -1.0) -> Attack:
    """Return the attack of a client of FedPD that sends x_i + eta s lambda_i, so that its dual is s times too large."""
    as_number("scale", scale, "Give the factor of the dual, e.g. -1.0")

    def lie(inner: Any, exchange: Exchange, reference: Vector, key: Key) -> Tree:
        if not {"x", "x0", "dual"} <= set(getattr(inner, "_fields", ())):
            rule = "has no dual to lie about"
            refuse("algorithm", type(inner).__module__.rpartition(".")[2], rule, "Choose fedpd, or another attack")
        return inner.x + scale * (inner.x0 - inner.x)  # FedPD sends x0 = x_i + eta lambda_i

    return Attack("false_dual", lie)


def attack(algorithm: Algorithm, attack: Attack, *, agents: Sequence[int]) -> Algorithm:
    """Return the method with some agents that attack.

    Args:
        algorithm: A method with a server. Give it to `wrap` afterwards, for a robust mean.
        attack: What they send.
        agents: The numbers of the agents that attack, each once and below the number of agents.

    Examples:
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8, batch=4))
        >>> attacked = transforms.attack(fedavg, transforms.sign_flip(), agents=[0, 1])
        >>> robust = transforms.wrap(attacked, mean=transforms.median())
    """
    if not isinstance(algorithm, Algorithm):
        refuse("algorithm", algorithm, "must be a method", "Give e.g. algorithms.fedpd(eta=..., oracle=...)")
    if not isinstance(attack, Attack):
        refuse("attack", attack, "must be an attack", "Give e.g. transforms.sign_flip()")
    numbers = owned(as_array(agents, "agents", "Give e.g. agents=[0, 1]"))
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu") or (numbers < 0).any():
        refuse("agents", agents, "must be a list of numbers of agents", "Give e.g. agents=[0, 1]")
    if len(np.unique(numbers)) < len(numbers):
        refuse("agents", agents, "names an agent twice, and an agent attacks once", "Give different numbers")
    if any(isinstance(exchange.aggregate, Mixing) for exchange in algorithm.exchanges):
        rule = "its agents mix their models without a server"
        refuse("algorithm", algorithm.description, rule, "Choose a method with a server, e.g. fedavg(...)")
    earlier = [value for name, value in spec_of(algorithm).settings if name == "agents" and isinstance(value, tuple)]
    if any(set(value) & set(numbers.tolist()) for value in earlier):
        refuse("agents", agents, f"{earlier} attack already, and an agent attacks once", "Name other agents")
    made = _attacked(algorithm, attack, numbers)
    if algorithm.away.partial is not None:
        made = made._replace(away=made.away._replace(partial=_attacked(algorithm.away.partial, attack, numbers)))
    base = spec_of(algorithm)
    more = Spec.of("", attack=attack, agents=tuple(int(i) for i in numbers)).settings
    return made.with_spec(Spec(base.name, base.settings + more, base.usual))


def _attacked(algorithm: Algorithm, attack: Attack, numbers: np.ndarray) -> Algorithm:
    rebuild = algorithm.away.rebuild

    def init(f: LocalObjective, x: Vector) -> Agent:
        attacks = jnp.any(f.agent == jnp.asarray(numbers, jnp.int32))
        return Agent(algorithm.init(f, x), attacks, x, jnp.zeros(2, jnp.uint32))

    def rebuilt(f: LocalObjective, agent: Agent) -> Agent:
        return agent if rebuild is None else agent._replace(inner=rebuild(f, agent.inner))

    exchanges = tuple(_exchange(exchange, attack) for exchange in algorithm.exchanges)
    away = algorithm.away._replace(rebuild=None if rebuild is None else rebuilt, repeats=False, stale=False)
    return algorithm._replace(
        init=init, exchanges=exchanges, model=lambda agent: algorithm.model(agent.inner), away=away
    )


def _exchange(exchange: Exchange, attack: Attack) -> Exchange:
    speaks, missed, lie = exchange.speaks, exchange.absent or exchange.receive, attack.lie

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner, work = exchange.local(f, agent.inner, r, key)
        return agent._replace(inner=inner, bits=jax.random.key_data(jax.random.fold_in(key, ATTACK))), work

    def send(agent: Agent) -> Tree:
        message = exchange.send(agent.inner)
        if lie is not None:
            key = jax.random.wrap_key_data(agent.bits, impl="threefry2x32")
            false = lie(agent.inner, exchange, agent.reference, key)
            message = jax.tree.map(partial(jnp.where, agent.attacks), false, message)
        return message if attack.deviations is None else Marked(message, agent.attacks)

    def hear(agent: Agent, inner: Any, broadcast: Tree) -> Agent:
        vectors = [part for part in parts_of(broadcast)[0] if isinstance(part, Vector)]
        return agent._replace(inner=inner, reference=vectors[0] if vectors else agent.reference)

    return exchange._replace(
        local=local,
        send=send,
        receive=lambda agent, broadcast: hear(agent, exchange.receive(agent.inner, broadcast), broadcast),
        absent=lambda agent, broadcast: hear(agent, missed(agent.inner, broadcast), broadcast),
        speaks=None if speaks is None else lambda agent: speaks(agent.inner),
        mean=exchange.mean if attack.deviations is None else Corrupted(attack.deviations, exchange.mean),
        sends=exchange.sends if attack.deviations is None else None,
    )
