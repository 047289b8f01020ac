"""Client-level differential privacy: agents clip their messages and add noise, so that the sum of a round is private.

In a round, K agents send. Agent i has the message m_i and knows y, the last broadcast. It sends

    q_i = c_i + (z C / sqrt(K)) n_i,     c_i = (m_i - y) min(1, C / ||m_i - y||),     n_i ~ N(0, I)

where m_i itself stands for m_i - y if m_i is a change. The server uses y + mean q_i, so the sum of a round has noise of
standard deviation z C, and one agent changes it by at most C. The agent then continues as if its message had been y +
c_i, without the noise (the method's `with_message`): what it keeps fits what the server has. It must forget n_i. If
later messages depended on n_i, they could cancel it, and the composition over rounds would not hold.

With a quantile, the bound C follows the norms (Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning
with Adaptive Clipping, 2021). Agents also send b_i - 1/2, where b_i = 1 if ||m_i - y|| <= C, else 0, with noise of
standard deviation s / sqrt(K). The server does C = C exp(-rate (mean b_i - quantile)). The noise of c_i grows such that
both together are as private as noise z on c_i alone: 1/z^2 = 1/z_c^2 + 1/(2 s)^2.

Epsilon is counted with Google's dp-accounting. Two federations are neighbours if one agent of the first sends zeros in
the second (REPLACE_SPECIAL). A round releases a sum to which one agent adds at most C, with noise z C: the Gaussian
mechanism with noise multiplier z. T rounds together are the Gaussian mechanism with z/sqrt(T), whose epsilon is exact
(Balle and Wang, 2018).

If K of N agents are drawn without replacement in every round, and nobody knows whom, epsilon is smaller. The bound is
that of Wang, Balle and Kasiviswanathan (2019) in Renyi differential privacy. It is proved for neighbours in which one
agent is replaced, which changes the sum by up to 2 C, so it takes z/2. It needs agents that keep nothing between
rounds: the state of an agent depends on the rounds in which it took part, while the theorem assumes that the draws of
the rounds are independent of all else.
"""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import at_most, below, count, is_traced, positive, refuse
from fedpd.base.errors import extra
from fedpd.base.spec import Spec
from fedpd.core import Array, Iterate, Key, Kind, LocalObjective, Model, Tree, Value, Vector, Work, makes, vectors_of
from fedpd.core.dp_sgd import FROM_KEY, check_noise
from fedpd.core.method import (
    Exchange,
    Layer,
    Method,
    Mixing,
    form_with_absent,
    message_kinds,
    read_inside,
    rebuilt_inside,
)
from fedpd.transforms._ways import message_parts, model_in

LARGEST_NOISE = 1e6  # of a search
LEAST_NOISE = 1e-3  # of a search; one round with it has an epsilon of about 500,000


