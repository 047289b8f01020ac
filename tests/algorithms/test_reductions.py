"""Methods that are equal in special cases, up to rounding; methods that reach the minimiser, and error floors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, algorithms, oracles, problems, regularizers, simulate, transforms
from fedpd.core.method import form_with_absent
from tests.slow_cases import slow_but

L, MU, AGENTS = 1.0, 0.2, 8
PROBLEM = problems.random_quadratic(AGENTS, 5, smoothness=L, convexity=MU, seed=1)
MINIMISER = np.asarray(PROBLEM.answer.minimiser)
MANY = problems.from_losses(
    lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2 / 2,
    {"a": np.random.default_rng(0).standard_normal((4, 6, 3)), "b": np.random.default_rng(1).standard_normal((4, 6))},
    np.zeros(3),
    check=False,
)


def exact(penalty: float) -> Any:
    """A local solve to rounding: a step leaves (L - MU)/(L + penalty) of the error."""
    return oracles.gd(step=1 / (L + penalty), iterations=40)


def stationarities(algorithm: Algorithm, rounds: int = 12, problem: Any = PROBLEM, **options: Any) -> np.ndarray:
    run = simulate(algorithm, problem, rounds=rounds, **options)
    return np.append(run.history["stationarity"], run.model)


def assert_same(a: Algorithm, b: Algorithm, **options: Any) -> None:
    np.testing.assert_allclose(stationarities(a, **options), stationarities(b, **options), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    "other",
    [
        algorithms.admm(eta=0.5, oracle=exact(2)),
        algorithms.feddyn(alpha=2.0, oracle=exact(2)),
        algorithms.feddr(eta=0.5, alpha=1.0, oracle=exact(2)),
        algorithms.fedadmm(rho=2.0, oracle=exact(2)),
        algorithms.a_fedpd(eta=0.5, oracle=exact(2)),
    ],
    ids=lambda algorithm: algorithm.description.partition("(")[0],
)
def test_fedpd_is_admm_is_feddyn_is_feddr_where_local_problems_are_solved(other: Algorithm) -> None:
    assert_same(algorithms.fedpd(eta=0.5, oracle=exact(2)), other)


STARTS: list[tuple[str, dict[str, Any]]] = [
    (start, options) for start in ("local", "server") for options in ({}, {"cohort": 2})
]
each_start = pytest.mark.parametrize(
    ("start", "options"), slow_but([("local", {"cohort": 2}), ("server", {})], STARTS), ids=str
)


@each_start
def test_feddyn_is_fedpd_with_few_noisy_steps_from_the_same_start(start: Any, options: dict[str, Any]) -> None:
    oracle = oracles.sgd(step=0.1, iterations=3, batch=2)
    feddyn = algorithms.feddyn(alpha=2.0, oracle=oracle, start=start)
    assert_same(algorithms.fedpd(eta=0.5, oracle=oracle, start=start), feddyn, problem=MANY, **options)
    usual = algorithms.feddyn(alpha=2.0, oracle=oracle)
    assert (usual.spec == feddyn.spec) == (start == "server")  # as in the authors' program


@each_start
def test_admm_is_fedadmm_is_feddr_with_few_noisy_steps_from_the_same_start(start: Any, options: dict[str, Any]) -> None:
    oracle = oracles.sgd(step=0.1, iterations=3, batch=2)
    admm = algorithms.admm(eta=0.5, oracle=oracle, start=start)
    fedadmm = algorithms.fedadmm(rho=2.0, oracle=oracle, start=start)
    feddr = algorithms.feddr(eta=0.5, oracle=oracle, start=start)
    assert_same(admm, fedadmm, problem=MANY, **options)
    assert_same(admm, feddr, problem=MANY, **options)
    usual = [algorithms.admm(eta=0.5, oracle=oracle), algorithms.feddr(eta=0.5, oracle=oracle)]
    assert [one.spec == made.spec for one, made in zip(usual, (admm, feddr), strict=True)] == [start == "local"] * 2
    assert (algorithms.fedadmm(rho=2.0, oracle=oracle).spec == fedadmm.spec) == (start == "server")
    if not options:  # FedPD's server has the mean of x_i over those present
        assert_same(algorithms.fedpd(eta=0.5, oracle=oracle, start=start), admm, problem=MANY)


def test_scaffold_is_vrl_sgd_when_everyone_takes_part() -> None:
    settings: dict[str, Any] = {"step": 0.1, "iterations": 4, "batch": 2}
    assert_same(algorithms.scaffold(**settings), algorithms.vrl_sgd(**settings), problem=MANY)


def test_one_local_step_is_gradient_descent_is_lag_that_always_sends() -> None:
    fedavg = algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=1))
    assert_same(fedavg, algorithms.lag(step=0.5, threshold=0.0))
    hessian = PROBLEM.data["hessian"][:, 0].mean(0)
    linear, x = PROBLEM.data["linear"][:, 0].mean(0), np.zeros(5)
    for _ in range(12):
        x = x - 0.5 * (hessian @ x - linear)
    np.testing.assert_allclose(stationarities(fedavg)[-5:], x, atol=1e-14)


def test_no_momentum_no_penalty_and_full_mixing_are_fedavg() -> None:
    step: dict[str, Any] = {"step": 0.1, "iterations": 3, "batch": 2}
    fedavg = algorithms.fedavg(oracle=oracles.sgd(**step))
    assert_same(fedavg, algorithms.mpr_sgd(momentum=0.0, **step), problem=MANY)
    assert_same(fedavg, algorithms.fedprox(rho=0.0, oracle=oracles.sgd(**step)), problem=MANY)
    mixing = np.full((4, 4), 0.25)
    assert_same(fedavg, algorithms.coop_sgd(oracle=oracles.sgd(**step), mixing=mixing), problem=MANY)
    assert_same(fedavg, algorithms.ri_sgd(**step), problem=MANY)


@pytest.mark.parametrize("options", slow_but([{}], [{}, {"cohort": 2}]), ids=["all", "cohort"])
def test_special_cases_of_the_newer_averaging_methods_are_fedavg_and_fedprox(options: dict[str, Any]) -> None:
    oracle = oracles.sgd(step=0.1, iterations=3, batch=2)
    fedavg = algorithms.fedavg(oracle=oracle)
    same = {
        "equally many steps": algorithms.fednova(oracle=oracle),
        "a large epsilon": algorithms.fedexp(oracle=oracle, epsilon=1e9),
        "only the agent's own gradient": algorithms.fedcm(oracle=oracle, alpha=1.0),
        "no contrast": algorithms.moon(features="model", oracle=oracle, mu=0.0),
        "no step uphill": algorithms.fedsam(oracle=oracle, rho=0.0),
        "nothing ahead": algorithms.fedacg(oracle=oracle, momentum=0.0, rho=0.0),
        "no momentum": algorithms.fedavgm(oracle=oracle, momentum=0.0),
    }
    for other in same.values():
        assert_same(fedavg, other, problem=MANY, **options)
    fedprox = algorithms.fedprox(rho=0.7, oracle=oracle)
    assert_same(fedprox, algorithms.fedacg(oracle=oracle, momentum=0.0, rho=0.7), problem=MANY, **options)
    feddyn = algorithms.feddyn(alpha=0.7, oracle=oracle)
    assert_same(feddyn, algorithms.fedspeed(alpha=0.7, rho=0.0, oracle=oracle), problem=MANY, **options)


def test_all_samples_make_f_svrg_fedlin() -> None:
    settings: dict[str, Any] = {"step": 0.1, "iterations": 3, "batch": None}
    assert_same(algorithms.f_svrg(**settings), algorithms.fedlin(**settings), problem=MANY)


def test_proxskip_without_control_is_local_gradient_descent() -> None:
    """Every round is a gradient step, and some rounds average: FedPD's random draws, FedAvg's steps."""
    run = simulate(algorithms.proxskip(step=0.5, p=0.6, control="frozen"), PROBLEM, rounds=15, seed=3)
    hessian, linear = PROBLEM.data["hessian"][:, 0], PROBLEM.data["linear"][:, 0]
    x = np.zeros((AGENTS, 5))
    for communicated in run.history["communicated"][1:]:
        x = x - 0.5 * (np.einsum("nij,nj->ni", hessian, x) - linear)
        x = np.broadcast_to(x.mean(0), x.shape) if communicated else x
    assert 0 < run.history["communications"][-1] < 15
    np.testing.assert_allclose(run.agents.x.tree, x, atol=1e-13)


def test_proxskip_sends_the_same_without_the_c_term_while_everyone_is_present() -> None:
    """The c_i add up to 0, so FedAvg's mean of the xh_i is the paper's; with compression only the paper's is exact."""
    method = algorithms.proxskip(step=0.5, p=0.6, batch=2)
    assert_same(method, form_with_absent(method), problem=MANY, rounds=60)
    run = simulate(algorithms.proxskip(step=0.5, p=0.6), PROBLEM, rounds=200, participation=0.5)
    np.testing.assert_allclose(np.asarray(run.agents.state.c.tree).sum(axis=0), 0, atol=1e-13)
    packed = transforms.wrap(algorithms.proxskip(step=0.5, p=0.6), up=transforms.top_k(0.4))
    np.testing.assert_allclose(simulate(packed, PROBLEM, rounds=1500, metrics_every=1500).model, MINIMISER, atol=1e-12)


