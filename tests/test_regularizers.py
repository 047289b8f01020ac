"""prox(x, t) minimises g(u) + ||u - x||^2/(2t)."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tree_math import Vector

from fedpd import FedpdError, regularizers
from fedpd.base.precision import scope

ALL = [regularizers.l1(0.4), regularizers.l2(2.0), regularizers.box(-0.5, 1.0), regularizers.group_l1(0.7)]
entries = arrays(np.float64, 3, elements=st.floats(-3, 3))


@settings(deadline=None, max_examples=40)
@given(x=entries, move=entries, t=st.floats(0.1, 3), g=st.sampled_from(ALL))
def test_no_other_point_is_better_than_the_prox(
    x: np.ndarray, move: np.ndarray, t: float, g: regularizers.Regularizer
) -> None:
    with scope(True):
        start = Vector({"a": jnp.asarray(x)})

        def objective(u: Vector) -> float:
            return float(g.value(u) + (u - start) @ (u - start) / (2 * t))

        best = g.prox(start, t)
        assert objective(best) <= objective(best + 0.1 * Vector({"a": jnp.asarray(move)})) + 1e-12


def test_by_hand() -> None:
    x = Vector(jnp.array([3.0, -0.2, 4.0]))
    assert np.allclose(regularizers.l1(1.0).prox(x, 0.5).tree, [2.5, 0, 3.5])
    assert np.allclose(regularizers.l2(1.0).prox(x, 1.0).tree, [1.5, -0.1, 2.0])
    assert np.allclose(regularizers.box(0.0, 3.5).prox(x, 9.0).tree, [3, 0, 3.5])
    pair = Vector(jnp.array([3.0, 4.0]))
    assert np.allclose(regularizers.group_l1(1.0).prox(pair, 2.5).tree, [1.5, 2.0])
    assert float(regularizers.group_l1(2.0).value(pair)) == 10


def test_bad_weights_are_refused() -> None:
    with pytest.raises(FedpdError, match="weight = -1: must be finite and at least 0"):
        regularizers.l1(-1)
    with pytest.raises(FedpdError, match="low must be at most high"):
        regularizers.box(1.0, 0.0)
