r"""Let some agents send wrong messages, to see what a robust mean is worth.

An attack is for simulations. The attackers take part as everybody does and know what a client knows. They send
another message in place of m_i:

    sign_flip        y - s (m_i - y)            y is the last broadcast if m_i is a model, else 0
    noise            m_i + sigma z              z is standard normal
    little           mean_j m_j - s std_j m_j   over the agents that do not attack ("a little is enough")
    false_dual       what the agent would send if its dual were s lambda_i
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array, owned
from fedpd.base.checks import as_number, positive, refuse
from fedpd.base.spec import Spec
from fedpd.base.value import attribute
from fedpd.core import Array, Iterate, Key, LocalObjective, Message, Model, Tree, Value, Vector, Work, makes, vectors_of
from fedpd.core.method import Exchange, Method, WithInner, form_with_absent, inside, layers_of
from fedpd.core.vectors import choose
from fedpd.transforms._means import as_rows
from fedpd.transforms._ways import message_parts

ATTACK = 2  # a fold into the key of (seed, round, agent), for attacks


class Attack(Value):
    """An attack, for `attack(algorithm, ..., agents=...)`.

    Attributes:
        deviations: The attackers send the others' mean minus this number of standard deviations; None: they do not.
    """

    deviations = attribute(None)

    def lie(self, inner: Any, message: Tree, reference: Vector, key: Key) -> Tree:
        """Return the message of an attacker, from its state, its true message, the last broadcast and random bits."""
        return message


class Agent(NamedTuple):
    """An agent that may attack."""

    inner: Any  # the method's own state
    attacks: Array  # whether it attacks
    reference: Vector  # the model of the last broadcast
    bits: Array  # random bits of this round


class Attributed(NamedTuple):
    """A message, and whether an attacker sent it; the server's own mean does not see the mark."""

    message: Tree
    attacks: Array


@dataclass(frozen=True)
class Corrupted:
    """The mean of messages after attackers, who know all of them, have replaced their own."""

    deviations: float  # as in `Attack`
    mean: Callable[[Tree, Array], Tree] | None = None  # the mean of the server; None: the arithmetic mean

    def __call__(self, messages: Attributed, sent: Array) -> Tree:
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


class SignFlip(Attack):
    scale: float

    def lie(self, inner: Any, message: Tree, reference: Vector, key: Key) -> Tree:
        def flipped(part: Any) -> Any:
            if isinstance(part, Model | Iterate):
                return type(part)(reference - self.scale * (part.vector - reference))
            return jax.tree.map(lambda leaf: -self.scale * leaf, part)

        return jax.tree.map(flipped, message, is_leaf=lambda part: isinstance(part, Message))


@makes(SignFlip)
def sign_flip(scale: float = 1.0) -> Attack:
    """Return the attack that sends the opposite of its progress, times `scale`."""
    positive("scale", scale, "Give the factor of the flipped message, e.g. 1.0")
    return SignFlip(scale=scale)


class NormalNoise(Attack):
    deviation: float

    def lie(self, inner: Any, message: Tree, reference: Vector, key: Key) -> Tree:
        leaves, structure = jax.tree.flatten(message)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf + self.deviation * jax.random.normal(one, leaf.shape, leaf.dtype)
            for one, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)


@makes(NormalNoise)
def noise(deviation: float) -> Attack:
    """Return the attack that adds normal noise with this standard deviation to each entry."""
    positive("deviation", deviation, "Give the standard deviation of the noise, e.g. 1.0")
    return NormalNoise(deviation=deviation)


class Little(Attack):
    deviations: float


@makes(Little)
def little(deviations: float = 1.5) -> Attack:
    """Return the attack "a little is enough" (Baruch, Baruch and Goldberg, 2019).

    All attackers send the mean of the other agents' messages minus `deviations` of their standard deviations, in every
    coordinate. Each of these messages looks like that of an ordinary agent.
    """
    return Little(deviations=as_number("deviations", deviations, "Give a number, e.g. 1.5"))


class FalseDual(Attack):
    scale: float

    def lie(self, inner: Any, message: Tree, reference: Vector, key: Key) -> Tree:
        if not {"x", "x0", "dual"} <= set(getattr(inner, "_fields", ())):
            rule = "has no dual to lie about"
            refuse("algorithm", type(inner).__module__.rpartition(".")[2], rule, "Choose fedpd, or another attack")
        false = inner.x + self.scale * (inner.x0 - inner.x)  # FedPD sends x0 = x_i + eta lambda_i
        return jax.tree.unflatten(jax.tree.structure(message), jax.tree.leaves(false))


