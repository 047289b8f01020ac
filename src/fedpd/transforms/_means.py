"""The mean at the server: weighted by the agents' samples, or one that a few wrong messages cannot move far.

Robust means. Each rule sees the messages m_1, ..., m_C of the agents that sent. With at most f wrong messages, the
result stays near the others. It differs from the mean of the right messages even if all are right, unless they are
equal: a method that relies on the exact mean keeps an error that grows with the differences between agents. FedPD
relies on it: its duals sum to 0 only with the mean (docs, "Robust means").

Weights: sum_S n_i m_i / sum_S n_i over those that sent, where n_i is an agent's number of samples. McMahan's FedAvg and
most public programs weigh like this, with local losses f_i that are plain means over an agent's samples. A problem with
weights="samples" scales the losses instead, so that large agents take larger local steps. Both weigh for f = sum_i
(n_i/M) f_i; the columns of a run are about the f of the problem, which is (1/N) sum_i f_i here. Agents send n_i m_i and
n_i, one number more than without, and the server divides the two means. So neither the engine nor a federation knows of
it, and nobody keeps the messages of all agents.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import at_least, at_most, below, choice, count, positive, refuse
from fedpd.core import Array, LocalObjective, Tree, Value, Vector, makes, opened, vectors_of
from fedpd.core.method import Exchange, Method, Mixing, WithInner, form_with_absent, inside

MOST = 10_000  # iterations of a mean; more take longer than a round and change nothing
SMALLEST = 1e-12  # the smallest distance by which `geometric_median` divides, relative to the largest


class MeanRule(Value):
    """A mean for `wrap(algorithm, mean=...)`."""

    def mean(self, messages: Tree, sent: Array) -> Tree:
        """Return the mean of messages with leaves (C, ...); `sent` is (C,), false for rows that nobody sent."""
        self.needs("mean(self, messages, sent)")


class Median(MeanRule):
    def mean(self, messages: Tree, sent: Array) -> Tree:
        return _coordinate_median(messages, sent)


@makes(Median)
def median() -> MeanRule:
    """Return the coordinate-wise median of the messages; of an even number, the mean of the middle two."""
    return Median()


class TrimmedMean(MeanRule):
    share: float

    def mean(self, messages: Tree, sent: Array) -> Tree:
        number = jnp.sum(sent)
        cut = jnp.minimum(jnp.ceil(self.share * number - 1e-9).astype(number.dtype), jnp.maximum(number - 1, 0) // 2)

        def of_leaf(leaf: Array) -> Array:
            places = as_rows(jnp.arange(len(leaf)), leaf)
            kept = (places >= cut) & (places < number - cut)
            return jnp.sum(jnp.where(kept, _sorted(leaf, sent), 0), axis=0) / jnp.maximum(number - 2 * cut, 1)

        return jax.tree.map(of_leaf, messages)


@makes(TrimmedMean)
def trimmed_mean(share: float) -> MeanRule:
    """Return the coordinate-wise mean without the smallest and the largest values.

    Args:
        share: The share of the messages that is left out at each end, from 0 to less than 0.5. The number is rounded
            up, but at least one value is kept.
    """
    remedy = "Give the share of the messages to leave out at each end, e.g. 0.1"
    below("share", at_least("share", share, 0, remedy), 0.5, remedy)
    return TrimmedMean(share=share)


class Krum(MeanRule):
    f: int
    m: int

    def mean(self, messages: Tree, sent: Array) -> Tree:
        rows, number = _rows(messages), jnp.sum(sent)
        squares = jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, axis=1), rows)  # one row of differences at a time
        others = sent[:, None] & sent[None] & ~jnp.eye(len(rows), dtype=bool)
        near = jnp.sort(jnp.where(others, squares, jnp.inf), axis=1)
        neighbours = jnp.maximum(number - self.f - 2, 1)
        score = jnp.sum(jnp.where(jnp.arange(len(rows)) < neighbours, near, 0), axis=1)
        order = jnp.argsort(jnp.where(sent, score, jnp.inf))
        chosen = jnp.zeros(len(rows), bool).at[order].set(jnp.arange(len(rows)) < self.m) & sent
        return _mean_of(messages, chosen)


@makes(Krum)
def krum(f: int, m: int = 1) -> MeanRule:
    """Return the mean of the m messages that are closest to their neighbours (Krum; m > 1: multi-Krum).

    The score of a message is the sum of its squared distances to the C - f - 2 messages that are closest to it.

    Args:
        f: The number of wrong messages that it tolerates, of C >= 2f + 3 messages. fedpd refuses a run in which a
            communication has fewer.
        m: The number of messages with the smallest scores that are averaged, at most C - f.
    """
    count("f", f, "Give the number of wrong messages to tolerate, e.g. 1", least=0, bits=31)
    count("m", m, "Give the number of messages to average, e.g. 1", bits=31)
    return Krum(f=f, m=m)


class GeometricMedian(MeanRule):
    iterations: int

    def mean(self, messages: Tree, sent: Array) -> Tree:
        def step(_: int, centre: Tree) -> Tree:
            distances = _distances(messages, centre)
            least = SMALLEST * jnp.max(jnp.where(sent, distances, 0))
            weights = jnp.where(sent, 1 / jnp.maximum(distances, jnp.maximum(least, jnp.finfo(least.dtype).tiny)), 0)
            total = jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
            return jax.tree.map(lambda leaf: jnp.tensordot((weights / total).astype(leaf.dtype), leaf, 1), messages)

        return jax.lax.fori_loop(0, self.iterations, step, _coordinate_median(messages, sent))


@makes(GeometricMedian)
def geometric_median(iterations: int = 32) -> MeanRule:
    """Return the point with the smallest sum of distances to the messages, by Weiszfeld's iteration from their median.

    Args:
        iterations: The number of iterations.
    """
    remedy = "Give the number of Weiszfeld's iterations, e.g. 32"
    at_most("iterations", count("iterations", iterations, remedy), MOST, remedy)
    return GeometricMedian(iterations=iterations)


class CenteredClipping(MeanRule):
    radius: float
    iterations: int

    def mean(self, messages: Tree, sent: Array) -> Tree:
        def step(_: int, centre: Tree) -> Tree:
            factors = jnp.minimum(1, self.radius / jnp.maximum(_distances(messages, centre), self.radius))
            factors = jnp.where(sent, factors, 0) / jnp.maximum(jnp.sum(sent), 1)

            def moved(middle: Array, leaf: Array) -> Array:
                return middle + jnp.tensordot(factors.astype(leaf.dtype), leaf - middle, 1)

            return jax.tree.map(moved, centre, messages)

        return jax.lax.fori_loop(0, self.iterations, step, _coordinate_median(messages, sent))


@makes(CenteredClipping)
def centered_clipping(radius: float, iterations: int = 3) -> MeanRule:
    """Return v after `v <- v + mean_i clip(m_i - v)`, where clip shortens a vector to at most `radius`.

    The first v is the coordinate-wise median. Karimireddy, He and Jaggi (2021) begin at the last round's result, which
    for models of FedPD, that move from round to round, is farther away.

    Args:
        radius: The longest difference to v that a message can add.
        iterations: The number of repetitions.
    """
    positive("radius", radius, "Give the longest difference that one message can add, e.g. 1.0")
    remedy = "Give the number of repetitions, e.g. 3"
    at_most("iterations", count("iterations", iterations, remedy), MOST, remedy)
    return CenteredClipping(radius=radius, iterations=iterations)


def _coordinate_median(messages: Tree, sent: Array) -> Tree:
    number = jnp.maximum(jnp.sum(sent), 1)

    def of_leaf(leaf: Array) -> Array:
        ordered = _sorted(leaf, sent)
        return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2

    return jax.tree.map(of_leaf, messages)


def _sorted(leaf: Array, sent: Array) -> Array:
    """Return the values of each coordinate in ascending order; those that were not sent, and NaN, come last."""
    return jnp.sort(jnp.where(as_rows(sent, leaf), leaf, jnp.inf), axis=0)


def as_rows(values: Array, leaf: Array) -> Array:
    """Return one value per message, in a shape that broadcasts against the leaf (C, ...)."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


