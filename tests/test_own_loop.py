"""A loop of the user's own as the local work of a method, for arrays: equal to a simulation to rounding."""

import contextlib
from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import Agent, FedpdError, Method, Server, algorithms, local, oracles, problems, simulate
from tests.slow_cases import slow_but

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

    return problems.from_losses(losses, [{"x": x, "y": y} for x, y in AGENTS], START, check=False)


def descend(step: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Do ten steps of gradient descent of length 0.05, in plain NumPy."""
    model = step.start
    for _ in range(10):
        error = x @ model["w"] + model["b"] - y
        gradient = step.gradient(model, {"w": 2 * x.T @ error / len(y), "b": 2 * error.mean()})
        model = {name: model[name] - 0.05 * gradient[name] for name in model}
    step.result, step.updates, step.length = model, 10, 10 * 0.05


def federated(method: Method, rounds: int, weights: Any = None) -> tuple[Any, list[Agent]]:
    server, agents = Server(method, START), [Agent() for _ in AGENTS]
    for _ in range(rounds):
        messages = []
        for agent, samples in zip(agents, AGENTS, strict=True):
            with local(method, server.model, agent, server.broadcast) as step:
                descend(step, *samples)
            messages.append(step.message)
        server.update(messages, weights=weights)
    return server.result, agents


GD = oracles.gd(0.05, 10)
MORE = {
    "a_fedpd": algorithms.a_fedpd(eta=0.3, oracle=OWN),
    "admm": METHODS["ADMM"],
    "fedacg": algorithms.fedacg(oracle=OWN, momentum=0.5, rho=0.3),
    "fedadagrad": algorithms.fedadagrad(oracle=OWN),
    "fedadam": algorithms.fedadam(oracle=OWN),
    "fedadmm": METHODS["FedADMM"],
    "fedavg": METHODS["FedAvg"],
    "fedavgm": algorithms.fedavgm(oracle=OWN, momentum=0.5),
    "fedbuff": algorithms.fedbuff(oracle=OWN, server_step=0.7),
    "fedcm": algorithms.fedcm(oracle=OWN, alpha=0.3),
    "feddc": algorithms.feddc(oracle=OWN, alpha=0.5),
    "feddr": METHODS["FedDR"],
    "feddyn": METHODS["FedDyn"],
    "fedexp": algorithms.fedexp(oracle=OWN),
    "fednova": algorithms.fednova(oracle=OWN),
    "fedpd": METHODS["FedPD"],
    "fedprox": METHODS["FedProx"],
    "fedyogi": algorithms.fedyogi(oracle=OWN),
    "scaffold": algorithms.scaffold(oracle=OWN),
}


def simulated(method: Method, rounds: int, **options: Any) -> Any:
    """Run the method with fedpd's own gradient descent in place of the loop."""
    if method.name == "scaffold":
        return simulate(algorithms.scaffold(step=0.05, iterations=10), problem(), rounds=rounds, **options)
    return simulate(method.changed({"oracle": GD}), problem(), rounds=rounds, **options)


@pytest.mark.parametrize("method", [*MORE.values(), METHODS["FedPD from the server"]], ids=lambda one: one.name)
def test_a_loop_in_numpy_is_the_local_work_of_a_method(method: Method) -> None:
    model, agents = federated(method, 5)
    run = simulated(method, 5)
    for part in START:
        np.testing.assert_allclose(model[part], run.model[part], rtol=0, atol=1e-13)
    assert {(agent.rounds, agent.updates) for agent in agents} == {(5, 50)}


REASONS = (
    "has no oracle in whose place your loop runs",
    "has several exchanges in a round",
    "gives every agent its own model",
    "solves 2 local problems",
    "solves several local problems",
    "changes the gradients of f_i",
    "changes the gradients of the loss themselves",
    "needs gradients of f_i outside of the loop",
    "skips communications",
)


def refusal(made: Method) -> str:
    """Return the sentence that refuses a method with a loop for its oracle; "": it runs."""
    try:
        method = made.changed({"oracle": OWN})
    except FedpdError as error:
        method, said = made, str(error)
        if "has no setting 'oracle'" not in said:
            return said
    with contextlib.suppress(RuntimeError):
        try:
            with local(method, START, Agent()):
                raise RuntimeError("it runs")
        except FedpdError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("label", algorithms.variants())
def test_every_other_method_is_refused_with_a_sentence(label: str) -> None:
    made = algorithms.variants()[label].rule(1.0, 4, 1.0)
    if made.name == "scaffold":  # it takes a loop in place of its steps
        return
    said = refusal(made)
    assert (said == "") <= (made.name in MORE)
    assert not said or any(reason in said for reason in REASONS)


@pytest.mark.slow
@pytest.mark.parametrize("method", [METHODS["FedPD"], MORE["scaffold"], MORE["feddyn"]], ids=lambda one: one.name)
def test_weights_of_the_mean_are_those_of_the_objective(method: Method) -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    model, _ = federated(method, 300, weights)
    gradient = np.zeros(4)
    for weight, (x, y) in zip(weights, AGENTS, strict=True):
        gradient += weight * np.append(x, np.ones((20, 1)), 1).T @ (x @ model["w"] + model["b"] - y)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


ABSENT = ["fedpd", "admm", "fedadmm", "feddr", "feddyn", "scaffold", "feddc", "fedcm", "fednova"]


@pytest.mark.parametrize("name", slow_but(["fedpd", "scaffold", "fednova"], ABSENT))
def test_absent_agents_and_those_that_join_late(name: str) -> None:
    usual = METHODS["FedPD from the server"] if name == "fedpd" else MORE[name]
    method = usual.partial()
    server, agents = Server(method, START), [Agent(start=START) for _ in AGENTS]
    present = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]] * 2)
    for row in present:
        messages = []
        for i in np.flatnonzero(row):
            with local(method, server.model, agents[i], server.broadcast) as step:
                descend(step, *AGENTS[i])
            messages.append(step.message)
        server.update(messages, share=row.mean())
    run = simulated(usual, 8, participation=present)
    np.testing.assert_allclose(server.result["w"], run.model["w"], rtol=0, atol=1e-13)


