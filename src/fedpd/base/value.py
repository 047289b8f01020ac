"""Values: methods, oracles, schedules, regularisers and transforms are frozen dataclasses that are JAX pytrees.

A field that holds a number (a finite float other than 0) or another value is a leaf of the pytree; every other field is
static. So a compiled program that takes a value as an argument runs with any numbers, a sweep is `jax.vmap` over the
leaves, and a value is changed by `changed`, which checks as the factory does, or unchecked by `dataclasses.replace`.
0 and infinity are static because they often switch something off, and integers because they count steps or samples and
shape the program.

A public factory checks its arguments and chooses the class; `@makes(A, B)` names the classes it may return. The name of
the factory and its arguments are the identity of a value (`Value.spec`): its label, its table in an experiment file and
the check of a checkpoint are read off them.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, ParamSpec, Self, TypeVar, dataclass_transform

import jax
import numpy as np

from fedpd.base.arrays import copied
from fedpd.base.checks import nearest, refuse
from fedpd.base.identity import content_hash
from fedpd.base.spec import Spec
from fedpd.base.typed import call_explained

P = ParamSpec("P")
T = TypeVar("T")
LARGEST = 2**31 - 1  # of the integers of a method: compiled programs count in 32 bits


@dataclasses.dataclass(frozen=True)
class Static:
    """A static field: equal to another if their keys are, so that equal functions share a compiled program."""

    key: Any
    value: Any = dataclasses.field(compare=False)


def attribute(usual: Any) -> Any:
    """Return the value of a class attribute that a subclass may also have as a field or a property."""
    return usual


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Value:
    """The base class of frozen dataclasses that are pytrees. A subclass lists its fields, as a dataclass does.

    Attributes:
        factory: The function that makes it; the class itself, if no function has `@makes` for the class.
        prefix: What comes before the factory's name, where two factories have the same one.
        counts: The names of fields with integers, or dicts of numbers, that a sweep may trace: they shape nothing.
        shapes: The names of floats that are static, because they shape the program.
    """

    factory: ClassVar[Callable[..., Any] | None] = None
    prefix: ClassVar[str] = ""
    counts: ClassVar[tuple[str, ...]] = ()
    shapes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_fields(cls)
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten)

    def __post_init__(self) -> None:
        numbers = []
        for field in dataclasses.fields(self):
            value = _canonical(getattr(self, field.name), str(field.type))
            object.__setattr__(self, field.name, value)
            if _is_leaf(value) and field.name not in self.shapes:
                numbers.append(field.name)
        object.__setattr__(self, "_leaves", tuple(numbers))

    @property
    def spec(self) -> Spec:
        """The name of the factory and all its arguments; of a class of the user's own, also its code."""
        own = self.__dict__.get("_named")
        if own is not None:
            return own
        factory = _factory(type(self))
        parameters = inspect.signature(factory).parameters
        settings = {name: getattr(self, name, one.default) for name, one in parameters.items()}
        usual = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
        more = {field.name: field.default for field in dataclasses.fields(self) if field.name not in parameters}
        settings |= {name: getattr(self, name) for name, one in more.items() if _differ(getattr(self, name), one)}
        spec = Spec.of(self.prefix + factory.__name__, usual, **settings)
        return spec.with_code(type(self)) if isinstance(factory, type) else spec

    @property
    def name(self) -> str:
        own = self.__dict__.get("_named")
        return self.prefix + _factory(type(self)).__name__ if own is None else own.name

    @property
    def description(self) -> str:
        """The factory's name and the arguments that are not at their default, for labels and messages."""
        return self.spec.label()

    def __repr__(self) -> str:
        return self.description

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.spec == other.spec)

    def __hash__(self) -> int:
        return hash((type(self), self.spec))

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Any:
        """Return what the factory makes of the same arguments with changes, which it checks.

        Args:
            changes: New values by name. A dot leads into a part: "oracle.batch", "oracle.optimizer.learning_rate".
            within: The names with dots that led to this value, for messages.

        Raises:
            FedpdError: There is no such setting, or the part is not a value.
        """
        factory = _factory(type(self))
        parameters = inspect.signature(factory).parameters
        arguments = {name: getattr(self, name, one.default) for name, one in parameters.items()}
        inner: dict[str, dict[str, Any]] = {}
        for path, value in changes.items():
            name, dot, rest = path.partition(".")
            if name not in arguments:
                refuse("setting", within + path, f"{self.name} has no setting {name!r}", nearest(name, arguments))
            if dot:
                inner.setdefault(name, {})[rest] = value
            else:
                arguments[name] = value
        for name, own in inner.items():
            part = arguments[name]
            if not isinstance(part, Value):
                rule = f"has no setting {next(iter(own))!r}: it is not made by a function of fedpd"
                refuse(within + name, part, rule, "Give a function that makes it, e.g. lambda eta: my_method(eta=eta)")
            arguments[name] = part.changed(own, f"{within}{name}.")
        return factory(**arguments)

    def needs(self, function: str) -> NoReturn:
        """Refuse a class that lacks a function, given as "solve(self, phi, x, memory, r, key)"."""
        rule = f"its class has no function {function}"
        refuse("class", type(self).__name__, rule, "Write it; docs/guide/skeleton.py is an example")

    def called(self, spec: Spec) -> Self:
        """Return the same value under the name by which the user's own code made it."""
        same = _unflatten(type(self), *reversed(_flatten(self)))
        object.__setattr__(same, "_named", spec)
        return same


