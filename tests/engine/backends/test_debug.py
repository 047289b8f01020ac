"""execution="debug": the numbers of a compiled run, and errors that name agent, stage and round."""

from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, Exchange, FedpdError, algorithms, oracles, problems, simulate
from fedpd.algorithms.fedavg import FedAvg
from tests.slow_cases import slow_but

SGD = oracles.sgd(step=0.1, iterations=2, batch=2)
PROBLEM = problems.penalized_logistic(
    np.random.default_rng(0).normal(size=(3, 4, 2)), np.sign(np.random.default_rng(1).normal(size=(3, 4)))
)


CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "skips": (algorithms.fedpd(eta=0.5, oracle=SGD, p=0.5), {}),
    "absent agents": (algorithms.fedpd(eta=0.5, oracle=SGD), {"participation": 0.4, "stragglers": 0.5}),
    "two exchanges": (algorithms.feddane(mu=1.0, oracle=SGD), {"metrics_every": 2}),
    "silent agents": (algorithms.lag(step=0.3, memory=2), {}),
    "a mixing matrix": (algorithms.coop_sgd(oracle=SGD, mixing=np.full((3, 3), 1 / 3)), {}),
}


@pytest.mark.parametrize("case", slow_but(["absent agents", "two exchanges"], CASES))
def test_it_gives_the_numbers_of_a_compiled_run(case: str) -> None:
    algorithm, options = CASES[case]
    plain = simulate(algorithm, PROBLEM, rounds=3, seed=2, **options)
    debug = simulate(algorithm, PROBLEM, rounds=3, seed=2, execution="debug", **options)
    for name, column in plain.history.items():
        np.testing.assert_allclose(debug.history[name], column, rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(debug.model, plain.model, atol=1e-12)
    np.testing.assert_array_equal(debug.updates, plain.updates)


def failing(stage: str) -> Algorithm:
    """FedAvg whose function of this stage fails for agent 1 in round 2, or at the server."""
    seen = {"round": 0}

    def fail(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if name == "local":
                f, _, r, _ = arguments
                seen["round"], seen["agent"] = int(r), int(f.agent)
            at_fault = seen["round"] == 2 and (name == "aggregate" or seen["agent"] == 1 or name == "receive")
            if name == stage and at_fault:
                raise ArithmeticError("deliberate")
            return function(*arguments)

        return call

    class Failing(FedAvg):
        def exchanges(self) -> tuple[Exchange, ...]:
            (exchange,) = super().exchanges()
            parts = {name: fail(name, getattr(exchange, name)) for name in ("local", "send", "aggregate", "receive")}
            return (exchange._replace(**parts),)

    return Failing(oracle=oracles.gd(step=0.1, iterations=1))


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        ("local", "round 2, local of agent 1"),
        ("send", "round 2, send of agent 1"),
        ("aggregate", "round 2, aggregate at the server"),
        ("receive", "round 2, receive of agent 0"),
    ],
)
def test_an_error_names_agent_stage_and_round(stage: str, where: str) -> None:
    with pytest.raises(FedpdError, match=rf"^{where}: ArithmeticError: deliberate"):
        simulate(failing(stage), PROBLEM, rounds=4, execution="debug")


def test_it_takes_one_seed_at_a_time() -> None:
    with pytest.raises(FedpdError, match="execution = 'debug': allows only one seed"):
        simulate(algorithms.fedavg(oracle=SGD), PROBLEM, rounds=1, seed=[0, 1], execution="debug")
