"""float64 data are computed in float64, float32 data in float32, and the user's own JAX code does not change."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate
from fedpd.base.precision import as_numpy, is_double, scope

SINGLE, DOUBLE = np.ones(2, np.float32), np.ones(2, np.float64)


@pytest.mark.parametrize(
    ("trees", "double"),
    [
        ((SINGLE,), False),
        ((DOUBLE,), True),
        (({"w": SINGLE, "b": DOUBLE},), True),
        ((SINGLE, (SINGLE, DOUBLE)), True),
        ((np.ones(2, np.int64), SINGLE), False),
        ((np.ones(2, np.complex128),), True),
        ((), False),
    ],
)
def test_one_float64_array_makes_a_computation_double(trees: tuple[Any, ...], double: bool) -> None:
    assert is_double(*trees) is double


def test_a_scope_sets_the_precision_and_gives_it_back() -> None:
    before = jnp.asarray(DOUBLE).dtype
    with scope(True):
        assert jnp.asarray(DOUBLE).dtype == np.float64
        with scope(False):
            assert jnp.asarray(DOUBLE).dtype == np.float32
        assert jnp.asarray(DOUBLE).dtype == np.float64
    assert jnp.asarray(DOUBLE).dtype == before == np.float32


@pytest.mark.parametrize(
    ("given", "double", "taken"),
    [
        (np.float32, True, np.float64),
        (np.float32, False, np.float32),
        (np.float64, True, np.float64),
        (np.int64, False, np.int32),
        (np.int64, True, np.int64),
        (np.int32, False, np.int32),
        (np.uint8, False, np.uint8),
        (np.bool_, True, np.bool_),
    ],
)
def test_arrays_are_widened_but_never_rounded(given: Any, double: bool, taken: Any) -> None:
    array = as_numpy(np.array([0, 1], given), double, "data")
    assert array.dtype == taken
    assert array.tolist() == [0, 1]
    with scope(double):
        assert jnp.asarray(array).dtype == taken


def test_integers_that_32_bits_cannot_hold_are_refused_beside_float32() -> None:
    most = np.array([2**31 - 1, -(2**31)])
    assert as_numpy(most, False, "data").tolist() == most.tolist()
    with pytest.raises(FedpdError, match=r"data holds integers .*2147483648: .*32 bits\. Give .*float64"):
        as_numpy(np.array([0, 2**31]), False, "data")
    with pytest.raises(FedpdError, match=r"data holds integers .*32 bits\. Give .*float64"):
        as_numpy(np.array([-(2**31) - 1, 0]), False, "data")
    assert as_numpy(np.array([2**31]), True, "data").tolist() == [2**31]
    assert as_numpy(np.zeros(0, np.int64), False, "data").dtype == np.int32


def test_what_is_no_array_of_numbers_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"start must be an array of real numbers, not of object\. Give one array"):
        as_numpy(np.array([None, 1], object), False, "start")


def test_a_simulation_leaves_jax_as_it_was_and_does_not_depend_on_it() -> None:
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=1))
    double = problems.quadratic(np.array([[[1.0]]]), np.array([[1.0]]))
    single = problems.quadratic(np.array([[[1.0]]], np.float32), np.array([[1.0]], np.float32))
    run = simulate(algorithm, double, rounds=3)
    assert run.model.dtype == np.float64
    assert jnp.asarray(1.0).dtype == np.float32
    with jax.enable_x64(True):  # as a user may have set for the whole process
        run = simulate(algorithm, single, rounds=3)
        assert run.model.dtype == np.float32
        assert run.model.tolist() == [0.875]  # x <- x - (x - 1)/2
        assert jnp.asarray(1.0).dtype == np.float64
