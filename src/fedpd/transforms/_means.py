r"""Replace the arithmetic mean of the messages at the server by one that a few wrong messages cannot move far.

Each rule sees the messages m_1, ..., m_C of the agents that sent. With at most f wrong messages, the result stays near
the others. It differs from the mean of the right messages even if all are right, unless they are equal: a method that
relies on the exact mean keeps an error that grows with the differences between agents. FedPD relies on it: its duals
sum to 0 only with the mean (docs, "Robust means").
"""

import jax
import jax.numpy as jnp

from fedpd.base.checks import at_least, at_most, below, count, positive
from fedpd.core import Array, Tree, Value, makes

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
