"""A problem keeps its numbers: a later change of the user's arrays does not reach it, in any form of the data."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import algorithms, data, oracles, problems, simulate, theory
from fedpd.core import Problem
from tests.slow_cases import slow_but

GD = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
Arrays = dict[str, np.ndarray]


def ridge(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["b"]) ** 2 + 0.1 * jnp.sum(x * x)


def numbers(dtype: type) -> Arrays:
    rng = np.random.default_rng(0)
    named = {"a": (2, 6, 3), "b": (2, 6), "start": (3,), "weights": (2,)}
    return {name: rng.uniform(0.5, 1.5, shape).astype(dtype) for name, shape in named.items()}


def stacked(own: Arrays) -> Problem:
    return problems.from_losses(
        ridge, {"a": own["a"], "b": own["b"]}, own["start"], weights=own["weights"], check=False
    )


def listed(own: Arrays) -> Problem:
    agents = [{"a": a, "b": b} for a, b in zip(own["a"], own["b"], strict=True)]
    return problems.from_losses(ridge, agents, own["start"], weights=own["weights"], check=False)


def one_agent(own: Arrays) -> Problem:
    return problems.from_losses(ridge, [{"a": own["a"][0], "b": own["b"][0]}], own["start"], check=False)


def flat(own: Arrays) -> Problem:
    rows = {"a": own["a"].reshape(12, 3), "b": own["b"].reshape(12)}
    return problems.from_losses(ridge, data.ragged(rows, [4, 8]), own["start"], weights=own["weights"], check=False)


def by_hand(own: Arrays) -> Problem:
    rows = {"a": own["a"].reshape(12, 3), "b": own["b"].reshape(12)}
    return problems.from_losses(ridge, data.Ragged(rows, np.array([4, 8], np.int32)), own["start"], check=False)


def quadratic(own: Arrays) -> Problem:
    hessians = own["a"][:, :3]
    hessians[:] += hessians.swapaxes(1, 2).copy()
    return problems.quadratic(hessians, own["b"][:, :3], start=own["start"])


def logistic(own: Arrays) -> Problem:
    return problems.penalized_logistic(own["a"], np.where(own["b"] > 1, 1, -1), start=own["start"])


def regression(own: Arrays) -> Problem:
    agents = {str(i): {"x": own["a"][i], "y": own["b"][i]} for i in range(2)}
    held = data.from_arrays(agents, agents, classes=False)
    return problems.regression(lambda x, a: a @ x, held, own["start"], weights=own["weights"], check=False)


def from_rows(own: Arrays) -> Problem:
    part = data.ragged({"x": own["a"].reshape(12, 3), "y": own["b"].reshape(12)}, [4, 8])
    return problems.regression(lambda x, a: a @ x, data.from_rows(part, part, classes=False), own["start"], check=False)


MAKERS = [stacked, listed, one_agent, flat, by_hand, quadratic, logistic, regression, from_rows]


def measured(problem: Problem) -> list[float]:
    run = simulate(GD, problem, rounds=2)
    return [*run.history["loss"].tolist(), *run.history.get("mae", np.zeros(0)).tolist(), *run.model.tolist()]


@pytest.mark.parametrize("dtype", slow_but([np.float64], [np.float32, np.float64]))
@pytest.mark.parametrize("make", MAKERS)
def test_a_later_change_of_an_array_does_not_change_the_problem(make: Callable[..., Problem], dtype: type) -> None:
    own = numbers(dtype)
    problem = make(own)
    before = measured(problem)
    for array in own.values():
        array *= 3
    assert measured(problem) == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nor_does_it_change_what_functions_of_data_return(dtype: type) -> None:
    own = numbers(dtype)
    x, y = own["a"][0], own["b"][0]
    held = data.from_arrays({"one": {"x": x, "y": y}}, {"one": {"x": x, "y": y}}, classes=False)
    together, alone = data.ragged({"x": x}, [2, 4]), data.pool([{"x": x, "y": y}])
    kept = [held.train[0]["x"], held.test[0]["y"], together.rows["x"], alone["x"], *data.standardise([x])[0]]
    assert not any(np.shares_memory(array, given) for array in kept for given in (x, y))


def test_a_start_of_a_run_is_copied() -> None:
    problem, start = listed(numbers(np.float64)), np.ones(3)
    once = simulate(GD, problem, rounds=1, start=start)
    start *= 3
    again = simulate(GD, problem, rounds=1, start=np.ones(3))
    assert once.model.tolist() == again.model.tolist()


def test_the_arrays_of_a_problem_are_read_only() -> None:
    for problem in (stacked(numbers(np.float32)), flat(numbers(np.float64))):
        for array in (*problem.data.values(), problem.start):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize("form", ["stacked", "list", "ragged", "jax"])
def test_data_are_copied_at_most_once(form: str) -> None:
    """A problem of 8 MB of samples needs 8 MB more, and of arrays of JAX, which nobody can change, none."""
    x = np.ones((2, 2**19, 2), np.float32)
    given: Any = {"stacked": x, "list": [*x], "ragged": x.reshape(-1, 2), "jax": jnp.asarray(x)}[form]
    tracemalloc.start()
    held = data.ragged(given, [2**18, 3 * 2**18]) if form == "ragged" else given
    problem = problems.from_losses(lambda w, rows: rows @ w, held, np.zeros(2, np.float32))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    copies = 0 if form == "jax" else 1
    assert problem.samples == 2**20
    assert kept == pytest.approx(copies * x.nbytes, abs=x.nbytes / 8)
    assert peak < (copies + 0.75) * x.nbytes


def test_float16_and_bfloat16_are_computed_in_float32() -> None:
    own = {name: array.astype(np.float16) for name, array in numbers(np.float32).items()}
    wanted = measured(stacked({name: array.astype(np.float32) for name, array in own.items()}))
    assert measured(stacked(own)) == wanted
    short = {name: np.asarray(jnp.asarray(array, jnp.bfloat16)) for name, array in own.items()}
    problem = stacked(short)
    assert not problem.double
    assert {leaf.dtype for leaf in (*problem.data.values(), problem.start)} == {np.dtype(np.float32)}
    wide = stacked({name: array.astype(np.float32) for name, array in short.items()})
    assert theory.objective(problem, problem.start) == theory.objective(wide, wide.start)
    assert measured(problem) == measured(wide)