def test_proxskip_with_a_regulariser_keeps_the_c_term() -> None:
    method = algorithms.proxskip(step=0.5, p=0.6, g=regularizers.l1(0.1))
    assert form_with_absent(method) is method


REACH: dict[str, Callable[[], Algorithm]] = {
    "fedpd": lambda: algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 8)),
    "fedpd-vr": lambda: algorithms.fedpd(eta=0.1, oracle=oracles.vr(gamma=0.3, iterations=4, refresh=5)),
    "admm": lambda: algorithms.admm(eta=0.5, oracle=exact(2)),
    "feddyn": lambda: algorithms.feddyn(alpha=2.0, oracle=exact(2)),
    "feddr": lambda: algorithms.feddr(eta=0.5, alpha=1.3, oracle=exact(2)),
    "fedadmm": lambda: algorithms.fedadmm(rho=2.0, oracle=exact(2)),
    "a_fedpd": lambda: algorithms.a_fedpd(eta=0.5, oracle=exact(2)),
    "feddc": lambda: algorithms.feddc(alpha=2.0, oracle=oracles.gd(0.2, 3)),
    "fedspeed without a step uphill": lambda: algorithms.fedspeed(alpha=2.0, rho=0.0, oracle=exact(2)),
    "scaffold": lambda: algorithms.scaffold(step=0.2, iterations=3),
    "scaffold-1": lambda: algorithms.scaffold(step=0.2, iterations=3, option=1),
    "vrl_sgd": lambda: algorithms.vrl_sgd(step=0.2, iterations=3),
    "fedlin": lambda: algorithms.fedlin(step=0.2, iterations=3),
    "feddane": lambda: algorithms.feddane(mu=2.0, oracle=exact(2)),
    "f_svrg": lambda: algorithms.f_svrg(step=0.2, iterations=3),
    "pr_spider": lambda: algorithms.pr_spider(step=0.2, iterations=3, refresh=5),
    "lag": lambda: algorithms.lag(step=1.0),
    "lag-server": lambda: algorithms.lag(step=1.0, trigger="server", smoothness=L),
    "cola": lambda: algorithms.cola(eta=1.0, smoothness=L, threshold=0.1, decay=0.9),
    "proxskip": lambda: algorithms.proxskip(step=1.0, p=0.5),
}