class Accountant(NamedTuple):
    """Counts the epsilon of a run.

    Attributes:
        noise_multiplier: z of a whole round.
        delta: delta.
        agents: N.
        cohort: K, if K of N agents are drawn in every round and keep nothing between rounds; else None.
    """

    noise_multiplier: float
    delta: float
    agents: int
    cohort: int | None = None

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after this many rounds with a communication.

        Examples:
            >>> from fedpd import transforms
            >>> round(transforms.Accountant(noise_multiplier=1.0, delta=1e-5, agents=100).epsilon(1), 4)
            4.3772
        """
        if rounds == 0:
            return 0.0
        with extra("privacy", "transforms.gaussian"):
            from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
        whole = float(get_epsilon_gaussian(self.noise_multiplier / rounds**0.5, self.delta))
        if self.cohort is None:
            return whole
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        orders, rdp = _amplified(self.noise_multiplier, self.agents, self.cohort)
        return min(whole, float(compute_epsilon(orders, rounds * rdp, self.delta)[0]))

    def epsilons(self, rounds: np.ndarray) -> np.ndarray:
        """Return epsilon after each of these numbers of rounds."""
        known = {int(number): self.epsilon(int(number)) for number in np.unique(rounds)}
        return np.array([known[int(number)] for number in rounds], np.float64)


@lru_cache(maxsize=64)
def _amplified(noise_multiplier: float, agents: int, cohort: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders, and the Renyi differential privacy of one round of K of N agents."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    inner = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    counted = RdpAccountant(neighboring_relation=replace)
    counted.compose(dp_accounting.SampledWithoutReplacementDpEvent(agents, cohort, inner))
    return np.asarray(counted.orders), counted.rdp


class ExampleAccountant(NamedTuple):
    """Counts the epsilon of one sample of an agent whose oracle is DP-SGD.

    Two data sets are neighbours if the gradient of one sample of the first is 0 in the second. A step is the Gaussian
    mechanism on a Poisson sample, counted in Renyi differential privacy. Every round counts, also one in which the
    agent was absent or sent nothing.

    Attributes:
        noise_multiplier: z of a step.
        delta: delta.
        share: The probability with which a sample takes part in a step.
        steps: Q, the steps per round.
    """

    noise_multiplier: float
    delta: float
    share: float
    steps: int

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after this many rounds."""
        if rounds == 0:
            return 0.0
        if self.share == 1:
            return Accountant(self.noise_multiplier, self.delta, 1).epsilon(rounds * self.steps)
        with extra("privacy", "oracles.dp_sgd"):
            from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
        orders, rdp = _sampled(self.noise_multiplier, self.share)
        return float(compute_epsilon(orders, rounds * self.steps * rdp, self.delta)[0])

    def epsilons(self, rounds: np.ndarray) -> np.ndarray:
        """Return epsilon after each of these numbers of rounds."""
        return np.array([self.epsilon(int(number)) for number in rounds], np.float64)


@lru_cache(maxsize=64)
def _sampled(noise_multiplier: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders, and the Renyi differential privacy of one step on a Poisson sample."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    counted, log = RdpAccountant(), logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of every order that does not count
    try:
        counted.compose(dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise_multiplier)))
    finally:
        log.setLevel(level)
    return np.asarray(counted.orders), counted.rdp


@lru_cache(maxsize=64)
def noise_for_examples(epsilon: float, rounds: int, delta: float, share: float, steps: int) -> float:
    """Return the smallest noise multiplier of a step of DP-SGD with which a run spends at most epsilon, to 4 digits."""
    return _least_noise(lambda noise: ExampleAccountant(noise, delta, share, steps).epsilon(rounds), epsilon, rounds)


@lru_cache(maxsize=64)
def noise_for(epsilon: float, rounds: int, delta: float, agents: int, cohort: int | None) -> float:
    """Return the smallest noise multiplier of a round with which a run spends at most epsilon, to 4 digits.

    Raises:
        FedpdError: There is none, or epsilon is so large that it protects nothing.
    """
    return _least_noise(lambda noise: Accountant(noise, delta, agents, cohort).epsilon(rounds), epsilon, rounds)


