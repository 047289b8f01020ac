"""A module of any library as a function of its parameters, and the split into trained and frozen parameters."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.identity import fingerprint
from fedpd.core import Array, Key, Spec, Tree
from fedpd.problems.classification import Normalisation

Trainable = Callable[[str], bool]  # (path of a parameter, such as "Dense_0/kernel") -> whether it is trained


class Scores(Protocol):
    """Returns the scores of a batch. With a key, random layers draw from it; None turns them off."""

    def __call__(self, parameters: Tree, x: Array, key: Key | None, /) -> Array: ...


class PlainScores(Protocol):
    """Returns the scores of a batch as the library's own users compute them, in training or in evaluation."""

    def __call__(self, module: Any, parameters: Tree, x: Array, key: Key | None, train: bool, /) -> Array: ...


class Adapter(NamedTuple):
    """A module as a function of its parameters."""

    start: Tree  # all arrays of the module at its initialisation, any pytree
    scores: Scores  # returns the scores in training; batches are normalised by their own statistics
    random: bool = False  # whether random layers draw numbers in training
    normalisation: Normalisation | None = None  # how single samples are evaluated, if the module normalises batches
    frozen: frozenset[str] = frozenset()  # the paths of the arrays that the module itself does not train


class Parts(NamedTuple):
    """The trained and the frozen arrays of a module."""

    trained: Tree  # the start of the trained arrays. Dicts lack the frozen entries, other containers have None in place
    frozen: list[np.ndarray] | None  # the frozen arrays; None: all arrays are trained
    merge: Callable[[Any, Tree], Tree]  # (frozen, trained) -> all arrays, in the structure of the module


def identify(parts: Iterable[tuple[Any, Any]], arrays: type | tuple[type, ...]) -> Spec:
    """Return what identifies a module in another process: the classes of its parts and their settings.

    Args:
        arrays: The types of attributes that are not settings: arrays, random numbers and inner modules.

    Raises:
        UnidentifiedError: If a setting cannot be identified.
    """

    def settings(part: Any) -> dict[str, Any]:
        kept = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        return {name: value for name, value in kept.items() if not isinstance(value, arrays)}

    return Spec("module", (("parts", fingerprint([(path, type(one), settings(one)) for path, one in parts])),))


def differ(module: Any, start: Tree, example: Array, plain: PlainScores) -> bool:
    """Return whether a module without random layers and batch normalisation computes other scores in training."""
    trained, judged = (np.asarray(plain(module, start, example, None, train)) for train in (True, False))
    return trained.shape != judged.shape or not np.allclose(trained, judged, rtol=1e-5, atol=0, equal_nan=True)


def split(adapter: Adapter, trainable: Trainable | None) -> Parts:
    """Return the trained and the frozen arrays of a module.

    Args:
        trainable: Which parameters are trained, by path; None: all that the module itself trains.

    Raises:
        FedpdError: If nothing is trained.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(adapter.start)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    leaves = [np.asarray(leaf) for _, leaf in paths]
    if not leaves:
        raise FedpdError("the module has no parameters, so there is nothing to train. Give it at least one layer.")
    if trainable is not None and not callable(trainable):
        remedy = 'Give e.g. lambda path: "lora" in path'
        refuse("trainable", trainable, "must be a function of the path of a parameter", remedy)
    chosen = [name not in adapter.frozen and (trainable is None or _is_chosen(trainable, name)) for name in names]
    if not any(chosen):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        rule = "nothing is trained"
        if trainable is None:
            raise FedpdError(f"{rule}: no parameter of the module requires a gradient. Set requires_grad of some.")
        refuse("trainable", trainable, f"{rule}, because it is false for all paths", f"The paths are {shown}")
    if all(chosen):
        return Parts(jax.tree.unflatten(structure, leaves), None, _all_are_trained)

    def merge(frozen: Any, trained: Tree) -> Tree:
        own, others = iter(jax.tree.leaves(trained)), iter(frozen)
        return jax.tree.unflatten(structure, [next(own) if one else next(others) for one in chosen])

    trained = jax.tree.unflatten(structure, [leaf if one else None for leaf, one in zip(leaves, chosen, strict=True)])
    return Parts(_pruned(trained), [leaf for leaf, one in zip(leaves, chosen, strict=True) if not one], merge)


def _is_chosen(trainable: Trainable, name: str) -> bool:
    """Return what the user's function says about a parameter; a match of a regular expression is a yes."""
    rule, remedy = f"for the path {name!r}, but must return True or False", 'Give e.g. lambda path: "lora" in path'
    try:
        answer: Any = trainable(name)
        chosen = bool(answer)
    except Exception as error:
        refuse("trainable", trainable, f"fails ({error}) {rule}", remedy)
    if isinstance(answer, str):
        refuse("trainable", trainable, f"returns {answer!r} {rule}", remedy)
    return chosen


def _all_are_trained(frozen: Any, trained: Tree) -> Tree:
    return trained


def _pruned(tree: Tree) -> Tree:
    """Return nested dicts without the entries that hold no array."""
    if type(tree) is not dict:
        return tree
    return {key: _pruned(value) for key, value in tree.items() if jax.tree.leaves(value)}
