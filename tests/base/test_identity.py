"""Fingerprints: the same for the same values in every process, different for any others, or refused."""

import cmath
import copy
import functools
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd import networks, oracles, regularizers
from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.spec import Spec

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
)


@dataclass
class Scale:
    by: Any

    def __call__(self, x: Any) -> Any:
        return self.by * x

    def inverse(self, x: Any) -> Any:
        return x / self.by


class Colour(Enum):
    RED = 1
    BLUE = 2


def add(x: float, y: float = 1.0, *, z: float = 2.0) -> float:
    return x + y + z


def scale_with(by: Any) -> Callable[[Any], Any]:
    return lambda x: by * x


def with_global(**names: Any) -> Callable[[Any], Any]:
    """Return a function that names two globals."""
    scope: dict[str, Any] = {"offset": 0.0, "factor": 1.0, "unused": 0.0, **names}
    exec("def line(x): return offset + factor * x", scope)
    return scope["line"]


def class_with(rate: float) -> Any:
    class Step:
        constant = rate

        def __call__(self, r: Any) -> Any:
            return self.constant / (r + 1)

    return Step()


def class_with_table(rate: float) -> Any:
    class Step:
        table = {"rate": rate}  # noqa: RUF012

        def __call__(self, r: Any) -> Any:
            return self.table["rate"] / (r + 1)

    return Step()


class Slots:
    __slots__ = ("__dict__", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate


def with_attribute(rate: float) -> Callable[[Any], Any]:
    def step(r: Any) -> Any:
        return step.rate / (r + 1)  # type: ignore[attr-defined]

    step.rate = rate  # type: ignore[attr-defined]
    return step


def with_backward(factor: float) -> Any:
    function = jax.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, None), lambda _, slope: (factor * slope,))
    return function


