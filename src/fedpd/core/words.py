"""Products of 32-bit numbers in two words: JAX has no 64-bit integers with float32."""

import jax.numpy as jnp

from fedpd.core.types import Array


def multiply_words(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the high and the low 32 bits of the product of two uint32."""
    half, low_bits = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_bits, b >> half, b & low_bits
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = a_low * b_high + (middle & low_bits)
    return a_high * b_high + (middle >> half) + (carry >> half), a * b
