"""Specs: the exact name and arguments of the factory of a method, an oracle, a schedule or a regulariser.

A spec is read off the fields of a value (`fedpd.base.value`). The identity of a checkpoint, the check between server
and clients, the table in an experiment file and the label in a figure are made from it. A file holds specs, not code.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.identity import fingerprint

P = ParamSpec("P")
T = TypeVar("T")
HASH = re.compile("[0-9a-f]{64}")  # of a fingerprint
CODE = "code"  # the setting that identifies a class of the user's own


TRACED = "a traced number"  # stands for a number whose value JAX does not know yet


@dataclass(frozen=True)
class SavedThing:
    """Stands for a setting that a file cannot hold, such as a function: only its name and its hash are known."""

    name: str
    digest: str

    @property
    def __name__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Thing:
    """A setting that is not a plain number or text, such as an array or the user's own function."""

    value: Any

    @property
    def digest(self) -> str:
        """The hash of its content now: a global that a function reads may have changed since the last call."""
        return self.value.digest if isinstance(self.value, SavedThing) else fingerprint(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and (self.value is other.value or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(type(self.value))

    def word(self) -> str:
        """Return a short text for labels."""
        if isinstance(self.value, np.generic | np.ndarray | jax.Array):
            return "x".join(map(str, self.value.shape)) or f"{self.value:g}"
        return getattr(self.value, "__name__", type(self.value).__name__)

    def plain(self) -> dict[str, str]:
        kind = f"{self.value.dtype} array" if isinstance(self.value, np.ndarray | jax.Array) else "object"
        return {kind: self.word(), "sha256": self.digest}


@dataclass(frozen=True)
class Spec:
    """The name of a factory and the arguments of the call, in a canonical, hashable and exact form.

    Attributes:
        name: The factory's name, as in an experiment file.
        settings: All arguments by name, in the factory's order. Values are plain numbers and texts, other specs, tuples
            of them, or a `Thing`.
        usual: The names of the arguments that have their default value; labels and tables leave them out.

    Examples:
        >>> from fedpd.base.spec import Spec
        >>> Spec.of("gd", step=0.1, iterations=8).label()
        'gd(step=0.1, iterations=8)'
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    usual: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @staticmethod
    def of(name: str, usual: Mapping[str, Any] | None = None, /, **settings: Any) -> "Spec":
        """Return a spec from the arguments of a call and the defaults of the factory."""
        canonical = {key: _canonical(value) for key, value in settings.items()}
        at_default = {key for key, value in (usual or {}).items() if _same(canonical.get(key), _canonical(value))}
        return Spec(name, tuple(canonical.items()), frozenset(at_default))

    def __getitem__(self, key: str) -> Any:
        """Return a setting in its original form, also if it is an array or a function."""
        value = dict(self.settings)[key]
        return value.value if isinstance(value, Thing) else value

    def plus(self, **settings: Any) -> "Spec":
        """Return the spec with further settings."""
        return Spec(self.name, self.settings + Spec.of("", **settings).settings, self.usual)

    def unusual(self) -> dict[str, Any]:
        """Return the settings that differ from their default."""
        return {key: value for key, value in self.settings if key not in self.usual}

    def with_code(self, kind: type) -> "Spec":
        """Return the spec of an object of the user's own class, whose code belongs to its identity."""
        return Spec(self.name, (*self.settings, (CODE, Thing(kind))), self.usual | {CODE})

    def leaves(self, path: str = "") -> Iterator[tuple[str, Any]]:
        """Yield its settings and those of all specs in it by their names with dots, after the name of each spec."""
        yield path, self.name
        for key, value in self.settings:
            inner = f"{path}.{key}" if path else key
            if isinstance(value, Spec):
                yield from value.leaves(inner)
            else:
                yield inner, value

    def label(self) -> str:
        """Return a short text for readers, such as "fedpd(eta=0.08, p=0.5)". Different specs may have the same one."""
        return f"{self.name}({', '.join(f'{key}={_word(value)}' for key, value in self.unusual().items())})"

    def plain(self) -> dict[str, Any]:
        """Return the whole spec in the types of JSON; floats are exact.

        Raises:
            UnidentifiedError: If a setting, such as the user's own function, cannot be identified.
        """
        return {"name": self.name, **{key: _plain(value) for key, value in self.settings}}


def named(name: str, function: Callable[P, T]) -> Callable[P, T]:
    """Return your own function with a name, so that fedpd can identify it, and resume and deploy its runs.

    Use this for functions that fedpd cannot identify. Give different functions different names: with the same name, a
    run with one function would resume with the other.

    Examples:
        >>> from fedpd import named
        >>> step = named("warm-up", lambda r, q: 0.1)
        >>> step.spec.label()
        'warm-up()'
    """
    if not isinstance(name, str) or not name:
        refuse("name", name, "must be a text that is not empty", 'Give e.g. named("warm-up", step)')
    if not callable(function):
        refuse("function", function, f"must be a function, not {type(function).__name__}", "Give your own function")

    @functools.wraps(function)
    def same(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    same.spec = Spec(name)  # type: ignore[attr-defined]  # a function has the attributes it is given
    return same


def differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Yield a description of each difference between two plain specs, or trees of them."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**expected, **found}:
            yield from differences(found.get(key), expected.get(key), f"{place}.{key}" if place else str(key))
    elif found != expected:
        hashes = all(isinstance(one, str) and HASH.fullmatch(one) for one in (found, expected) if one is not None)
        yield f"{place} is another" if hashes else f"{place} is {_shown(found)}, not {_shown(expected)}"


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return " ".join(str(part)[:12] for pair in value.items() for part in pair)
    return repr(value)


def _canonical(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        return TRACED
    if _has_spec(value):
        return value.spec
    if isinstance(value, tuple | list) and value and all(_has_spec(one) for one in value):
        return tuple(one.spec for one in value)
    if isinstance(value, np.float64 | np.integer | np.bool_):
        return value.item()  # the same number as a Python type
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, Spec):
        return value
    if isinstance(value, tuple | list) and all(isinstance(one, bool | int | float | str) for one in value):
        return tuple(value)
    return Thing(np.array(value) if isinstance(value, list) else value)


def _has_spec(value: Any) -> bool:
    return isinstance(getattr(value, "spec", None), Spec)


def _same(one: Any, other: Any) -> bool:
    """Return whether two settings are equal, by a comparison that does not need a hash."""
    if isinstance(one, Thing) or isinstance(other, Thing):
        return isinstance(one, Thing) and isinstance(other, Thing) and one.value is other.value
    return (type(one) is type(other) and one == other) or (_is_number(one) and _is_number(other) and one == other)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _word(value: Any) -> str:
    if isinstance(value, Spec):
        return value.label() if value.settings else value.name
    if isinstance(value, Thing):
        return value.word()
    if isinstance(value, tuple) and any(isinstance(one, Spec) for one in value):
        return f"[{', '.join(map(_word, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Spec | Thing):
        return value.plain()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
