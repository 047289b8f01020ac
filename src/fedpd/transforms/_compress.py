"""Send less of a vector: a share of its entries, entries with few bits, or a vector of bounded length."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedpd.base.checks import at_most, count, positive
from fedpd.core import Array, Key, makes
from fedpd.transforms._ways import Arrays, Transform

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


BITS = "Give the bits per entry, from 1 to 16"


class Quantize(Transform):
    bits: int
    unbiased: bool
    random = True

    @property
    def top(self) -> int:
        return 2**self.bits - 1

    @property
    def rescale(self) -> Any:
        return None if self.unbiased else _rescale

    def pack(self, values: Array, key: Key) -> tuple[Arrays, None]:
        scale = _as_float32(jnp.max(jnp.abs(values), initial=0))
        place = (values / jnp.where(scale > 0, scale, 1).astype(values.dtype) + 1) * (self.top / 2)
        chance = jax.random.uniform(key, values.shape, values.dtype)
        codes = jnp.clip(jnp.floor(place + chance), 0, self.top).astype(jnp.uint32)
        return {"codes": pack_integers(codes, self.bits), "scale": scale}, None

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        codes = unpack_integers(arrays["codes"], like.shape[0], self.bits).astype(like.dtype)
        return (codes * (2 / self.top) - 1).astype(like.dtype) * arrays["scale"].astype(like.dtype)

    def left(self, n: int) -> int:
        return 0


@makes(Quantize)
def quantize(bits: int, unbiased: bool = False) -> Transform:
    """Return a transform that rounds each entry at random to one of 2^bits levels.

    The levels lie evenly between -M and M, where M is the largest absolute value. An entry goes to one of its two
    neighbours, with probabilities that make its expectation the entry itself. M travels as a float32.

    Args:
        bits: Bits per entry, from 1 to 16.
        unbiased: Whether the levels stay as they are, so that the expectation of what arrives is the vector, as LoCoDL
            and SCALLION need it. By default the sender scales them so that what arrives is closest to the vector.
    """
    at_most("bits", count("bits", bits, BITS), 16, BITS)
    return Quantize(bits=bits, unbiased=unbiased)


class Sign(Transform):
    def pack(self, values: Array, key: Key) -> tuple[Arrays, None]:
        scale = jnp.mean(jnp.abs(values)).astype(jnp.float32)
        return {"signs": jnp.packbits((values >= 0).astype(jnp.uint8)), "scale": scale}, None

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        signs = jnp.unpackbits(arrays["signs"], count=like.shape[0]).astype(like.dtype)
        return (2 * signs - 1) * arrays["scale"].astype(like.dtype)

    def left(self, n: int) -> int:
        return 0


@makes(Sign)
def sign() -> Transform:
    """Return a transform that sends the sign of each entry, and the mean absolute value as a float32."""
    return Sign()


def _rescale(arrays: Arrays, factor: Array) -> Arrays:
    return arrays | {"scale": (arrays["scale"] * factor).astype(jnp.float32)}


def _as_float32(number: Array) -> Array:
    """Return a number >= 0 as a float32 that is not smaller."""
    rounded = number.astype(jnp.float32)
    return jnp.where(rounded < number, jnp.nextafter(rounded, jnp.float32(jnp.inf)), rounded)


class Clip(Transform):
    norm: float
    predicts = False  # the prediction would not be clipped

    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array]:
        length = jnp.linalg.norm(values)
        return {}, values * jnp.minimum(1, self.norm / jnp.where(length > 0, length, 1))

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        assert rest is not None  # clipping leaves all values to the next transform
        return rest


@makes(Clip)
def clip(norm: float) -> Transform:
    """Return a transform that shortens a vector to the Euclidean length `norm` if it is longer.

    What is cut off is sent later, as with every transform, so that the agent's dual fits what the server knows.

    Args:
        norm: The largest length of what is sent.
    """
    positive("norm", norm, "Give the largest Euclidean length of a message, e.g. 1.0")
    return Clip(norm=norm)


def pack_integers(numbers: Array, bits: int) -> Array:
    """Return non-negative integers below 2^bits as ceil(n bits / 8) bytes."""
    places = jnp.arange(bits, dtype=jnp.uint32)
    return jnp.packbits((numbers.astype(jnp.uint32)[:, None] >> places).astype(jnp.uint8) & 1)


def unpack_integers(packed: Array, number: int, bits: int) -> Array:
    """Return the integers that `pack_integers` packed, as uint32."""
    places = jnp.arange(bits, dtype=jnp.uint32)
    rows = jnp.unpackbits(packed, count=number * bits).reshape(number, bits)
    return jnp.sum(rows.astype(jnp.uint32) << places, axis=1, dtype=jnp.uint32)


def pack_positions(positions: Array, size: int) -> Array:
    """Return k different positions below `size`, in ascending order, as bytes.

    A position has floor(log2(size/k)) low bits, which are stored as they are. The high bits of all positions are a
    string of zeros and ones: the i-th one stands at i plus the high bits of position i (the code of Elias and Fano).
    This takes at most about log2(size/k) + 2 bits per position; a bitmap is used where it is shorter.
    """
    low = _low_bits(len(positions), size)
    if low is None:
        return jnp.packbits(jnp.zeros(size, jnp.uint8).at[positions].set(1))
    positions = positions.astype(jnp.uint32)
    places = (positions >> low).astype(jnp.int32) + jnp.arange(len(positions), dtype=jnp.int32)
    high = jnp.zeros(_high_length(len(positions), size, low), jnp.uint8).at[places].set(1)
    return jnp.concatenate([jnp.packbits(high), pack_integers(positions & ((1 << low) - 1), low)])


def unpack_positions(packed: Array, number: int, size: int) -> Array:
    """Return the positions that `pack_positions` packed."""
    low = _low_bits(number, size)
    if low is None:
        return jnp.nonzero(jnp.unpackbits(packed, count=size), size=number)[0].astype(jnp.int32)
    length = _high_length(number, size, low)
    split = -(-length // 8)
    ones = jnp.nonzero(jnp.unpackbits(packed[:split], count=length), size=number)[0].astype(jnp.int32)
    high = (ones - jnp.arange(number, dtype=jnp.int32)).astype(jnp.uint32)
    return ((high << low) | unpack_integers(packed[split:], number, low)).astype(jnp.int32)


def _low_bits(number: int, size: int) -> int | None:
    """Return how many low bits a position has; None if a bitmap is not longer."""
    low = int(math.log2(size / number))
    length = -(-_high_length(number, size, low) // 8) + -(-number * low // 8)
    return None if -(-size // 8) <= length else low


def _high_length(number: int, size: int, low: int) -> int:
    return number + ((size - 1) >> low)
