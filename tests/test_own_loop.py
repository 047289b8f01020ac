"""A loop of the user's own as the local work of a method, for arrays: equal to a simulation to rounding."""

from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import Agent, FedpdError, Method, Server, algorithms, local, oracles, problems, simulate

rng = np.random.default_rng(0)
AGENTS = [(rng.normal(size=(20, 3)), rng.normal(i, 1, 20)) for i in range(4)]
START = {"w": np.zeros(3), "b": np.zeros(())}
OWN = oracles.own_loop()
METHODS = {
    "FedPD": algorithms.fedpd(eta=0.3, oracle=OWN),
    "FedPD from the server": algorithms.fedpd(eta=0.3, oracle=OWN, start="server"),
    "FedProx": algorithms.fedprox(rho=1.0, oracle=OWN),
    "FedDyn": algorithms.feddyn(alpha=2.0, oracle=OWN),
    "ADMM": algorithms.admm(eta=0.3, oracle=OWN),
    "FedADMM": algorithms.fedadmm(rho=2.0, oracle=OWN),
    "FedDR": algorithms.feddr(eta=0.3, oracle=OWN),
    "FedAvg": algorithms.fedavg(oracle=OWN),
}


def problem() -> fedpd.Problem:
    def losses(model: Any, batch: Any) -> Any:
        return (batch["x"] @ model["w"] + model["b"] - batch["y"]) ** 2

    return problems.from_losses(losses, [{"x": x, "y": y} for x, y in AGENTS], START)


def descend(step: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Do ten steps of gradient descent of length 0.05, in plain NumPy."""
    model = step.start
    for _ in range(10):
        error = x @ model["w"] + model["b"] - y
        extra = step.extra(model)
        gradient = {"w": 2 * x.T @ error / len(y), "b": 2 * error.mean()}
        model = {name: model[name] - 0.05 * (gradient[name] + extra[name]) for name in model}
    step.result, step.updates = model, 10


def federated(method: Method, rounds: int) -> tuple[Any, list[Agent]]:
    server, agents = Server(method, START), [Agent() for _ in AGENTS]
    for _ in range(rounds):
        messages = []
        for agent, samples in zip(agents, AGENTS, strict=True):
            with local(method, server.model, agent) as step:
                descend(step, *samples)
            messages.append(step.message)
        server.update(messages)
    return server.model, agents


@pytest.mark.parametrize("name", METHODS)
def test_a_loop_in_numpy_is_the_local_work_of_a_method(name: str) -> None:
    model, agents = federated(METHODS[name], 12)
    run = simulate(METHODS[name].changed({"oracle": oracles.gd(0.05, 10)}), problem(), rounds=12)
    for part in START:
        np.testing.assert_allclose(model[part], run.model[part], rtol=0, atol=1e-14)
    assert {(agent.rounds, agent.updates) for agent in agents} == {(12, 120)}


def test_absent_agents_with_the_form_for_them() -> None:
    method = METHODS["FedPD from the server"].partial()
    server, agents = Server(method, START), [Agent() for _ in AGENTS]
    present = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 1]] * 2)
    for row in present:
        messages = []
        for i in np.flatnonzero(row):
            with local(method, server.model, agents[i]) as step:
                descend(step, *AGENTS[i])
            messages.append(step.message)
        server.update(messages, share=row.mean())
    usual = METHODS["FedPD from the server"].changed({"oracle": oracles.gd(0.05, 10)})
    run = simulate(usual, problem(), rounds=8, participation=present)
    np.testing.assert_allclose(server.model["w"], run.model["w"], rtol=0, atol=1e-14)


def test_a_block_that_raises_changes_nothing() -> None:
    agent = Agent()
    with pytest.raises(RuntimeError, match="power cut"), local(METHODS["FedPD"], START, agent):
        raise RuntimeError("power cut")
    assert (agent.state, agent.rounds) == (None, 0)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (3, "method = 3: is no method"),
        (algorithms.scaffold(step=0.1, iterations=2), "has no oracle in whose place your loop runs"),
        (algorithms.fedpd(eta=0.3, oracle=OWN, p=0.5), "skips communications"),
        (algorithms.a_fedpd(eta=0.3, oracle=OWN), "its server sends more than a model"),
        (algorithms.dane(mu=1.0, oracle=OWN), "has several exchanges in a round"),
        (algorithms.ditto(rho=1.0, oracle=OWN), "solves 2 local problems in a round"),
    ],
)
def test_methods_that_need_more_are_refused(method: Any, answer: str) -> None:
    with pytest.raises(FedpdError, match=answer), local(method, START, Agent()):
        pass


def test_a_loop_that_does_not_say_where_it_ended_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"step\.result = None"), local(METHODS["FedPD"], START, Agent()):
        pass


def test_a_simulation_has_no_loop() -> None:
    with pytest.raises(FedpdError, match="stands for a training loop of your own"):
        simulate(METHODS["FedAvg"], problem(), rounds=1)
    with pytest.raises(FedpdError, match="must hold the message of at least one agent"):
        Server(METHODS["FedAvg"], START).update([])
