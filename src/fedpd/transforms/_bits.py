"""Pack small integers and sets of positions into bytes, with as few bits as a fixed length allows."""

import math

import jax.numpy as jnp

from fedpd.core import Array


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