@makes(FalseDual)
def false_dual(scale: float = -1.0) -> Attack:
    """Return the attack of a client of FedPD that sends x_i + eta s lambda_i, so that its dual is s times too large."""
    as_number("scale", scale, "Give the factor of the dual, e.g. -1.0")
    return FalseDual(scale=scale)


def attack(algorithm: Method, attack: Attack, *, agents: Sequence[int]) -> Method:
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
    if not isinstance(algorithm, Method):
        refuse("algorithm", algorithm, "must be a method", "Give e.g. algorithms.fedpd(eta=..., oracle=...)")
    if not isinstance(attack, Attack):
        refuse("attack", attack, "must be an attack", "Give e.g. transforms.sign_flip()")
    numbers = owned(as_array(agents, "agents", "Give e.g. agents=[0, 1]"))
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu") or (numbers < 0).any():
        refuse("agents", agents, "must be a list of numbers of agents", "Give e.g. agents=[0, 1]")
    if len(np.unique(numbers)) < len(numbers):
        refuse("agents", agents, "names an agent twice, and an agent attacks once", "Give different numbers")
    if any(exchange.mixes for exchange in algorithm.exchanges()):
        rule = "its agents mix their models without a server"
        refuse("algorithm", algorithm.description, rule, "Choose a method with a server, e.g. fedavg(...)")
    earlier = [one.agents for one in layers_of(algorithm) if isinstance(one, Attacked)]
    if any(set(value) & set(numbers.tolist()) for value in earlier):
        refuse("agents", agents, f"{earlier} attack already, and an agent attacks once", "Name other agents")
    return Attacked(method=algorithm, attack=attack, agents=tuple(int(i) for i in numbers))


class Attacked(WithInner):
    """A method with some agents that attack."""

    attack: Attack
    agents: tuple[int, ...]
    repeats = False

    @property
    def spec(self) -> Spec:
        return self.method.spec.plus(attack=self.attack, agents=self.agents)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        attacks = jnp.any(f.agent == jnp.asarray(self.agents, jnp.int32))
        return Agent(self.method.init(f, x), attacks, x, jnp.zeros(2, jnp.uint32))

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(_exchange(exchange, self.attack) for exchange in self.method.exchanges())

    def partial(self) -> Method:
        return Attacked(method=form_with_absent(self.method), attack=self.attack, agents=self.agents)

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Method:
        return Attacked(method=self.method.changed(changes, within), attack=self.attack, agents=self.agents)

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        self.method.check_agents(agents, fewest)
        if max(self.agents, default=0) >= agents:
            rule = f"must be below {agents}, the number of agents"
            refuse("agents", list(self.agents), rule, "Count the agents from 0")


def _exchange(exchange: Exchange, attack: Attack) -> Exchange:
    plain, missed = inside(exchange), exchange.missed or exchange.receive

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent, work = plain.local(f, agent, r, key)
        return agent._replace(bits=jax.random.key_data(jax.random.fold_in(key, ATTACK))), work

    def send(agent: Agent) -> Tree:
        message = exchange.send(agent.inner)
        if attack.deviations is not None:
            return Attributed(vectors_of(message), agent.attacks)
        key = jax.random.wrap_key_data(agent.bits, impl="threefry2x32")
        false = attack.lie(agent.inner, message, agent.reference, key)
        return choose(agent.attacks, false, message)

    def hear(agent: Agent, inner: Any, broadcast: Tree) -> Agent:
        vectors = [part for part in message_parts(broadcast)[0] if isinstance(part, Vector)]
        return agent._replace(inner=inner, reference=vectors[0] if vectors else agent.reference)

    return plain._replace(
        local=local,
        send=send,
        receive=lambda agent, broadcast: hear(agent, exchange.receive(agent.inner, broadcast), broadcast),
        missed=lambda agent, broadcast: hear(agent, missed(agent.inner, broadcast), broadcast),
        mean=exchange.mean if attack.deviations is None else Corrupted(attack.deviations, exchange.mean),
    )