def _mean_of(messages: Tree, chosen: Array) -> Tree:
    """Return the arithmetic mean of the chosen messages."""
    number = jnp.maximum(jnp.sum(chosen), 1)

    def of_leaf(leaf: Array) -> Array:
        return jnp.sum(jnp.where(as_rows(chosen, leaf), leaf, 0), axis=0) / number.astype(leaf.dtype)

    return jax.tree.map(of_leaf, messages)


def _rows(messages: Tree) -> Array:
    """Return the messages as rows of a matrix (C, d)."""
    leaves = jax.tree.leaves(messages)
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _distances(messages: Tree, centre: Tree) -> Array:
    """Return the distance of each message to a point, (C,)."""
    differences = jax.tree.map(lambda leaf, middle: leaf - middle, messages, centre)
    return jnp.sqrt(jnp.sum(_rows(differences) ** 2, axis=1))


class Weights(Value):
    """The weights of the messages for `wrap(algorithm, mean=...)`."""

    by: Literal["samples"]


@makes(Weights)
def weighted(by: Literal["samples"] = "samples") -> Weights:
    """Return the weights of a mean in which an agent counts by its number of samples n_i.

    The server's mean over the agents S that sent is sum_S n_i m_i / sum_S n_i; it learns n_i. The local losses stay as
    they are, in which this differs from a problem with weights="samples". Use one of the two.

    Args:
        by: What an agent counts by.

    Examples:
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8))
        >>> transforms.wrap(fedavg, mean=transforms.weighted("samples")).description
        'fedavg(oracle=sgd(step=0.1, iterations=8), mean=[weighted()])'
    """
    choice("by", by, ("samples",))
    return Weights(by=by)


