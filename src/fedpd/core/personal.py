"""Personal parameters: the parts of a model that stay at their agent. The other parts are shared.

A part of a vector has None in place of the other entries, so that arithmetic, messages and bytes leave them out.
"""

from collections.abc import Callable
from typing import Any

import jax
from tree_math import Vector

from fedpd.core.objective import LocalObjective, Noise
from fedpd.core.types import Array, Key, Tree

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


def with_fixed(f: LocalObjective, fixed: Vector) -> LocalObjective:
    """Return f_i as a function of the entries that `fixed` does not have."""

    def whole(model: Tree) -> Tree:
        return merged(Vector(model), fixed).tree

    def random(model: Tree, rows: Tree, key: Key) -> Array:
        assert noise is not None
        return noise.losses(whole(model), rows, key)

    losses, penalty, noise = f.losses, f.penalty, f.noise
    return f._replace(
        losses=lambda model, rows: losses(whole(model), rows),
        penalty=None if penalty is None else lambda model: penalty(whole(model)),
        noise=None if noise is None else Noise(random, noise.key),
    )
