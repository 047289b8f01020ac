"""Replace the arithmetic mean of the messages at the server."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.spec import Spec
from fedpd.core import Array, Mean, Tree, specified


class MeanRule(NamedTuple):
    """A mean for `wrap(algorithm, mean=...)`.

    Attributes:
        spec: Its name; `specified` replaces it by the name and the arguments of the factory.
        mean: Returns the mean of the messages.
    """

    spec: Spec | str
    mean: Mean


@specified
def median() -> MeanRule:
    """Return the coordinate-wise median of the messages; of an even number, the mean of the middle two."""

    def mean(messages: Tree, sent: Array) -> Tree:
        number = jnp.maximum(jnp.sum(sent), 1)

        def of_leaf(leaf: Array) -> Array:
            rows = sent.reshape(-1, *[1] * (leaf.ndim - 1))
            ordered = jnp.sort(jnp.where(rows, leaf, jnp.inf), axis=0)
            return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2

        return jax.tree.map(of_leaf, messages)

    return MeanRule("median", mean)