def _least_noise(epsilon_of: Callable[[float], float], epsilon: float, rounds: int) -> float:
    """Return the smallest noise multiplier whose epsilon is at most this one, to 4 digits."""
    if epsilon_of(LEAST_NOISE) <= epsilon:
        refuse("epsilon", epsilon, "is so large that it protects nobody", "Give a smaller epsilon, e.g. 4")
    low, high = LEAST_NOISE, 1.0
    while epsilon_of(high) > epsilon:
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            refuse("epsilon", epsilon, f"no noise is enough for {rounds} rounds", "Give a larger epsilon")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if epsilon_of(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high


NOISE = 2  # a fold into the key of (seed, round, agent), for the noise
SHARE_OF_COUNT = 20  # the noise of a count of K agents is K/20, as in the paper

Normal = Callable[[Key, Any], Array]  # (key, like) -> standard normal numbers of the shape and type of `like`


class Gaussian(Value):
    """Clipping and noise for `wrap(algorithm, up=...)`; `gaussian` describes the fields."""

    clip: float
    noise_multiplier: float | None
    epsilon: float | None
    delta: float
    agents: int | None
    quantile: float | None
    rate: float
    count_noise: float | None


@makes(Gaussian)
def gaussian(
    clip: float,
    noise_multiplier: float | None = None,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    agents: int | None = None,
    quantile: float | None = None,
    rate: float = 0.2,
    count_noise: float | None = None,
) -> Gaussian:
    """Return client-level differential privacy by the Gaussian mechanism.

    Every agent clips its message to the norm `clip` before it updates its own state, and adds its share of the noise.
    The history has a column `epsilon`. Give the noise, or the epsilon that the whole run may spend.

    Args:
        clip: The largest norm C of a message; with a quantile, its first value. A message of several vectors, such as
            SCAFFOLD's, has each clipped to C, and each counts.
        noise_multiplier: z: the sum of the messages of a round gets noise of standard deviation z C.
        epsilon: The largest epsilon of the run; `simulate` finds z from it, the rounds and who takes part.
        delta: The delta of (epsilon, delta)-differential privacy. Choose it below 1/N.
        agents: K, how many agents send in every round. `simulate` knows it; a federation needs it.
        quantile: The quantile of the norms that C follows during the run, e.g. 0.5; None: C is constant.
        rate: How fast C follows: it changes by at most about this factor in a round.
        count_noise: The standard deviation of the noise of the count of messages with a norm of at most C; None: K/20.

    Examples:
        >>> from fedpd import transforms
        >>> transforms.gaussian(clip=0.1, epsilon=4).description
        'gaussian(clip=0.1, epsilon=4)'
    """
    positive("clip", clip, "Give the largest norm of a message, e.g. the median norm without noise")
    check_noise(noise_multiplier, epsilon)
    below("delta", positive("delta", delta, "Give e.g. 1e-5"), 1, "Give a delta below 1/N, e.g. 1e-5")
    if agents is not None:
        count("agents", agents, "Give how many agents send in every round")
    if quantile is not None:
        at_most("quantile", positive("quantile", quantile, "Give e.g. 0.5"), 1, "Give a quantile in (0, 1], e.g. 0.5")
    positive("rate", rate, "Give how fast the bound follows the norms, e.g. 0.2")
    if count_noise is not None:
        positive("count_noise", count_noise, "Give the standard deviation of the noise of the count, e.g. K/20")
    return Gaussian(
        clip=clip,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        agents=agents,
        quantile=quantile,
        rate=rate,
        count_noise=count_noise,
    )


class Agent(NamedTuple):
    """An agent with private messages."""

    inner: Any  # the method's own state
    reference: Vector | None  # the last broadcast; None: no part of a message is a model
    bounds: Array | None  # the bound C of each part of a message, (P,); None: they are constant
    message: Tree  # the noisy message of this round


class Server(NamedTuple):
    """The server of a method with private messages; its attributes are as for `Agent`."""

    inner: Any
    reference: Vector | None
    bounds: Array | None


class PrivateLink(NamedTuple):
    """The way up of one exchange."""

    exchange: Exchange  # the exchange of the method itself
    kinds: tuple[Kind | None, ...]  # the kind of each part of a message
    rule: Gaussian  # the clipping and the noise
    normal: Normal  # draws the noise

    def reference(self, x: Vector) -> Vector | None:
        return x if any(map(is_model, self.kinds)) else None

    def bounds(self, x: Vector) -> Array | None:
        like = jax.tree.leaves(x)[0].dtype
        return None if self.rule.quantile is None else jnp.full(len(self.kinds), self.rule.clip, like)

    def clipped(self, inner: Any, reference: Vector | None, bounds: Array | None) -> tuple[list[Vector], Any, Array]:
        """Return the clipped differences, the structure of the message, and whether each norm is at most C, (P,)."""
        parts, structure = message_parts(vectors_of(self.exchange.send(inner)))
        changes = [part - reference if is_model(kind) else part for kind, part in zip(self.kinds, parts, strict=True)]
        norms = jnp.stack([jnp.sqrt(change @ change) for change in changes])
        limits = jnp.full(len(changes), self.rule.clip, norms.dtype) if bounds is None else bounds
        factors = limits / jnp.maximum(norms, limits)
        return [factors[p] * change for p, change in enumerate(changes)], structure, norms <= limits

    def noisy(self, inner: Any, reference: Vector | None, bounds: Array | None, key: Key) -> Tree:
        """Return what an agent sends."""
        parts, structure, fits = self.clipped(inner, reference, bounds)
        rule, (spread, of_count) = self.rule, noise_of(self.rule)
        sent = []
        for p, part in enumerate(parts):
            scale = spread * (rule.clip if bounds is None else bounds[p])
            sent.append(part + scale * self._normals(jax.random.fold_in(key, p), part))
        message = jax.tree.unflatten(structure, sent)
        if bounds is None:
            return message
        half = fits.astype(bounds.dtype) - 0.5  # zeroing an agent changes the sum by 1/2
        return message, half + of_count * self.normal(jax.random.fold_in(key, len(parts)), half)

    def _normals(self, key: Key, like: Vector) -> Vector:
        leaves, structure = jax.tree.flatten(like)
        drawn = [self.normal(jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, drawn)

    def fitted(self, inner: Any, reference: Vector | None, bounds: Array | None) -> Any:
        """Return the method's state as if the clipped message had been its own."""
        assert self.exchange.with_message is not None  # `private_link`
        parts, structure, _ = self.clipped(inner, reference, bounds)
        return self.exchange.with_message(inner, jax.tree.unflatten(structure, self._messages(parts, reference)))

    def received(self, mean: Tree, reference: Vector | None, bounds: Array | None) -> tuple[Tree, Array | None]:
        """Return the mean of the messages for the method's own aggregate, and the bounds of the next round."""
        if bounds is not None:
            mean, half = mean
            bounds = bounds * jnp.exp(-self.rule.rate * (half + 0.5 - self.rule.quantile)).astype(bounds.dtype)
        parts, structure = message_parts(mean)
        return jax.tree.unflatten(structure, self._messages(parts, reference)), bounds

    def _messages(self, parts: list[Any], reference: Vector | None) -> list[Vector]:
        return [part + reference if is_model(kind) else part for kind, part in zip(self.kinds, parts, strict=True)]


def is_model(kind: Kind | None) -> bool:
    """Return whether a part of a message is a point, so that its difference to the last broadcast is clipped."""
    return kind in (Model, Iterate)


def complete(rule: Gaussian) -> bool:
    """Return whether the numbers of a rule are all known."""
    return rule.agents is not None and rule.noise_multiplier is not None


def noise_of(rule: Gaussian) -> tuple[Any, Any]:
    """Return the standard deviations of an agent's noise: of its message divided by C, and of its count."""
    if rule.agents is None or rule.noise_multiplier is None:
        rule_text = "needs noise_multiplier and agents, the number of agents that send in every round"
        refuse("up", rule.description, rule_text, "Give both; simulate() fills them in")
    share = 1 / rule.agents**0.5
    if rule.quantile is None:
        return rule.noise_multiplier * share, None
    counts = rule.agents / SHARE_OF_COUNT if rule.count_noise is None else rule.count_noise
    left = rule.noise_multiplier**-2.0 - (2 * counts) ** -2.0
    if not is_traced(left) and left <= 0:
        least = rule.noise_multiplier / 2
        text = f"must be above noise_multiplier/2 = {least:.3g}, else the count alone spends the whole epsilon"
        refuse("count_noise", counts, text, "Give a larger count_noise, or leave quantile out")
    return left**-0.5 * share, counts * share


def private_link(algorithm: Method, rule: Gaussian, normal: Normal) -> PrivateLink:
    """Return the way up of a method; refuse a method whose messages cannot be clipped, or are not all covered."""
    exchange, kinds = algorithm.exchanges()[0], message_kinds(algorithm)[0]
    optional = exchange.speaks is not None or exchange.when is not None
    if len(algorithm.exchanges()) > 1 or exchange.with_message is None or None in kinds or not kinds or optional:
        text = f"the messages of {algorithm.name} cannot be clipped and covered by noise"
        refuse("up", rule.description, text, "Choose e.g. fedpd(eta=...), fedavg(...) or scaffold(...)")
    return PrivateLink(exchange, kinds, rule, normal)


class Private(Layer):
    """A method with private messages.

    The form for partial participation also serves if all agents take part. FedPD's sends x_i, whose difference to x_0
    goes to 0, while x_i + eta lambda_i keeps its distance where the data differ.
    """

    up: Gaussian
    normal: Normal
    repeats = False

    @property
    def spec(self) -> Spec:
        return self.method.spec.plus(up=self.up)

    @property
    def form(self) -> Method:
        return form_with_absent(self.method)

    @property
    def link(self) -> "PrivateLink":
        return private_link(self.form, self.up, self.normal)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        link = self.link
        inner, reference, bounds = self.form.init(f, x), link.reference(x), link.bounds(x)
        shapes = jax.eval_shape(lambda: link.noisy(inner, reference, bounds, jax.random.key(0, impl="threefry2x32")))
        return Agent(inner, reference, bounds, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    def server(self, x: Vector) -> Server:
        return Server(self.form.server(x), self.link.reference(x), self.link.bounds(x))

    def model(self, agent: Agent) -> Vector:
        return self.form.model(agent.inner)

    @property
    def delivers(self) -> Any:
        return read_inside(self.form.delivers)

    @property
    def rebuild(self) -> Any:
        return rebuilt_inside(self.form.rebuild)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (_exchange(self.link),)

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Method:
        return Private(method=self.method.changed(changes, within), up=self.up, normal=self.normal)


def with_noise(algorithm: Method, rule: Gaussian, normal: Normal = FROM_KEY.normal) -> Private:
    """Return the method with private messages; refuse one whose messages cannot be clipped."""
    private_link(form_with_absent(algorithm), rule, normal)
    if complete(rule):
        noise_of(rule)  # refuses a count whose noise leaves none for the messages
    return Private(method=algorithm, up=rule, normal=normal)


def _exchange(link: PrivateLink) -> Exchange:
    exchange = link.exchange
    missed = exchange.missed or exchange.receive

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        inner, work = exchange.local(f, agent.inner, r, key)
        message = link.noisy(inner, agent.reference, agent.bounds, jax.random.fold_in(key, NOISE))
        return agent._replace(inner=inner, message=message), work

    def aggregate(server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
        assert not isinstance(exchange.aggregate, Mixing)
        mean, bounds = link.received(mean, server.reference, server.bounds)
        inner, broadcast = exchange.aggregate(server.inner, mean, share)
        reference = None if server.reference is None else model_in(broadcast)
        return Server(inner, reference, bounds), broadcast if bounds is None else (broadcast, bounds)

    def receive(agent: Agent, broadcast: Tree) -> Agent:
        return heard(agent, link.fitted(agent.inner, agent.reference, agent.bounds), exchange.receive, broadcast)

    def absent(agent: Agent, broadcast: Tree) -> Agent:
        return heard(agent, agent.inner, missed, broadcast)

    def heard(agent: Agent, inner: Any, update: Callable[[Any, Tree], Any], broadcast: Tree) -> Agent:
        bounds = None
        if agent.bounds is not None:
            broadcast, bounds = broadcast
        reference = None if agent.reference is None else model_in(broadcast)
        return Agent(update(inner, broadcast), reference, bounds, agent.message)

    return Exchange(local, lambda agent: agent.message, aggregate, receive, absent)
