"""A chain of transforms that packs one vector, and the decoder that the receiver needs."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedpd.base.checks import refuse
from fedpd.base.value import attribute
from fedpd.core import Array, Key, Packed, Value, Vector

Arrays = dict[str, Array]


class Transform(Value):
    """A transform of a vector on its way, for `wrap(algorithm, up=..., down=...)`; a simple one has pack and unpack.

    Attributes:
        random: Whether `pack` uses its key.
        rescale: (arrays, factor) -> the arrays of the packed values times a number; None: packing is a projection, or
            must not be rescaled. The sender chooses the factor that brings the packed values closest to the values.
        feedback: Whether the sender keeps what was not sent and sends it later.
        predicts: Whether the sender may send one number more, the share of the message that both sides can predict.
        unbiased: Whether the expectation of what arrives is the vector itself, at the price of a larger error.
    """

    random = attribute(False)
    rescale = attribute(None)
    feedback = attribute(True)
    predicts = attribute(True)
    unbiased = attribute(False)

    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array | None]:
        """Return the arrays that travel, by name, and the values that the next transform packs (None: none)."""
        self.needs("pack(self, values, key)")

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        """Return the values from the arrays that travelled and the values of the next transform.

        `like` has the shape (n,) and the type of the result.
        """
        self.needs("unpack(self, arrays, rest, like)")

    def left(self, n: int) -> int:
        """Return how many of n values are left to the next transform; 0: none, so this transform is the last."""
        return n


@dataclass(frozen=True)
class VectorDecoder:
    """Returns a vector from the arrays that travelled."""

    structure: Any  # the structure of the vector's tree
    shapes: tuple[tuple[int, ...], ...]  # the shapes of its leaves
    dtype: Any  # their type
    transforms: tuple[Transform, ...]  # the transforms

    def __call__(self, arrays: Arrays, /) -> Vector:
        size = sum(math.prod(shape) for shape in self.shapes)
        return self.vector(unpack_values(self.transforms, arrays, jax.ShapeDtypeStruct((size,), self.dtype)))

    def vector(self, values: Array) -> Vector:
        """Return values (d,) as a vector."""
        leaves, first = [], 0
        for shape in self.shapes:
            leaves.append(values[first : first + math.prod(shape)].reshape(shape))
            first += math.prod(shape)
        return Vector(jax.tree.unflatten(self.structure, leaves))


def pack_vector(transforms: tuple[Transform, ...], vector: Vector, key: Key) -> Packed:
    """Return a vector packed by a chain of transforms."""
    leaves, structure = jax.tree.flatten(vector.tree)
    shapes = tuple(leaf.shape for leaf in leaves)
    values = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    decoder = VectorDecoder(structure, shapes, values.dtype, transforms)
    return Packed(pack_values(transforms, values, key), decoder)


def pack_values(transforms: tuple[Transform, ...], values: Array, key: Key) -> Arrays:
    """Return the arrays that travel for values (d,)."""
    arrays: Arrays = {}
    rest: Array | None = values
    for i, (name, transform) in enumerate(_named(transforms)):
        assert rest is not None  # `check_chain`
        own, left = transform.pack(rest, jax.random.fold_in(key, i) if transform.random else key)
        if transform.rescale is not None:
            found = transform.unpack(own, left, jax.ShapeDtypeStruct(rest.shape, rest.dtype))
            square = jnp.vdot(found, found)
            factor = jnp.where(square > 0, jnp.vdot(rest, found) / jnp.where(square > 0, square, 1), 0)
            own = transform.rescale(own, factor)
        arrays |= {f"{name}.{array}": value for array, value in own.items()}
        rest = left
    return arrays if rest is None else arrays | {"values": rest}


def unpack_values(transforms: tuple[Transform, ...], arrays: Arrays, like: jax.ShapeDtypeStruct) -> Array:
    """Return the values (d,) from the arrays that travelled."""
    likes = [like]
    for transform in transforms:
        likes.append(jax.ShapeDtypeStruct((transform.left(likes[-1].shape[0]),), like.dtype))
    rest = arrays.get("values")
    for (name, transform), like in reversed(list(zip(_named(transforms), likes[:-1], strict=True))):
        prefix = f"{name}."
        own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        rest = transform.unpack(own, rest, like)
    assert rest is not None  # each `unpack` returns values
    return rest


def check_chain(name: str, transforms: Any) -> tuple[Transform, ...]:
    """Return one transform or a list of them as a tuple; refuse anything else, and a chain that cannot be."""
    if isinstance(transforms, Transform):
        return (transforms,)
    if not isinstance(transforms, list | tuple) or not all(isinstance(one, Transform) for one in transforms):
        refuse(name, transforms, "must be transforms", f"Give e.g. {name}=[transforms.top_k(0.1)]")
    for one in transforms[:-1]:
        if one.left(2) == 0:
            rule = f"{one.description} leaves no values to the transform after it"
            refuse(name, [each.description for each in transforms], rule, "Put it last")
    return tuple(transforms)


def _named(transforms: tuple[Transform, ...]) -> list[tuple[str, Transform]]:
    """Return each transform with its name; two of the same kind are numbered."""
    names = [transform.name for transform in transforms]
    return [
        (name if names.count(name) == 1 else f"{name}-{i}", t)
        for i, (name, t) in enumerate(zip(names, transforms, strict=True))
    ]