def _check_fields(kind: type[Value]) -> None:
    """Refuse a field that has the name of a function, and let one with the name of an attribute have no default."""
    for name, annotation in inspect.get_annotations(kind).items():
        owner = next((one for one in kind.__mro__[1:] if name in one.__dict__), None)
        if owner is None or "ClassVar" in str(annotation) or name in kind.__dict__:
            continue
        inherited = owner.__dict__[name]
        if callable(inherited) or isinstance(inherited, property):
            refuse("field", name, f"{kind.__name__} inherits a function of this name", "Give the field another name")
        if name not in getattr(owner, "__dataclass_fields__", {}):
            setattr(kind, name, dataclasses.field())


def _differ(one: Any, other: Any) -> bool:
    return one is not other and not np.array_equal(np.asarray(one, object), np.asarray(other, object))


def _factory(kind: type[Value]) -> Callable[..., Any]:
    """Return what makes a class. A user's own subclass of a class of fedpd is made by itself, not by the factory."""
    return kind.__dict__.get("factory") or kind


def makes(*classes: type[Value]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare that a function makes values of these classes. A wrong argument is then explained in a sentence.

    Each argument of the function is a field or an attribute of the classes, or has its default there.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> T:
            made = call_explained(function, LARGEST, *args, **kwargs)
            if isinstance(made, classes) and not function.__module__.startswith("fedpd."):
                _check_kept(made, inspect.signature(function).bind(*args, **kwargs))
            return made

        for one in classes:
            one.factory = make
        return make

    return decorate


def _check_kept(made: Value, given: inspect.BoundArguments) -> None:
    """Refuse a user's factory whose arguments are not what the value holds: labels, files and sweeps would be wrong."""
    for name, value in given.arguments.items():
        held = getattr(made, name, given.signature.parameters[name].default)
        if _differ(_canonical(value, "float" if isinstance(held, float) else ""), held):
            rule = (
                f"is not {held!r}, its value in {type(made).__name__}, so that labels, files and sweeps would be wrong"
            )
            refuse(name, value, rule, f"Store it as it is in a field {name}, and compute with it in the functions")


def parts_of(value: Value) -> list["Value"]:
    """Return a value and all values in it."""
    found = [value]
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        several = held.values() if isinstance(held, dict) else held if isinstance(held, tuple) else (held,)
        for one in several:
            found += parts_of(one) if isinstance(one, Value) else []
    return found


def fresh(value: T) -> T:
    """Return an equal value that is hashed anew: a function in it may have changed since it was hashed.

    With the old hash, its new program would be found by another method, whose function is as this one was before.
    """
    return _relabelled(value, lambda one, name: True)


def constant(value: T) -> T:
    """Return a value whose numbers are static, for code that needs to look at them while JAX traces."""
    return _relabelled(value, lambda one, name: isinstance(getattr(one, name), Value | tuple))


def with_counts(value: Any) -> Any:
    """Return a value whose `counts` are leaves, too."""
    if isinstance(value, tuple):
        return tuple(map(with_counts, value))
    if not isinstance(value, Value):
        return value
    more = [name for name in value.counts if isinstance(getattr(value, name), int | dict)]
    return _rebuilt(value, with_counts, (*_leaves(value), *more))


def constant_where_equal(values: Sequence[T]) -> list[T]:
    """Return values of one structure, in which the numbers that all of them share are static."""
    leaves = [jax.tree.leaves(value) for value in values]
    equal = [all(one == column[0] for one in column) for column in zip(*leaves, strict=True)]
    return [_with_static(value, iter(equal)) for value in values]


def stacked(values: Sequence[T]) -> T:
    """Return values of one structure as one value, whose leaves have an axis of values."""
    return jax.tree.map(_column, *values)


def _column(*leaves: Any) -> np.ndarray:
    column = np.array(leaves)
    return column.astype(np.int32) if np.issubdtype(column.dtype, np.integer) else column


def _with_static(value: Any, equal: Any) -> Any:
    """Return a value without the leaves for which the iterator `equal` says so; it has one entry per leaf, in order."""
    if isinstance(value, tuple):
        return tuple(_with_static(one, equal) for one in value)
    kept, inner = [], {}
    for name in _leaves(value):
        held = getattr(value, name)
        if isinstance(held, Value | tuple):
            inner[name] = _with_static(held, equal)
            kept.append(name)
        else:
            shared = [next(equal) for _ in jax.tree.leaves(held)]
            kept += [] if all(shared) else [name]
    return _rebuilt(value, lambda held: held, tuple(kept), inner)


def _relabelled(value: Any, keeps: Callable[[Value, str], bool]) -> Any:
    if isinstance(value, tuple):
        return tuple(_relabelled(one, keeps) for one in value)
    if not isinstance(value, Value):
        return value
    names = tuple(name for name in _leaves(value) if keeps(value, name))
    return _rebuilt(value, lambda held: _relabelled(held, keeps), names)


def _rebuilt(
    value: Value, change: Callable[[Any], Any], leaves: tuple[str, ...], inner: dict[str, Any] | None = None
) -> Any:
    """Return a copy with other leaves, in which values are replaced by `change`, or by those of `inner`."""
    same = object.__new__(type(value))
    for name, held in vars(value).items():
        if name in _leaves(value) and isinstance(held, Value | tuple):
            held = change(held)
        if name != "_static":
            object.__setattr__(same, name, held if inner is None else inner.get(name, held))
    object.__setattr__(same, "_leaves", leaves)
    return same


def _leaves(value: Value) -> tuple[str, ...]:
    if "_leaves" not in value.__dict__:  # a class of the user's own made it without Value.__post_init__
        Value.__post_init__(value)
    return value.__dict__["_leaves"]


def _canonical(value: Any, annotation: str) -> Any:
    """Return a field: arrays in memory of their own, lists of values as tuples, and numbers as Python's."""
    if isinstance(value, jax.core.Tracer):
        return value
    if isinstance(value, list) and value and all(isinstance(one, Value) for one in value):
        return tuple(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array) and value.ndim == 0 and value.dtype.kind in "fiub":
        value = value.item()
    if type(value) is int and "float" in annotation:
        return float(value)
    return copied(value)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, Value | jax.core.Tracer):
        return True
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(one, Value) for one in value)
    return isinstance(value, float) and value != 0 and math.isfinite(value)


