"""Values as JSON and arrays: an exact round trip, and no class that is not known already."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tree_math import Vector

from fedpd import FedpdError
from fedpd.base.saved import pack, unpack
from fedpd.base.spec import Spec, Thing


class Layer(NamedTuple):
    weights: Any
    bias: Any = None


DTYPES = [np.dtype(name) for name in ("float64", "float32", "float16", "int32", "uint8", "bool", "complex64", ">f8")]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0)))
LEAVES = ARRAYS | st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(np.float32(0.1))
KEYS = st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, max_size=3)
    dicts = st.dictionaries(KEYS, inner, max_size=3)
    return few | few.map(tuple) | dicts | st.builds(Layer, inner, inner) | inner.map(Vector)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit, in all types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Vector):
        return same(one.tree, other.tree)
    return repr(one) == repr(other)


@given(st.recursive(LEAVES, containers, max_leaves=8))
@settings(max_examples=150, deadline=None)
def test_values_come_back_exactly(value: Any) -> None:
    plain, arrays = pack(value, "value")
    assert same(unpack(json.loads(json.dumps(plain)), arrays), value)


def test_bfloat16_and_device_arrays_come_back_as_numpy() -> None:
    value = {"half": jnp.arange(3, dtype=jnp.bfloat16)}
    plain, arrays = pack(value)
    half = unpack(plain, arrays)["half"]
    assert isinstance(half, np.ndarray)
    assert half.dtype == jnp.bfloat16
    assert half.tolist() == [0, 1, 2]


def test_specs_come_back_equal_even_with_functions_and_arrays() -> None:
    def own(r: int) -> float:
        return 1 / (r + 1)

    inner = Spec.of("gd", {"iterations": 8}, step=own, iterations=8)
    spec = Spec.of("method", eta=0.1, oracle=inner, mix=np.eye(2), names=("a", "b"), nothing=None)
    plain, arrays = pack(spec)
    found = unpack(json.loads(json.dumps(plain)), arrays)
    assert found == spec
    assert found.label() == spec.label()
    assert np.array_equal(found["mix"], np.eye(2))
    assert isinstance(dict(found["oracle"].settings)["step"], Thing)
    assert found != Spec.of("method", eta=0.1, oracle=inner, mix=np.ones(2), names=("a", "b"), nothing=None)


def test_a_pytree_of_another_kind_needs_one_like_it() -> None:
    model = OrderedDict(w=np.arange(2.0), b=np.float32(1))
    state = {"model": model, "dual": Vector(OrderedDict(w=np.ones(2), b=np.zeros(())))}
    plain, arrays = pack(state, "state", model)
    found = unpack(plain, arrays, like=model)
    assert jax.tree.structure(found) == jax.tree.structure(state)  # type: ignore[operator]
    assert found["dual"].tree["w"].tolist() == [1, 1]
    with pytest.raises(FedpdError, match=r"Give a model of the same structure, e\.g\. like=problem\.start"):
        unpack(plain, arrays)
    with pytest.raises(FedpdError, match=r"and like= has PyTreeDef\(\*\)"):
        unpack(plain, arrays, like=np.zeros(2))


def test_what_cannot_be_described_is_refused() -> None:
    class Local(NamedTuple):
        x: int

    values: dict[str, Any] = {
        r"tests.*Local\. Use dicts, lists, tuples, or NamedTuples that are defined at the top": Local(1),
        r"builtins:set\. Use dicts": {1, 2},
        r"collections:OrderedDict\. Use dicts": OrderedDict(a=1),
        r"a dict with the key \(1, 2\)\. Use texts or numbers as keys": {(1, 2): 3},
        r"an array of objects\. Use arrays of numbers": np.array([None]),
        r"an array of \[\('f0', '<f4'\), .*\. Use arrays of numbers": np.zeros(1, "f4,i4"),
        r"pathlib:\w+\. Use dicts": Path(),
    }
    for message, value in values.items():
        with pytest.raises(FedpdError, match=rf"\['value'\]: fedpd cannot save {message}"):
            pack({"value": value})


@pytest.mark.parametrize("name", ["subprocess:Popen", "not_imported_by_anyone:Layer", "fedpd.nothing:Run", "os:path"])
def test_no_class_is_made_that_is_not_a_plain_record(name: str) -> None:
    with pytest.raises(FedpdError, match=f"needs the class {name}"):
        unpack({"class": name, "fields": {"args": "true"}}, {})


def test_a_class_with_other_fields_is_refused() -> None:
    plain, arrays = pack(Layer(1, 2))
    plain["fields"]["more"] = 3
    with pytest.raises(FedpdError, match="fields of Layer have changed"):
        unpack(plain, arrays)


NEWEST = ("broadcasts", "rounds", "model")


@pytest.mark.parametrize(
    ("old", "now", "fields"),
    [
        ("fedpd.algorithms._descent:Descent", "fedpd.algorithms._memory", ("search", "least", "waited", "on", "base")),
        (
            "fedpd.algorithms._automatic:Observed",
            "fedpd.algorithms._corrected",
            ("distance", "mean_change", "spread", "curvature"),
        ),
        ("fedpd.algorithms._averaging:Agent", "fedpd.algorithms.fedavg", ("x", "memory")),
        ("fedpd.algorithms._changes:Agent", "fedpd.algorithms.fednova", ("x", "change", "number", "memory")),
        ("fedpd.algorithms._memory_agents:Outcome", "fedpd.algorithms._memory_parts", ("x", "dual", "value")),
        ("fedpd.engine.backends.cohort_rounds:Newest", "fedpd.engine.backends.compiled", NEWEST),
        ("fedpd.engine.clock.events:Working", "fedpd.engine.clock", ("agent", "newest")),
        ("fedpd.engine.measure.divergence:Divergence", "fedpd.engine.measure.history", ("round", "message")),
        ("fedpd.transforms._weighted:Agent", "fedpd.transforms._means", ("inner", "weight")),
    ],
)
def test_a_result_saved_before_its_class_moved_can_be_read(old: str, now: str, fields: tuple[str, ...]) -> None:
    made = unpack({"class": old, "fields": dict.fromkeys(fields, 1)}, {})
    assert (type(made).__module__, made._fields) == (now, fields)
