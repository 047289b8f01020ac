"""Packed messages: the arrays that travel, and how the receiver makes the message from them.

A method's `send` may return a tree with `Packed` parts. Bytes are counted from the shapes of their arrays, and these
arrays are what travels in a federation. Whoever receives the message calls `opened` before it adds messages up.
"""

from typing import Any, NamedTuple, Protocol

import jax

from fedpd.core.types import Array, Tree


class Decoder(Protocol):
    """Returns the part of a message from the arrays that travelled. It is hashable, and equal for equal packings."""

    def __call__(self, arrays: dict[str, Array], /) -> Tree: ...


@jax.tree_util.register_pytree_with_keys_class
class Packed:
    """A part of a message as it travels.

    Attributes:
        arrays: The arrays that travel, by name.
        decoder: Returns the part of the message from them.
    """

    def __init__(self, arrays: dict[str, Array], decoder: Decoder) -> None:
        self.arrays, self.decoder = arrays, decoder

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Array], ...], tuple[Any, ...]]:
        names = tuple(sorted(self.arrays))
        children = tuple((jax.tree_util.DictKey(name), self.arrays[name]) for name in names)
        return children, (names, self.decoder)

    @classmethod
    def tree_unflatten(cls, structure: tuple[Any, ...], children: Any) -> "Packed":
        names, decoder = structure
        return cls(dict(zip(names, children, strict=True)), decoder)


def opened(message: Tree) -> Tree:
    """Return a message with its packed parts decoded; a message without packed parts is returned as it is."""
    return jax.tree.map(lambda part: part.decoder(part.arrays) if is_packed(part) else part, message, is_leaf=is_packed)


def is_packed(part: Any) -> bool:
    """Return whether a part of a message is packed."""
    return isinstance(part, Packed)


def has_packed(message: Tree) -> bool:
    """Return whether any part of a message is packed."""
    return any(is_packed(part) for part in jax.tree.leaves(message, is_leaf=is_packed))


class Update(NamedTuple):
    """A broadcast of which only the change travels, to agents that have the broadcast before it.

    Attributes:
        change: What travels, with packed parts.
        whole: The broadcast itself.
    """

    change: Tree
    whole: Tree


def as_sent(message: Tree) -> Tree:
    """Return what travels of a message or a broadcast."""
    return message.change if isinstance(message, Update) else message
