"""Separate the numbers of a method from its structure, which selects a compiled program.

`split(fedpd(eta=0.08, oracle=gd(step=0.1, iterations=8)))` returns a `Structure` and {"eta": 0.08, "oracle.step": 0.1}.
A structure is hashable and selects a compiled program. The program takes the numbers as arguments, so another step size
runs the same program.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np

from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.spec import Made, Spec

Numbers = dict[str, float]


class Open:
    """Marks the place of a number."""


OPEN = Open()


@dataclass(frozen=True)
class Fixed:
    """An argument that is part of the structure.

    Attributes:
        key: A value that is equal for equal arguments only.
        value: The argument itself.
    """

    key: Any
    value: Any = field(compare=False)


@dataclass(frozen=True)
class Structure:
    """A call of a factory with places for its numbers.

    Attributes:
        factory: The factory, a `Fixed` callable.
        arguments: Each argument by name: `OPEN`, a `Structure` of something that another factory made, or `Fixed`.
    """

    factory: Fixed
    arguments: tuple[tuple[str, Any], ...]

    def __call__(self, **numbers: Any) -> Any:
        """Return the result of the factory with these numbers, which may be traced."""
        return self._call(numbers, "")

    def _call(self, numbers: Mapping[str, Any], place: str) -> Any:
        factory = self.factory.value
        chosen: dict[str, Any] = {}
        for name, part in self.arguments:
            if part is OPEN:
                chosen[name] = numbers[place + name]
            else:
                chosen[name] = part._call(numbers, f"{place}{name}.") if isinstance(part, Structure) else part.value
        bound = inspect.BoundArguments(inspect.signature(factory), chosen)
        return factory(*bound.args, **bound.kwargs)


def split(made: Any, part: Callable[[Any], Any] = lambda whole: whole) -> tuple[Structure, Numbers] | None:
    """Return the structure and the numbers of an object that a factory made.

    Numbers are the finite floats other than 0 among the arguments of `@specified` factories. 0 and infinity belong to
    the structure, because they often switch something off. So do integers, which count steps or samples and shape the
    program, unless the factory asks for a float.

    Args:
        made: A method, an oracle, a schedule or a regulariser.
        part: Finds `made` in the factory's result, if it is only a part of it.

    Returns:
        The structure of the factory's result, and the numbers by their place. None if no factory made the object, if it
        was changed afterwards, or if it holds a function that cannot be identified.
    """
    call = _call_of(made, part)
    if call is None:
        return None
    try:
        return _split(call, "")
    except UnidentifiedError:
        return None


def _call_of(made: Any, part: Callable[[Any], Any] = lambda whole: whole) -> Made | None:
    """Return the call that made this object; None if the object differs from the factory's result."""
    spec = getattr(made, "spec", None)
    if not isinstance(spec, Spec) or spec.made is None or not _same(part(spec.made.result), made):
        return None
    return spec.made


def _same(one: Any, other: Any) -> bool:
    """Return whether two results are the same apart from their specs: a `_replace`d part makes another method."""
    if one is other:
        return True
    if type(one) is not type(other) or not hasattr(one, "_fields"):
        return False
    return all(_same(getattr(one, name), getattr(other, name)) for name in one._fields if name != "spec")


def _split(call: Made, place: str) -> tuple[Structure, Numbers]:
    numbers: Numbers = {}
    parts: list[tuple[str, Any]] = []
    parameters = call.arguments.signature.parameters
    for name, value in call.arguments.arguments.items():
        inner = _call_of(value)
        if inner is not None:
            part, more = _split(inner, f"{place}{name}.")
            numbers |= more
            parts.append((name, part))
        elif _is_open(value, parameters[name].annotation):
            numbers[place + name] = float(value)
            parts.append((name, OPEN))
        else:
            parts.append((name, _fixed(value)))
    return Structure(_factory(call.factory), tuple(parts)), numbers


def _is_open(value: Any, annotation: Any) -> bool:
    if isinstance(value, jax.core.Tracer):
        raise UnidentifiedError("a traced number has no digits. Give the number itself.")
    if isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and np.issubdtype(value.dtype, np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    if isinstance(value, Integral) and "float" not in str(annotation):
        return False
    return value != 0 and math.isfinite(value)


def _factory(factory: Callable[..., Any]) -> Fixed:
    """Return a factory with its key. For a user's own factory, the key changes with the values that it captures."""
    own = (factory.__module__ or "").partition(".")[0] == "fedpd"
    return Fixed((id(factory), "" if own else fingerprint(inspect.unwrap(factory))), factory)


def _fixed(value: Any) -> Fixed:
    if value is None or type(value) in (bool, int, float, str):
        return Fixed((type(value), value), value)
    if not isinstance(getattr(value, "spec", None), Spec):
        return Fixed(fingerprint(value), value)
    # Two objects that were made by hand may share a name. They are equal only if their functions are.
    spec = value.spec
    parts = [part for part in value if part is not spec] if isinstance(value, tuple) else inspect.unwrap(value)
    return Fixed(fingerprint(parts), value)
