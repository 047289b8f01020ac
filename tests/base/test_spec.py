"""Specs are equal if and only if the settings are equal, to the last bit."""

import json
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd import algorithms, oracles, regularizers
from fedpd.base.identity import UnidentifiedError
from fedpd.base.spec import Spec, Thing, differences, named
from fedpd.base.value import Value, makes

numbers = st.floats(allow_nan=False) | st.integers()
plain_settings = st.dictionaries(st.sampled_from("abcdef"), numbers | st.booleans() | st.text() | st.none())


class Made(Value):
    step: Any
    iterations: Any
    inner: Any


@makes(Made)
def make(step: Any, iterations: Any = 8, *, inner: Any = None) -> Made:
    return Made(step=step, iterations=iterations, inner=inner)


@given(plain_settings)
def test_the_same_settings_are_the_same_spec(settings: dict[str, Any]) -> None:
    one, other = Spec.of("a", **settings), Spec.of("a", **dict(settings))
    assert one == other
    assert hash(one) == hash(other)
    assert one.plain() == other.plain()
    assert list(differences(one.plain(), other.plain())) == []
    assert one != Spec.of("b", **settings)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_count_to_the_last_bit(number: float) -> None:
    one, other = Spec.of("a", eta=number), Spec.of("a", eta=math.nextafter(number, math.inf))
    assert one != other
    assert one.plain() != other.plain()
    assert json.loads(json.dumps(one.plain())) == one.plain()


def test_a_label_rounds_and_a_spec_does_not() -> None:
    one, other = make(0.08).spec, make(0.0800000001).spec
    assert one.label() == other.label() == "make(step=0.08)"
    assert one != other
    assert list(differences(other.plain(), one.plain())) == ["step is 0.0800000001, not 0.08"]


def test_a_float_of_another_precision_is_another_setting() -> None:
    assert make(np.float32(0.1)).spec != make(0.1).spec
    assert make(np.float64(0.1)).spec == make(0.1).spec
    assert make(0.1, np.int64(3)).spec == make(0.1, 3).spec
    assert make(np.float32(0.1)).spec == make(jnp.float32(0.1)).spec
    assert make(np.float32(0.1)).spec.label() == make(jnp.float32(0.1)).spec.label() == "make(step=0.1)"


def test_arguments_by_place_by_name_and_by_default_are_the_same() -> None:
    spec = make(0.1).spec
    assert spec == make(0.1, 8).spec == make(iterations=8, step=0.1, inner=None).spec
    assert dict(spec.settings) == {"step": 0.1, "iterations": 8, "inner": None}
    assert spec.unusual() == {"step": 0.1}
    assert make(0.1, 9).spec.unusual() == {"step": 0.1, "iterations": 9}
    assert spec["iterations"] == 8


def test_a_spec_is_found_inside_others() -> None:
    spec = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.25, iterations=3), p=0.5).spec
    found = dict(spec.leaves())
    assert found[""] == "fedpd"
    assert found["eta"] == 0.5
    assert found["oracle"] == "gd"
    assert found["oracle.step"] == 0.25
    assert "gamma" not in found
    assert spec["oracle"] == oracles.gd(step=0.25, iterations=3).spec
    assert spec.label() == "fedpd(eta=0.5, oracle=gd(step=0.25, iterations=3), p=0.5)"
    assert spec.plain()["oracle"]["step"] == 0.25


def test_differences_name_the_place_and_both_values() -> None:
    one = algorithms.admm(eta=0.5, oracle=oracles.gd(0.25, 3), g=regularizers.l1(0.1)).spec.plain()
    other = algorithms.admm(eta=0.5, oracle=oracles.gd(0.2, 3)).spec.plain()
    found = list(differences(one, other))
    assert found[0] == "oracle.step is 0.25, not 0.2"
    assert found[1].startswith("g is {'name': 'l1', 'weight': 0.1}, not None")
    (digests,) = differences(Spec.of("a", w=np.ones(3)).plain(), Spec.of("a", w=np.zeros(3)).plain())
    assert digests.startswith("w.sha256 is ")


@given(st.lists(numbers, min_size=1), st.lists(numbers, min_size=1))
def test_lists_and_tuples_are_settings(one: list[float], other: list[float]) -> None:
    assert Spec.of("a", w=one) == Spec.of("a", w=tuple(one))
    assert (Spec.of("a", w=one) == Spec.of("a", w=other)) == (one == other)
    assert Spec.of("a", w=one).plain()["w"] == one


def test_arrays_are_the_same_by_their_bytes() -> None:
    array = np.arange(6.0).reshape(2, 3)
    one = Spec.of("a", w=array)
    assert one == Spec.of("a", w=array + 0)
    assert one == Spec.of("a", w=array.tolist())
    assert one != Spec.of("a", w=array.reshape(3, 2))
    assert one != Spec.of("a", w=array.astype(np.float32))
    assert one != Spec.of("a", w=array + 1e-15)
    assert hash(one) == hash(Spec.of("a", w=array + 0))
    assert one.label() == "a(w=2x3)"
    assert one["w"] is array


def test_functions_are_the_same_by_their_code() -> None:
    one, other = Thing(lambda x: x + 1), Thing(lambda x: x + 2)
    assert one == Thing(lambda x: x + 1)
    assert one != other
    assert one != one.value
    assert len({one, Thing(lambda x: x + 1), other}) == 2
    assert Spec.of("a", f=math.sqrt).label() == "a(f=sqrt)"


def test_what_cannot_be_identified_has_a_label_and_no_plain_form() -> None:
    spec = Spec.of("a", f=iter([]))
    assert spec.label() == "a(f=list_iterator)"
    assert spec == Spec("a", spec.settings)  # the same object
    with pytest.raises(UnidentifiedError, match=r"cannot be identified .*\. Give it a name"):
        spec.plain()


def test_a_name_identifies_a_function() -> None:
    unknown: Any = iter([])
    one, other = (named("warm-up", lambda r, q: (unknown, 0.1)) for _ in range(2))
    assert one(0, 0)[1] == 0.1
    assert oracles.gd(step=one, iterations=3).spec == oracles.gd(step=other, iterations=3).spec
    assert oracles.gd(step=one, iterations=3).spec != oracles.gd(step=named("other", one), iterations=3).spec
    assert oracles.gd(step=one, iterations=3).description == "gd(step=warm-up, iterations=3)"


def test_what_is_made_by_hand_is_identified_by_its_functions() -> None:
    def by_hand(name: str, function: Callable[[Any], Any]) -> Value:
        kind: type[Value] = type(name, (Value,), {"call": lambda self, x: function(x)})
        return kind()

    hand = by_hand("Hand", lambda x: x + 1)
    assert hand.spec == by_hand("Hand", lambda x: x + 1).spec
    assert hand.spec != by_hand("Hand", lambda x: x + 2).spec
    assert hand.spec != by_hand("Other", lambda x: x + 1).spec
    assert hand.spec.label() == "Hand()"


def test_traced_numbers_have_no_digits() -> None:
    labels = []

    def run(step: Any) -> Any:
        spec = make(step).spec
        labels.append((spec.label(), spec.plain()["step"]))
        return step

    jax.jit(run)(0.1)
    assert labels == [("make(step=a traced number)", "a traced number")]
