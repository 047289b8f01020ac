"""What cannot run is refused before it runs: functions that need traced values, schedules, simulate inside of jit."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate
from fedpd.algorithms.fedavg import FedAvg
from fedpd.engine.checks import trace_round
from fedpd.engine.config import RunConfig
from fedpd.engine.simulate import make_plan

PROBLEM = problems.opposing_quadratics()
GD = oracles.gd(step=0.1, iterations=2)


def falling(r: Any, q: Any) -> Any:
    if r > 5:
        return 0.01
    return 0.1


def test_a_python_if_on_a_traced_number_is_explained() -> None:
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=falling, iterations=2))
    message = r"test_checks_tracing\.py, line \d+, in falling: Python's if.*Use jnp\.where\(condition, a, b\)"
    with pytest.raises(FedpdError, match=message):
        simulate(algorithm, PROBLEM, rounds=2)
    with pytest.raises(FedpdError, match=message):
        trace_round(make_plan(algorithm, PROBLEM, 2, [0], False, RunConfig()))


@pytest.mark.parametrize("value", [2, -1, float("nan"), "often", [0.5, 0.5]])
def test_a_schedule_must_return_probabilities(value: Any) -> None:
    algorithm = algorithms.fedpd(eta=0.1, oracle=GD, p=lambda r: 0.5 if r < 90 else value)
    with pytest.raises(FedpdError, match=r"p\(\d+\) = .*: must be a number in \[0, 1\]\. p\(r\) is the probability"):
        simulate(algorithm, PROBLEM, rounds=100)


def test_simulate_inside_of_jit_is_refused() -> None:
    def last(x: Any) -> Any:
        return x + simulate(algorithms.fedavg(oracle=GD), PROBLEM, rounds=2).history["loss"][-1]

    with pytest.raises(FedpdError, match=r"simulate is called inside of jax\.jit.*Call it outside; fedpd\.sweep"):
        jax.jit(last)(1.0)


def test_swapped_and_missing_objects_are_named() -> None:
    algorithm: Any = algorithms.fedavg(oracle=GD)
    problem: Any = PROBLEM
    with pytest.raises(FedpdError, match="algorithm = None: must be a Method, not None"):
        simulate(None, problem, rounds=2)  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(FedpdError, match="must be a Method, not Problem"):
        simulate(problem, algorithm, rounds=2)
    with pytest.raises(FedpdError, match=r"rounds = 2147483648: must be below 2\^31"):
        simulate(algorithm, problem, rounds=2**31)


def test_a_round_that_changes_its_state_is_refused() -> None:
    class Growing(FedAvg):
        def server(self, x: Any) -> Any:
            return jnp.zeros(2)

        def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
            return jnp.zeros(3), mean

    plan = make_plan(Growing(oracle=GD), PROBLEM, 2, [0], False, RunConfig())
    with pytest.raises(FedpdError, match="changes the shapes or the types of its state in a round"):
        trace_round(plan)
