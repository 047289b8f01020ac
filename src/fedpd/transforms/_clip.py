"""Bound the length of what is sent."""

import jax
import jax.numpy as jnp

from fedpd.base.checks import positive
from fedpd.core import Array, Key, makes
from fedpd.transforms._chain import Arrays, Transform


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