@pytest.mark.parametrize("name", REACH)
def test_the_minimiser_is_reached(name: str) -> None:
    run = simulate(REACH[name](), PROBLEM, rounds=500, metrics_every=500)
    np.testing.assert_allclose(run.model, MINIMISER, atol=1e-12)


FLOORS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: algorithms.fedavg(oracle=oracles.gd(0.2, 3)),
    "local_gd": lambda: algorithms.local_gd(step=0.2, iterations=3),
    "fedprox": lambda: algorithms.fedprox(rho=1.0, oracle=oracles.gd(0.2, 3)),
    "mpr_sgd": lambda: algorithms.mpr_sgd(step=0.1, momentum=0.5, iterations=3),
    "coop_sgd": lambda: algorithms.coop_sgd(oracle=oracles.gd(0.2, 3), alpha=0.1, beta=0.8),
    "ri_sgd": lambda: algorithms.ri_sgd(step=0.2, iterations=3),
    "fednova": lambda: algorithms.fednova(oracle=oracles.gd(0.2, 3)),
    "fedcm": lambda: algorithms.fedcm(oracle=oracles.gd(0.2, 3)),
    "fedsam": lambda: algorithms.fedsam(oracle=oracles.gd(0.2, 3)),
    "fedacg": lambda: algorithms.fedacg(oracle=oracles.gd(0.2, 3)),
    "fedavgm": lambda: algorithms.fedavgm(oracle=oracles.gd(0.1, 3), momentum=0.5),
    "fedspeed": lambda: algorithms.fedspeed(alpha=2.0, oracle=oracles.gd(0.2, 3)),
    "fedpd p=0.5": lambda: algorithms.fedpd(eta=0.5, oracle=exact(2), p=0.5),
    "proxskip frozen": lambda: algorithms.proxskip(step=0.5, p=0.6, control="frozen"),
}


