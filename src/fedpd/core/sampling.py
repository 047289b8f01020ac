"""How a stochastic oracle draws samples. A draw is a function, so that a test can replay recorded draws."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedpd.core.types import Array, Key
from fedpd.core.words import multiply_words

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
