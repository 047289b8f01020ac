"""How a stochastic oracle draws samples. A draw is a function, so that a test can replay recorded draws."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedpd.core.types import Array, Key

Draw = Callable[[Key, Array, Array, Array, tuple[int, ...]], Array]  # (key, r, agent, size, shape) -> indices


def uniform(key: Key, r: Array, agent: Array, size: Array, shape: tuple[int, ...]) -> Array:
    """Return indices uniform in {0, ..., size-1}, drawn with replacement and without modulo bias.

    It uses Lemire's method: the index is the high word of (32 random bits) * size. It draws again if the low word is
    one of the 2^32 mod size values that would make some indices more likely (probability below size/2^32).

    Args:
        key: The key of this draw.
        r: The round; not used here.
        agent: The agent's number; not used here.
        size: The number of samples to choose from.
        shape: The shape of the result.
    """
    size = jnp.asarray(size, jnp.uint32)
    threshold = (jnp.uint32(0) - size) % size  # 2^32 mod size

    def attempt(key: Key) -> tuple[Array, Array]:
        high, low = multiply_words(jax.random.bits(key, shape, jnp.uint32), size)
        return high, low < threshold

    def again(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, indices, rejected = carry
        fresh, rejected_again = attempt(jax.random.fold_in(key, number))
        return number + 1, jnp.where(rejected, fresh, indices), rejected & rejected_again

    indices, rejected = attempt(key)  # the key itself: compiles one generator less than a fold
    _, indices, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), again, (jnp.int32(1), indices, rejected))
    return indices.astype(jnp.int32)


def multiply_words(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the high and the low 32 bits of the product of two uint32."""
    half, low_bits = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_bits, b >> half, b & low_bits
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = a_low * b_high + (middle & low_bits)
    return a_high * b_high + (middle >> half) + (carry >> half), a * b