def _flatten(value: Value) -> tuple[tuple[Any, ...], Any]:
    names = _leaves(value)
    return tuple(getattr(value, name) for name in names), (names, _static(value))


def _flatten_with_keys(value: Value) -> tuple[list[tuple[Any, Any]], Any]:
    names = _leaves(value)
    return [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in names], (names, _static(value))


def _unflatten(kind: type[Value], about: Any, leaves: Any) -> Any:
    """Return a value without the checks of its class: leaves may be tracers, shapes or anything that JAX puts there."""
    names, static = about
    made = object.__new__(kind)
    for name, leaf in zip(names, leaves, strict=True):
        object.__setattr__(made, name, leaf)
    for name, one in static:
        object.__setattr__(made, name, one.value)
    object.__setattr__(made, "_leaves", names)
    object.__setattr__(made, "_static", static)
    return made


def _static(value: Value) -> tuple[tuple[str, Static], ...]:
    """Return the static fields, which are hashed once; a run begins with a `fresh` value."""
    found = value.__dict__.get("_static")
    if found is None:
        names = [field.name for field in dataclasses.fields(value) if field.name not in _leaves(value)]
        found = tuple((name, Static(_key(getattr(value, name)), getattr(value, name))) for name in names)
        object.__setattr__(value, "_static", found)
    return found


def _key(value: Any) -> Any:
    """Return something that is equal for equal settings only: the content of a function or an array."""
    if value is None or type(value) in (bool, int, float, str):
        return type(value), value
    if isinstance(value, Value):
        return value
    return content_hash(value)