class Agent(NamedTuple):
    """An agent whose messages are weighed."""

    inner: Any  # the method's own state
    weight: Array  # n_i


class Weighted(WithInner):
    """A method whose server weighs the messages."""

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        if f.scale is not None:
            rule = "the problem has weights, which scale the local losses, so that agents would count twice"
            refuse("mean", "weighted('samples')", rule, "Leave weights out of the problem, or weighted out of mean")
        return Agent(self.method.init(f, x), jnp.asarray(f.size, jax.tree.leaves(x)[0].dtype))

    @property
    def needs_everyone(self) -> bool:
        return self.method.needs_everyone or counts_agents(self.method.partial())

    def partial(self) -> Method:
        return self if self.needs_everyone else Weighted(method=form_with_absent(self.method))

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(map(_weighted, self.method.exchanges()))


def _weighted(own: Exchange) -> Exchange:
    """Return an exchange with weighed messages."""

    def send(agent: Agent) -> tuple[Tree, Array]:
        message = vectors_of(own.send(agent.inner))
        return jax.tree.map(lambda leaf: agent.weight * leaf, message), agent.weight

    def aggregate(server: Any, mean: tuple[Tree, Array], share: Any) -> tuple[Any, Tree]:
        assert not isinstance(own.aggregate, Mixing)  # `wrap` refuses it
        total, weight = mean
        some = jnp.where(weight > 0, weight, 1)  # if nobody sent, the mean is 0, as without weights
        return own.aggregate(server, jax.tree.map(lambda leaf: leaf / some.astype(leaf.dtype), total), share)

    return inside(own)._replace(send=send, aggregate=aggregate, with_message=None, mean=None, restore=None)


def with_weights(algorithm: Method) -> Method:
    """Return the method with a weighted mean; refuse one whose server counts agents."""
    if counts_agents(algorithm):
        rule = "its server keeps sums over all agents, in which each counts as 1/N"
        refuse("algorithm", algorithm.description, rule, 'Give the problem weights="samples" instead')
    return Weighted(method=algorithm)


def counts_agents(method: Method) -> bool:
    """Return whether each agent counts as 1/N: the server uses `share`, or the method knows N, as TAMUNA does."""
    if hasattr(method, "agents"):
        return True

    def steps(share: Array) -> list[Any]:
        x = Vector(jnp.zeros(1))
        agent, server = method.init(LocalObjective.without_samples(x), x), method.server(x)
        exchanges = [(one.aggregate, opened(one.send(agent))) for one in method.exchanges()]
        return [step(server, mean, share) for step, mean in exchanges if not isinstance(step, Mixing)]

    program = jax.make_jaxpr(steps)(1.0).jaxpr
    (share,) = program.invars
    return any(share is used for step in program.eqns for used in step.invars)
