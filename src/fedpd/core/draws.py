"""Random numbers from the operating system, which nobody can predict or repeat: the noise of a real federation."""

import math
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import io_callback

from fedpd.core.types import Array


def system_normal(like: Any) -> Array:
    """Return standard normal numbers of the shape and type of `like`, inside of a compiled program too."""
    return _drawn(_normals, like)


def system_uniform(like: Any) -> Array:
    """Return uniform numbers in [0, 1) of the shape and type of `like`."""
    return _drawn(_uniforms, like)


def _drawn(draw: Callable[[int], np.ndarray], like: Any) -> Array:
    shape, wide = like.shape, np.dtype(np.float64 if like.dtype == np.float64 else np.float32)
    words = (*shape, 2) if wide.itemsize == 8 else shape

    def bits() -> np.ndarray:  # JAX may convert floats in a thread of its own, whose precision is another one
        return draw(math.prod(shape)).astype(wide).view(np.uint32).reshape(words)

    return lax.bitcast_convert_type(io_callback(bits, jax.ShapeDtypeStruct(words, np.uint32)), wide).astype(like.dtype)


def _fractions(number: int) -> np.ndarray:
    """Return multiples of 2^-53 in [0, 1) from the operating system's cryptographic random bits."""
    return (np.frombuffer(os.urandom(8 * number), np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniforms(number: int) -> np.ndarray:
    return np.minimum(_fractions(number), 1 - 2.0**-24)  # float32 would round larger ones to 1


def _normals(number: int) -> np.ndarray:
    """Return normal numbers (Box and Muller)."""
    first, second = _fractions(2 * number).reshape(2, -1)
    return np.sqrt(-2 * np.log(first + 2.0**-54)) * np.cos(2 * np.pi * second)
