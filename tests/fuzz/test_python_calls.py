"""Public functions with hostile arguments: each returns a result or refuses its arguments with a sentence."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd import FedpdError, advise, algorithms, load, load_model, simulate, solve, sweep, tune

from .calls import FUNCTIONS, ORACLE, PROBLEM, calls, usual_arguments
from .endings import cases, check_sentence, ends_well, time_limit
from .hostile import VALUES

ALGORITHM = algorithms.fedavg(oracle=ORACLE)
DRIVERS: list[Callable[..., Any]] = [
    lambda value: simulate(value, PROBLEM, rounds=1),
    lambda value: simulate(ALGORITHM, value, rounds=1),
    lambda value: sweep(value, PROBLEM, {"eta": [0.1]}, rounds=1),
    lambda value: tune(value),
    lambda value: advise(value),
    lambda value: solve(value),
    lambda value: load(value),
    lambda value: load_model(value),
]


@cases(150)
@given(calls())
def test_a_call_ends_with_a_result_or_a_sentence(call: tuple[Callable[..., Any], dict[str, Any]]) -> None:
    function, arguments = call
    ends_well(function, **arguments)


@cases(30)
@given(st.sampled_from(DRIVERS), VALUES)
def test_a_wrong_object_is_refused_before_anything_runs(driver: Callable[..., Any], value: Any) -> None:
    with time_limit(), pytest.raises(FedpdError) as error:
        driver(value)
    check_sentence(str(error.value))


def test_most_functions_are_called_with_valid_arguments_at_first() -> None:
    """Otherwise the cases would test only the first check of each function."""
    assert len(FUNCTIONS) > 100
    valid = [function for function in FUNCTIONS if ends_well(function, **usual_arguments(function)) is not None]
    assert len(valid) > 100
    assert ORACLE.description == "gd(step=0.1, iterations=2)"
