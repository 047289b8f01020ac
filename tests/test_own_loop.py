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


# Every method of fedpd: the one for a loop, and the one that a simulation runs; or the sentence that refuses it.
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
WITHOUT_ORACLE = "has no oracle in whose place your loop runs"
SEVERAL = "has several exchanges in a round"
REFUSED: dict[str, tuple[Any, str]] = {
    "acc_s_dane": (lambda: algorithms.acc_s_dane(rho=1.0, oracle=OWN), SEVERAL),
    "barzilai_borwein": (algorithms.barzilai_borwein, WITHOUT_ORACLE),
    "cola": (lambda: algorithms.cola(eta=0.3, smoothness=1.0), WITHOUT_ORACLE),
    "coop_sgd": (lambda: algorithms.coop_sgd(oracle=OWN, alpha=0.2, beta=0.9), "gives every agent its own model"),
    "dane": (lambda: algorithms.dane(mu=1.0, oracle=OWN), SEVERAL),
    "ditto": (lambda: algorithms.ditto(rho=1.0, oracle=OWN), "solves 2 local problems in a round"),
    "f_svrg": (lambda: algorithms.f_svrg(step=0.1, iterations=2), WITHOUT_ORACLE),
    "fedadmm_insa": (lambda: algorithms.fedadmm_insa(beta=1.0, smoothness=1.0, convexity=0.1), WITHOUT_ORACLE),
    "feddane": (lambda: algorithms.feddane(mu=1.0, oracle=OWN), SEVERAL),
    "fedlin": (lambda: algorithms.fedlin(step=0.1, iterations=2), WITHOUT_ORACLE),
    "fedosaa": (lambda: algorithms.fedosaa(step=0.1, iterations=2), WITHOUT_ORACLE),
    "fedpd_n": (lambda: algorithms.fedpd_n(iterations=2, batch=2, cohort=4), WITHOUT_ORACLE),
    "fedsam": (lambda: algorithms.fedsam(oracle=OWN), "changes the gradients of f_i"),
    "fedspeed": (lambda: algorithms.fedspeed(alpha=1.0, oracle=OWN), "changes the gradients of f_i"),
    "five_gcs": (lambda: algorithms.five_gcs(step=0.1, tau=1.0, oracle=OWN), "needs gradients of f_i outside"),
    "giant": (lambda: algorithms.giant(iterations=2), WITHOUT_ORACLE),
    "gradient_descent": (lambda: algorithms.gradient_descent(step=0.1), WITHOUT_ORACLE),
    "lag": (lambda: algorithms.lag(step=0.1), WITHOUT_ORACLE),
    "lbfgs": (algorithms.lbfgs, WITHOUT_ORACLE),
    "local_gd": (lambda: algorithms.local_gd(step=0.1, iterations=2), WITHOUT_ORACLE),
    "locodl": (lambda: algorithms.locodl(step=0.1, p=0.5), WITHOUT_ORACLE),
    "mpr_sgd": (lambda: algorithms.mpr_sgd(step=0.1, momentum=0.5, iterations=2), WITHOUT_ORACLE),
    "nesterov": (lambda: algorithms.nesterov(step=0.1), WITHOUT_ORACLE),
    "newton_cg": (algorithms.newton_cg, WITHOUT_ORACLE),
    "pfedme": (lambda: algorithms.pfedme(rho=1.0, step=0.1, iterations=3, oracle=OWN), "solves several local problems"),
    "pr_spider": (lambda: algorithms.pr_spider(step=0.1, iterations=2, refresh=4), WITHOUT_ORACLE),
    "proxskip": (lambda: algorithms.proxskip(step=0.1, p=0.5), WITHOUT_ORACLE),
    "ri_sgd": (lambda: algorithms.ri_sgd(step=0.1, iterations=2), WITHOUT_ORACLE),
    "s_dane": (lambda: algorithms.s_dane(rho=1.0, oracle=OWN), SEVERAL),
    "scafcom": (lambda: algorithms.scafcom(step=0.1, iterations=2), WITHOUT_ORACLE),
    "scallion": (lambda: algorithms.scallion(step=0.1, iterations=2), WITHOUT_ORACLE),
    "stem": (lambda: algorithms.stem(step=0.1, a=0.5, iterations=2), WITHOUT_ORACLE),
    "tamuna": (lambda: algorithms.tamuna(step=0.1, p=0.5, agents=4, copies=2), WITHOUT_ORACLE),
    "vrl_sgd": (lambda: algorithms.vrl_sgd(step=0.1, iterations=2), WITHOUT_ORACLE),
}


def simulated(method: Method, rounds: int, **options: Any) -> Any:
    """Run the method with fedpd's own gradient descent in place of the loop."""
    if method.name == "scaffold":
        return simulate(algorithms.scaffold(step=0.05, iterations=10), problem(), rounds=rounds, **options)
    return simulate(method.changed({"oracle": GD}), problem(), rounds=rounds, **options)


def test_every_method_is_run_or_refused() -> None:
    assert set(MORE) | set(REFUSED) == set(algorithms.cards())
    assert not set(MORE) & set(REFUSED)


@pytest.mark.parametrize("method", [*MORE.values(), METHODS["FedPD from the server"]], ids=lambda one: one.name)
def test_a_loop_in_numpy_is_the_local_work_of_a_method(method: Method) -> None:
    model, agents = federated(method, 5)
    run = simulated(method, 5)
    for part in START:
        np.testing.assert_allclose(model[part], run.model[part], rtol=0, atol=1e-13)
    assert {(agent.rounds, agent.updates) for agent in agents} == {(5, 50)}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_with_a_sentence(name: str) -> None:
    make, answer = REFUSED[name]
    with pytest.raises(FedpdError, match=answer), local(make(), START, Agent()):
        pass


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


@pytest.mark.parametrize("name", ABSENT)
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
