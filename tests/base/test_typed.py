"""Arguments are checked against annotations: wrong types, NaN, huge integers, masked and ragged arrays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.base.errors import UnexpectedError
from fedpd.base.typed import check_arguments, explained, misfit, typed


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, float),
        (np.float32(2), float),
        (np.array(3.0), float),
        (np.int64(3), int),
        (None, int | None),
        ("auto", float | Literal["auto"]),
        (0.5, float | Callable[[Any], Any]),
        (len, float | Callable[[Any], Any]),
        ([1, 2], Sequence[int]),
        (range(3), Sequence[int]),
        (np.arange(3), Sequence[int] | np.ndarray),
        ([[1.0], [2.0]], np.ndarray),
        ("abc", Sequence[str]),
        (("a", "b"), tuple[str, str]),
        (Path("x"), str | Path),
        (object(), Any),
    ],
)
def test_values_that_fit(value: Any, kind: Any) -> None:
    assert misfit(value, kind) is None


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("1", float, "must be a number, not str"),
        (True, int, "must be an integer, not bool"),
        (1.0, int, "must be an integer, not float"),
        (float("nan"), float, "must be a number, not NaN"),
        (10**400, float, "must be a number below 1e308 in size"),
        (2**63, int, "must be an integer below 2^63 in size"),
        (1j, float | None, "must be a number or None, not complex"),
        ("atuo", float | Literal["auto"], "must be a number or 'auto', not str"),
        (1, bool, "must be True or False, not int"),
        (None, Callable[[int], int], "must be a function, not None"),
        ([0, 0.5], Sequence[int] | np.ndarray, "entry 1 must be an integer, not float"),
        ([[1], [1, 2]], np.ndarray, "must be an array of numbers, in rows of equal length"),
        (np.array([1j]), np.ndarray, "must be an array of real numbers, not of complex128"),
        (np.ma.masked_array([1.0], [True]), np.ndarray, "must not be masked: fedpd has no missing values"),
        ("ab", Sequence[int], "must be a list of integers, not str"),
        ({1, 2}, Sequence[int], "must be a list of integers, not set"),
        (("a",), tuple[str, str], "must have 2 entries"),
        (3, np.random.Generator, "must be a Generator, not int"),
    ],
)
def test_values_that_do_not(value: Any, kind: Any, reason: str) -> None:
    assert misfit(value, kind) == reason


def scaled(x: float, power: int = 2, *, kind: Literal["up", "down"] = "up") -> float:
    return (x if kind == "up" else 1 / x) ** power


def test_the_remedy_is_what_fits() -> None:
    for arguments, message in [
        ({"x": "a"}, r"x = 'a': must be a number, not str\. Give a number\."),
        ({"x": 1.0, "power": 0.5}, r"power = 0\.5: must be an integer, not float\. Give an integer\."),
        ({"x": 1.0, "kind": None}, r"kind = None: must be 'up' or 'down', not None\. Give 'up' or 'down'\."),
        ({"x": 1.0, "kind": "dwn"}, r"kind = 'dwn': .*Did you mean 'down'\?"),
    ]:
        with pytest.raises(FedpdError, match=message):
            typed(scaled)(**arguments)  # type: ignore[arg-type]  # wrong on purpose
    assert typed(scaled)(3.0) == 9.0
    with pytest.raises(
        TypeError, match=r"scaled\(\): missing a required argument: 'x'\. Give x; others may be left out\."
    ):
        typed(scaled)()  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(
        TypeError, match=r"scaled\(\) got an unexpected keyword argument 'pwer'\. Did you mean 'power'\?"
    ):
        typed(scaled)(pwer=3)  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(FedpdError, match=r"power = 2147483648: must be an integer below 2\^31 in size"):
        check_arguments(scaled, {"power": 2**31}, largest=2**31 - 1)


def test_every_error_of_a_computation_is_a_sentence() -> None:
    with pytest.raises(FedpdError, match=r"scaled\(x=0, kind='down'\): division by zero\. Give numbers that"):
        explained(scaled)(0, kind="down")
    with pytest.raises(FedpdError, match=r"out of range.*neither huge nor tiny"):
        explained(scaled)(1e200)
    assert explained(scaled)(2.0) == 4.0


def test_traced_numbers_fit() -> None:
    assert jax.jit(typed(scaled))(3.0) == 9.0


def test_an_error_that_may_be_a_fault_of_fedpd_is_not_told_as_a_mistake_of_the_user() -> None:
    @explained
    def lookup(name: str) -> int:
        return {"a": 1}[name]

    with pytest.raises(UnexpectedError, match=r"lookup\(name='b'\): KeyError: 'b'\. Check .*this is a fault of fedpd"):
        lookup("b")
