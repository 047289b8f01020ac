"""Send a share of the entries: the largest ones, or random ones."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedpd.base.checks import at_most, positive
from fedpd.core import Array, Key, makes
from fedpd.transforms._bits import pack_positions, unpack_positions
from fedpd.transforms._chain import Arrays, Transform

SHARE = "Give the share of the entries to send, e.g. 0.01 for 1 %"


class Sparse(Transform):
    """Sends k = ceil(share d) of d entries. The share shapes the arrays that travel."""

    share: float
    shapes: ClassVar = ("share",)

    def left(self, n: int) -> int:
        return number_sent(self.share, n)


class TopK(Sparse):
    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array]:
        k = self.left(len(values))
        if k == len(values):
            return {}, values
        positions = jnp.sort(lax.top_k(jnp.abs(values), k)[1])
        return {"positions": pack_positions(positions, len(values))}, values[positions]

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        assert rest is not None
        (size,) = like.shape
        if "positions" not in arrays:
            return rest
        positions = unpack_positions(arrays["positions"], self.left(size), size)
        return jnp.zeros(size, like.dtype).at[positions].set(rest)


@makes(TopK)
def top_k(share: float) -> Transform:
    """Return a transform that sends the entries with the largest absolute values, and their positions.

    Of d entries it sends k = ceil(share d). Positions take about log2(1/share) + 2 bits each.

    Args:
        share: The share of the entries, in (0, 1].
    """
    at_most("share", positive("share", share, SHARE), 1, SHARE)
    return TopK(share=share)


class RandomK(Sparse):
    unbiased: bool
    random = True

    def draw(self, key: Array, size: int) -> Array:
        """Return the positions that both sides draw from a key."""
        numbers = jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), (size,), jnp.uint32)
        return jnp.argsort(numbers)[: self.left(size)]

    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array]:
        if self.left(len(values)) == len(values):
            return {}, values
        words = jax.random.key_data(key)
        return {"key": words}, values[self.draw(words, len(values))]

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        assert rest is not None
        if "key" not in arrays:
            return rest
        (size,) = like.shape
        factor = size / self.left(size) if self.unbiased else 1
        return jnp.zeros(size, like.dtype).at[self.draw(arrays["key"], size)].set(factor * rest)


@makes(RandomK)
def random_k(share: float, unbiased: bool = False) -> Transform:
    """Return a transform that sends random entries. Both sides draw the positions from a key of 8 bytes.

    Of d entries it sends k = ceil(share d).

    Args:
        share: The share of the entries, in (0, 1].
        unbiased: Whether the receiver multiplies the entries by d/k, as LoCoDL and SCALLION need it. The variance is
            then omega = d/k - 1 times the squared length of the vector.
    """
    at_most("share", positive("share", share, SHARE), 1, SHARE)
    return RandomK(share=share, unbiased=unbiased)


def number_sent(share: float, size: int) -> int:
    """Return how many of `size` entries are sent."""
    return min(size, max(1, math.ceil(share * size - 1e-9)))