@pytest.mark.parametrize("name", slow_but(["fedavg", "fedprox", "fednova", "fedpd p=0.5", "proxskip frozen"], FLOORS))
def test_a_floor_is_a_floor(name: str) -> None:
    """The error does not vanish with more rounds, and the method does not diverge."""
    history = simulate(FLOORS[name](), PROBLEM, rounds=600, metrics_every=10).history
    start, late = history["stationarity"][0], history["stationarity"][30:]
    assert start > late.max()
    assert late.min() > 1e-9
    assert np.median(late[:15]) < 30 * np.median(late[15:]) < 900 * np.median(late[:15])


ONE = 1 / AGENTS  # a single agent at a time
ROBUST = ("fedpd", "admm", "feddyn", "feddr", "fedadmm", "feddc", "scaffold", "lag")
COME_AND_GO = [(name, share) for name in ROBUST for share in (0.5, ONE)]
COME_AND_GO += [("a_fedpd", 0.5), ("vrl_sgd", 0.5), ("cola", 0.5), ("proxskip", 0.5)]


@pytest.mark.parametrize(
    ("name", "share"), slow_but([("fedpd", 0.5), ("scaffold", ONE), ("lag", 0.5), ("a_fedpd", 0.5)], COME_AND_GO)
)
def test_the_minimiser_is_reached_though_agents_come_and_go(name: str, share: float) -> None:
    run = simulate(REACH[name](), PROBLEM, rounds=1500, metrics_every=1500, participation=share)
    np.testing.assert_allclose(run.model, MINIMISER, atol=1e-10)
    assert run.updates.min() > 0


COMPOSITE: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "l1": (regularizers.l1(0.3), lambda c: np.sign(c) * np.maximum(np.abs(c) - 0.3, 0)),
    "l2": (regularizers.l2(1.0), lambda c: c / 2),
    "box": (regularizers.box(-0.2, 0.5), lambda c: np.clip(c, -0.2, 0.5)),
    "group_l1": (regularizers.group_l1(0.5), lambda c: c * max(0, 1 - 0.5 / np.linalg.norm(c))),
}


@pytest.mark.parametrize("name", slow_but(["l1"], COMPOSITE))
def test_composite_problems_are_solved(name: str) -> None:
    """f_i = ||x - c_i||^2/2, so the minimiser of f + g is prox_g(mean c_i)."""
    g, solution = COMPOSITE[name]
    centres = np.random.default_rng(5).standard_normal((4, 3)) + np.array([1.0, -0.5, 0.1])
    problem = problems.quadratic(np.broadcast_to(np.eye(3), (4, 3, 3)), centres)
    solve = oracles.gd(step=0.5, iterations=60)
    for algorithm in (
        algorithms.admm(eta=1.0, oracle=solve, g=g),
        algorithms.feddr(eta=1.0, oracle=solve, g=g),
        algorithms.proxskip(step=0.5, p=0.5, g=g),
    ):
        run = simulate(algorithm, problem, rounds=150, metrics_every=150)
        np.testing.assert_allclose(run.model, solution(centres.mean(0)), atol=1e-12)


@pytest.mark.parametrize("execution", slow_but(["auto"], ["auto", "debug"]))
def test_a_mixing_matrix_is_used_in_the_precision_of_the_data(execution: Any) -> None:
    """1/3 in float32 would move the model of a float64 problem by 1e-8 of its size."""
    problem = problems.random_quadratic(agents=3, dimension=2)
    oracle = oracles.gd(step=0.1, iterations=2)
    mixed = algorithms.coop_sgd(oracle=oracle, mixing=np.full((3, 3), 1 / 3))
    runs = [simulate(one, problem, rounds=3, execution=execution) for one in (mixed, algorithms.fedavg(oracle=oracle))]
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-13)
