"""How a stochastic oracle draws samples: with replacement by a `Draw`, without by a `shuffle` per epoch.

`mixed` makes random bits from numbers: a hash that depends on nothing but its argument, on every machine.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.core.vectors import Array, Key

# (key, r, agent, size, shape) -> indices; a function, so that a test can replay recorded draws
Draw = Callable[[Key, Array, Array, Array, tuple[int, ...]], Array]
SWAPS = 32  # rounds of a shuffle; a chi-square test of 400,000 permutations notices 12 of them, and not 16


def uniform(key: Key, r: Array, agent: Array, size: Array, shape: tuple[int, ...]) -> Array:
    """Return indices uniform in {0, ..., size-1}, drawn with replacement and without modulo bias.

    It uses Lemire's method: the index is the high word of (32 random bits) * size. It draws again if the low word is
    one of the 2^32 mod size values that would make some indices more likely (probability below size/2^32).

    Args:
        r: The round; not used here.
        agent: The agent's number; not used here.
        size: The number of samples to choose from.
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


def shuffle(key: Key, size: Array) -> Callable[[Array], Array]:
    """Return a random permutation of {0, ..., size-1}, as a function of places that computes the entries there.

    It is the swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012). A round draws a number K and pairs each index
    with K - index mod size; the larger of the two decides by one bit of its hash whether they change places. That is a
    bijection for every size, so nothing is drawn again, and no array of the size of the largest agent is needed.
    Measured on one core: a batch of 50 takes 0.5 us in a local step, 18 us per epoch of 1775 samples. A sort of random
    words takes 450 us per epoch, and for every agent as long as for the largest.
    """
    size = jnp.asarray(size, jnp.uint32)
    bits = jax.random.bits(key, (2, SWAPS), jnp.uint32)
    partners = multiply_words(bits[0], size)[0]

    def swap(index: Array, drawn: tuple[Array, Array]) -> tuple[Array, None]:
        partner, word = drawn
        other = jnp.where(partner < index, partner + size - index, partner - index)
        mixed = (jnp.maximum(index, other) ^ word) * jnp.uint32(0x9E3779B1)
        mixed = (mixed ^ (mixed >> jnp.uint32(15))) * jnp.uint32(0x85EBCA77)
        return jnp.where(mixed >> jnp.uint32(31) == 1, other, index), None

    def entries(places: Array) -> Array:
        # A loop, which XLA does not fuse with the reading of the rows: unrolled, local steps of a logistic model with
        # 20 parameters took 2.3 times as long.
        index, _ = jax.lax.scan(swap, jnp.asarray(places, jnp.uint32), (partners, bits[1]))
        return index.astype(jnp.int32)

    return entries


def multiply_words(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the high and the low 32 bits of the product of two uint32."""
    half, low_bits = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_bits, b >> half, b & low_bits
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = a_low * b_high + (middle & low_bits)
    return a_high * b_high + (middle >> half) + (carry >> half), a * b


GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, the increment of splitmix64


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return 64 bits that all depend on all bits of a number (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
