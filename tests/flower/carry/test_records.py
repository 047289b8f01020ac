"""Arrays arrive as they were sent, or are refused."""

from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_math import Vector

from fedpd.flower.carry.records import RefusedError, pack, unpack

leaves = st.sampled_from([np.ones(()), np.arange(3.0), np.zeros((2, 0)), np.eye(2, dtype=np.float32), np.arange(2)])
names = st.sampled_from(["a", "b", "a/b", "0", ""])
trees = st.recursive(
    leaves, lambda inner: st.dictionaries(names, inner, min_size=1) | st.tuples(inner, inner), max_leaves=4
)


@settings(max_examples=30)
@given(trees)
def test_a_pytree_arrives_as_it_was_sent(tree: Any) -> None:
    back = unpack(pack(Vector(tree)), Vector(tree), "message")
    kinds: list[Any] = [jax.tree.structure(one) for one in (back, Vector(tree))]
    assert kinds[0] == kinds[1]
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@given(st.binary(max_size=300))
def test_bytes_of_any_making_are_refused_and_nothing_else(data: bytes) -> None:
    record = ArrayRecord({"x": Array("float64", (3,), "numpy.ndarray", data)})
    with pytest.raises(RefusedError, match="message, x: is"):
        unpack(record, np.zeros(3), "message")


def test_names_are_those_of_the_model() -> None:
    model = {"dense": {"w": np.zeros(2)}, "b": np.zeros(())}
    assert sorted(pack(Vector(model))) == ["b", "dense/w"]
    assert sorted(pack((Vector(model), Vector(model)))) == ["0/b", "0/dense/w", "1/b", "1/dense/w"]
    assert list(pack(Vector(np.zeros(2)))) == ["x"]
    assert len(pack({"a/b": np.zeros(2), "a": {"b": np.zeros(2)}})) == 2