def reading(notes: list[float]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        notes.append(1.0)
        return notes[0] * x

    return function


class Pair(NamedTuple):
    first: float
    second: Any = None

    @functools.cached_property
    def both(self) -> tuple[float, Any]:
        return self.first, self.second


def guarded(wide: bool) -> Callable[[Any], Any]:
    """Return one of two functions with the same steps, inside and outside of `try`."""
    before = "    y = f(x)\n    try: z = g(y)\n" if not wide else "    try: y = f(x); z = g(y)\n"
    scope: dict[str, Any] = {}
    exec(f"def run(f, g, x):\n{before}    except ValueError: z = 0\n    return z", scope)
    return scope["run"]


@given(values)
def test_the_same_value_has_the_same_fingerprint(value: Any) -> None:
    assert fingerprint(value) == fingerprint(copy.deepcopy(value))


@given(values, values)
def test_other_values_have_other_fingerprints(one: Any, other: Any) -> None:
    assert (fingerprint(one) == fingerprint(other)) == (repr(_sorted(one)) == repr(_sorted(other)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return type(value)(map(_sorted, value)) if isinstance(value, list | tuple) else value


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "a constant": (lambda x: x + 1, lambda x: x + 2),
    "the type of a constant": (lambda x: x + 1, lambda x: x + 1.0),
    "the sign of zero": (lambda x: 0.0, lambda x: -0.0),
    "a captured value": (scale_with(0.08), scale_with(0.0800000001)),
    "a captured array": (scale_with(np.zeros(3)), scale_with(np.eye(3)[0])),
    "a captured function": (scale_with(lambda x: x), scale_with(lambda x: -x)),
    "a global": (with_global(offset=1.0), with_global(offset=2.0)),
    "a second global": (with_global(factor=1.5), with_global(factor=2.5)),
    "a default": (lambda x, y=1: x + y, lambda x, y=2: x + y),
    "a default by name": (lambda x, *, y=1: x + y, lambda x, *, y=2: x + y),
    "an operation": (lambda x: x + 1, lambda x: x - 1),
    "what is guarded": (guarded(True), guarded(False)),
    "an argument of a partial": (functools.partial(add, y=1.0), functools.partial(add, y=2.0)),
    "the function of a partial": (functools.partial(add, 1.0), functools.partial(math.atan2, 1.0)),
    "the object of a method": (Scale(1.0).inverse, Scale(2.0).inverse),
    "a method": (Scale(1.0).inverse, Scale(1.0).__call__),
    "a function in jit": (jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2)),
    "a setting of an optimiser": (optax.adam(0.1), optax.adam(0.1000001)),
    "a second setting": (optax.sgd(0.1, momentum=0.9), optax.sgd(0.1, momentum=0.8)),
    "an optimiser": (optax.adam(0.1), optax.rmsprop(0.1)),
    "the width of a layer": (nn.Dense(3), nn.Dense(4)),
    "a layer": (nn.Sequential([nn.Dense(3), nn.relu]), nn.Sequential([nn.Dense(3), nn.tanh])),
    "a field of a dataclass": (Scale(1), Scale(2)),
    "a field of a second dataclass": ([Scale(1), Scale(2), Scale(3)], [Scale(1), Scale(2), Scale(4)]),
    "a constant of a class": (class_with(0.1), class_with(0.2)),
    "a dict of a class": (class_with_table(0.1), class_with_table(0.2)),
    "a slot": (Slots(0.1), Slots(0.2)),
    "an attribute of a function": (with_attribute(0.1), with_attribute(0.2)),
    "the gradient of a function": (with_backward(1.0), with_backward(2.0)),
    "a list that a function appends to and reads": (reading([1.0]), reading([2.0])),
    "a mask": (np.ma.masked_equal([1, 2], 1), np.ma.masked_equal([1, 2], 2)),
    "a member of an enumeration": (Colour.RED, Colour.BLUE),
    "the module of a built-in": (math.sin, cmath.sin),
    "the object of a built-in": ([1].count, [2].count),
    "one bit of an array": (np.zeros(4), np.nextafter(np.zeros(4), 1)),
    "the type of an array": (np.zeros(4, np.float32), np.zeros(4, np.int32)),
    "the shape of an array": (np.zeros((2, 3)), np.zeros((3, 2))),
    "a key": (jax.random.key(0), jax.random.key(1)),
    "the depth of a list": ([[1], 2], [1, [2]]),
    "a list and a tuple": ([1], (1,)),
    "a weight of a regulariser": (regularizers.l1(0.1), regularizers.l1(0.2)),
    "a step of an oracle": (oracles.gd(0.1, 3), oracles.gd(0.1 + 1e-12, 3)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_difference_is_enough(what: str) -> None:
    one, other = DIFFERENT[what]
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(("library", "kind"), [("torch", "tensor"), ("pandas", "Series")])
def test_numbers_of_other_libraries_count(library: str, kind: str) -> None:
    make = getattr(pytest.importorskip(library), kind)
    assert fingerprint(make([1.0, 2.0])) == fingerprint(make([1.0, 2.0])) != fingerprint(make([1.0, 3.0]))


SAME: dict[str, Callable[[], Any]] = {
    "a lambda": lambda: lambda x: x + 1,
    "a closure": lambda: scale_with(np.arange(3.0)),
    "a function with globals": lambda: with_global(factor=2.0),
    "a partial": lambda: functools.partial(add, 1.0, z=3.0),
    "a bound method": lambda: Scale(2.0).inverse,
    "a function in jit": lambda: jax.jit(scale_with(2.0)),
    "an optimiser": lambda: optax.chain(optax.clip(1.0), optax.adam(optax.exponential_decay(0.1, 10, 0.9))),
    "a network": lambda: nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]),
    "a network of ours": lambda: networks.MLP(classes=3),
    "a class": lambda: class_with(0.1),
    "a tuple with names": lambda: Pair(1.0, lambda x: x),
    "a function with a logger": lambda: scale_with(logging.getLogger("own")),
    "a set": lambda: {"b", "a", "c"},
    "a mapping": lambda: {"a": [1.0], "b": Scale(np.float32(1))},
    "a path": lambda: Path("a/b"),
    "a regulariser": lambda: regularizers.l1(0.1),
    "an oracle": lambda: oracles.optax(optax.adam(0.1), iterations=3),
}


@pytest.mark.parametrize("what", SAME)
def test_what_is_made_twice_is_the_same(what: str) -> None:
    assert fingerprint(SAME[what]()) == fingerprint(SAME[what]())


def test_a_global_that_is_not_named_does_not_count() -> None:
    assert fingerprint(with_global(unused=1.0)) == fingerprint(with_global(unused=2.0))


def test_order_counts_in_lists_and_not_in_mappings() -> None:
    assert fingerprint([1, 2]) != fingerprint([2, 1])
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_one_object_twice_is_two_equal_objects() -> None:
    shared = [1.0, 2.0]
    assert fingerprint([shared, shared]) == fingerprint([[1.0, 2.0], [1.0, 2.0]])


@given(st.lists(st.integers(), min_size=2, unique=True), st.data())
def test_many_small_objects_have_different_fingerprints(numbers: list[int], data: st.DataObject) -> None:
    """Python reuses the id of a deleted object; two such objects must not count as the same."""
    place = data.draw(st.integers(0, len(numbers) - 1))
    changed = [number + (i == place) for i, number in enumerate(numbers)]
    assert fingerprint([Scale(n) for n in numbers]) != fingerprint([Scale(n) for n in changed])


def test_arrays_are_their_bytes_wherever_they_lie() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert fingerprint(array) == fingerprint(jnp.asarray(array)) == fingerprint(np.asfortranarray(array))
    assert fingerprint(array[:, ::2]) == fingerprint(array[:, ::2].copy())
    assert fingerprint(np.float32(1)) == fingerprint(jnp.float32(1)) != fingerprint(1.0)


def test_cycles_end() -> None:
    def cycle(last: Any) -> list[Any]:
        made: list[Any] = [1, last]
        made.append(made)
        return made

    def factorial() -> Callable[[int], int]:
        def itself(n: int) -> int:
            return 1 if n < 1 else n * itself(n - 1)

        return itself

    assert fingerprint(cycle(2)) == fingerprint(cycle(2)) != fingerprint(cycle(3))
    assert fingerprint(factorial()) == fingerprint(factorial())


UNKNOWN: dict[str, Callable[[], Any]] = {
    "an iterator": lambda: iter([1]),
    "a generator": lambda: (i for i in range(3)),
    "an object without contents": object,
    "an open file": lambda: sys.stdout.buffer,
    "a generator of random numbers": lambda: np.random.default_rng(0),
    "its method": lambda: np.random.default_rng(0).normal,
    "an array of objects": lambda: np.array([object()]),
    "a function that captures one": lambda: scale_with(iter([1])),
    "a partial of one": lambda: functools.partial(scale_with, iter([1])),
    "a field that is one": lambda: Scale(iter([1])),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_identified_is_refused_with_a_sentence(what: str) -> None:
    with pytest.raises(UnidentifiedError, match=r"cannot be identified.*\. Give .*\.$"):
        fingerprint(UNKNOWN[what]())


def test_another_process_finds_the_same() -> None:
    program = (
        "from tests.base.test_identity import SAME; from fedpd.base.identity import fingerprint;"
        "print(*(fingerprint(make()) for make in SAME.values()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert dict(zip(SAME, found.stdout.split(), strict=True)) == {k: fingerprint(make()) for k, make in SAME.items()}


SETTINGS = {"weight": 1.0}
CALLS: list[int] = []


def weighted(x: Any) -> Any:
    CALLS.append(1)
    return jnp.add(x, SETTINGS["weight"])


def test_what_a_function_changes_itself_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the list that it appends to is left out; a method name such as `add` does not exclude other values."""
    before = fingerprint(weighted)
    CALLS.append(1)
    assert fingerprint(weighted) == before
    monkeypatch.setitem(SETTINGS, "weight", 2.0)
    assert fingerprint(weighted) != before


def test_notes_in_a_closure_are_not_a_setting() -> None:
    def make(scale: list[float]) -> tuple[Any, list[int]]:
        notes: list[int] = []

        def function(x: Any) -> Any:
            notes.append(1)
            return jnp.add(x, scale[0])

        return function, notes

    function, notes = make([1.0])
    before = fingerprint(function)
    notes.append(1)
    assert fingerprint(function) == before
    assert fingerprint(make([2.0])[0]) != before


def test_a_setting_in_a_module_of_the_users_own_counts() -> None:
    settings = ModuleType("settings_of_a_test")
    settings.inner = ModuleType("settings_of_a_test.inner")  # type: ignore[attr-defined]

    def step(x: float) -> float:
        return settings.rate * x + settings.inner.shift

    def identified(**values: float) -> str:
        settings.rate, settings.unused = values["rate"], values["unused"]  # type: ignore[attr-defined]
        settings.inner.shift = values["shift"]
        return fingerprint(step)

    usual = {"rate": 0.1, "unused": 0.0, "shift": 1.0}
    assert identified(**usual) == identified(**usual | {"unused": 2.0})
    assert identified(**usual) != identified(**usual | {"rate": 0.2})
    assert identified(**usual) != identified(**usual | {"shift": 2.0})


def test_a_function_of_vmap_is_identified_by_the_function_inside() -> None:
    def mapped(c: float) -> str:
        return fingerprint(jax.vmap(lambda x, row: (row @ x - c) ** 2, (None, 0)))

    assert mapped(1.0) == mapped(1.0) != mapped(2.0)


WORD = 1.0


def test_an_attribute_with_the_name_of_a_global_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads_an_attribute(settings: Any) -> Any:
        return settings.WORD

    before = fingerprint(reads_an_attribute)
    monkeypatch.setitem(globals(), "WORD", 2.0)
    assert fingerprint(reads_an_attribute) == before
    assert fingerprint(lambda: WORD) != before


class HoldsItself:
    """Its identity is computed on its own, as that of a module of PyTorch, whose code uses this object."""

    @property
    def spec(self) -> Spec:
        return Spec("module", (("parts", fingerprint(self.use)),))

    @staticmethod
    def use() -> Any:
        return HOLDER


HOLDER = HoldsItself()


def test_a_function_that_uses_what_holds_it_is_refused_with_a_sentence() -> None:
    with pytest.raises(UnidentifiedError, match="Give the function what it needs as an argument"):
        fingerprint(HOLDER)


def test_structures_of_pytrees_are_identified_by_their_form() -> None:
    one, same, other = (
        jax.tree.structure(tree) for tree in ({"a": 0, "b": [1]}, {"a": 5, "b": [2]}, {"a": [0], "b": 1})
    )
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
