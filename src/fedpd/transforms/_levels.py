"""Send entries with few bits: random rounding to levels, or signs."""

from typing import Any

import jax
import jax.numpy as jnp

from fedpd.base.checks import at_most, count
from fedpd.core import Array, Key, makes
from fedpd.transforms._bits import pack_integers, unpack_integers
from fedpd.transforms._chain import Arrays, Transform

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
        place = (values / _not_zero(scale).astype(values.dtype) + 1) * (self.top / 2)
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


def _not_zero(scale: Array) -> Array:
    return jnp.where(scale > 0, scale, 1)