def test_absent_agents_need_a_form_for_them() -> None:
    with pytest.raises(FedpdError, match=r"Give method.partial\(\) to the server and to the agents"):
        Server(METHODS["FedPD"], START).update([START], share=0.5)
    with pytest.raises(FedpdError, match="an absent agent needs two broadcasts"):
        Server(MORE["a_fedpd"], START).update([START], share=0.5)


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
        (algorithms.fedpd(eta=0.3, oracle=OWN, memory=3), "needs gradients of f_i outside of the loop"),
    ],
)
def test_settings_that_need_more_are_refused(method: Any, answer: str) -> None:
    with pytest.raises(FedpdError, match=answer), local(method, START, Agent()):
        pass


def test_a_loop_of_unknown_length_is_refused_where_the_method_divides_by_it() -> None:
    with (
        pytest.raises(FedpdError, match=r"Set step\.length inside the block"),
        local(MORE["scaffold"], START, Agent()) as step,
    ):
        step.result, step.updates = START, 3


def test_a_factor_of_the_loss_is_no_extra_term() -> None:
    with pytest.raises(FedpdError, match=r"Use step\.gradient"), local(MORE["fedcm"], START, Agent()) as step:
        step.extra(START)


def test_what_the_server_sent_must_be_given() -> None:
    agent, method = Agent(), MORE["scaffold"]
    with local(method, START, agent) as step:
        descend(step, *AGENTS[0])
    for received, answer in ((None, "Give what the server sent"), (START, "Give it as the other side made it")):
        with pytest.raises(FedpdError, match=answer), local(method, START, agent, received):
            pass


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"oracle": GD}, r"must be oracles.own_loop\(\)"),
        ({"oracle": OWN, "step": 0.1}, "Leave step out"),
        ({"oracle": OWN, "option": 1}, "needs a full gradient outside of the loop"),
        ({}, r"step = None: must be given. Give the local step size, or oracle=oracles.own_loop\(\)"),
    ],
)
def test_scaffold_takes_steps_or_a_loop(settings: Any, answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        algorithms.scaffold(**settings)


def test_a_loop_that_does_not_say_where_it_ended_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"step\.result = None"), local(METHODS["FedPD"], START, Agent()):
        pass


def test_a_simulation_has_no_loop() -> None:
    with pytest.raises(FedpdError, match="stands for a training loop of your own"):
        simulate(METHODS["FedAvg"], problem(), rounds=1)
    with pytest.raises(FedpdError, match="must hold the message of at least one agent"):
        Server(METHODS["FedAvg"], START).update([])
