"""Messages: what they are, which is their type, how they travel, and which parts of a model they leave out.

A method's `send` wraps a vector in a `Change`, a `Model` and so on, or each vector of a tuple: transforms pack, clip
and add noise by the type. The server and the agents get the vectors themselves. A part without a type travels as it is.
A message whose vectors all lack a type must arrive as it was sent.

`send` may also return `Packed` parts. Bytes are counted from the shapes of their arrays, and these arrays are what
travels in a federation. Whoever receives the message calls `opened` before it adds messages up.

Personal parameters are the parts of a model that stay at their agent. A part of a vector has None in place of the other
entries, so that arithmetic, messages and bytes leave them out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
from tree_math import Vector

from fedpd.core.vectors import Array, Tree


@dataclass(frozen=True)
class Message:
    """A vector with a meaning."""

    vector: Vector

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)
        jax.tree_util.register_dataclass(cls, ["vector"], [])


class Change(Message):
    """A vector that the server adds to a sum."""


class Model(Message):
    """A model that comes close to the last broadcast."""


class Iterate(Message):
    """A point of the agent's own that starts at x^0."""


class Gradient(Message):
    """A vector of the agent's own that starts anywhere."""


class Difference(Message):
    """A difference to what the server has. The agent keeps account of what arrived, by the method's `with_message`."""


class Unbiased(Difference):
    """A difference for methods that need the right expectation of what arrives."""


Kind = type[Message]


def is_message(part: Any) -> bool:
    return isinstance(part, Message)


def vectors_of(message: Tree) -> Tree:
    """Return a message without its types."""
    return jax.tree.map(lambda part: part.vector if is_message(part) else part, message, is_leaf=is_message)


def kinds_of(message: Tree) -> tuple[Kind | None, ...]:
    """Return the type of each part of a message, None for a part without one; () if there are vectors, all untyped."""
    parts = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Message | Vector | Packed))
    kinds = tuple(type(part) if is_message(part) else None for part in parts)
    return kinds if any(kinds) or not any(isinstance(part, Vector | Packed) for part in parts) else ()


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
    """Return a message with its packed parts decoded and without the types of its parts."""
    plain = vectors_of(message)
    return jax.tree.map(lambda part: part.decoder(part.arrays) if is_packed(part) else part, plain, is_leaf=is_packed)


def is_packed(part: Any) -> bool:
    """Return whether a part of a message is packed."""
    return isinstance(part, Packed)


def has_packed(message: Tree) -> bool:
    """Return whether any part of a message is packed."""
    return any(is_packed(part) for part in jax.tree.leaves(message, is_leaf=is_packed))


class Update(NamedTuple):
    """A broadcast of which only the change travels, to agents that have the broadcast before it."""

    change: Tree  # what travels, with packed parts
    whole: Tree  # the broadcast itself


def as_sent(message: Tree) -> Tree:
    """Return what travels of a message or a broadcast."""
    return message.change if isinstance(message, Update) else message


IsPersonal = Callable[[str], bool]  # (path of a parameter, such as "head/kernel") -> whether it stays at its agent


def names_of(tree: Tree) -> list[str]:
    """Return the paths of the leaves of a model, as `problems.network(trainable=...)` gets them."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def part_of(tree: Tree, is_personal: IsPersonal, *, personal: bool) -> Tree:
    """Return a message, a state or a model with only the personal or only the shared entries of its vectors."""

    def part(node: Any) -> Any:
        if not isinstance(node, Vector):
            return node
        leaves, structure = jax.tree.flatten(node.tree)
        pairs = zip(leaves, names_of(node.tree), strict=True)
        kept = [leaf if is_personal(name) == personal else None for leaf, name in pairs]
        return Vector(jax.tree.unflatten(structure, kept))

    return jax.tree.map(part, tree, is_leaf=is_vector)


def merged(first: Tree, second: Tree) -> Tree:
    """Return a tree whose vectors have the entries of both parts; all else is that of the first."""

    def fill(one: Any, other: Any) -> Any:
        if not isinstance(one, Vector):
            return one
        return Vector(jax.tree.map(lambda a, b: b if a is None else a, one.tree, other.tree, is_leaf=is_none))

    return jax.tree.map(fill, first, second, is_leaf=is_vector)


def is_vector(node: Any) -> bool:
    return isinstance(node, Vector)


def is_none(node: Any) -> bool:
    return node is None
