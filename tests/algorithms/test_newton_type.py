"""Newton-type methods: exact where theory says so, and each other in special cases."""

from typing import Any

import numpy as np

from fedpd import Algorithm, algorithms, data, oracles, problems, simulate

L, MU = 1.0, 0.2
PROBLEM = problems.random_quadratic(6, 5, smoothness=L, convexity=MU, seed=1)
HESSIAN = PROBLEM.data["hessian"][0, 0]
EQUAL = problems.quadratic(np.repeat(HESSIAN[None], 3, axis=0), np.random.default_rng(0).standard_normal((3, 5)))


def exact(penalty: float) -> Any:
    return oracles.gd(step=1 / (L + penalty), iterations=80)


def stationarity(algorithm: Algorithm, problem: Any = PROBLEM, rounds: int = 12) -> np.ndarray:
    history = simulate(algorithm, problem, rounds=rounds).history
    return history["stationarity"] / history["stationarity"][0]


def test_newton_cg_solves_a_quadratic_with_one_gradient_and_d_products() -> None:
    """Conjugate gradients end after d = 5 products; the point is sent with the answer to the last one."""
    found = stationarity(algorithms.newton_cg(forcing=1e-12), rounds=6)
    assert (found[1:6] == 1).all()  # products leave the model where it is
    assert found[6] < 1e-24


def test_giant_and_fedosaa_take_newton_steps_where_hessians_are_equal() -> None:
    assert stationarity(algorithms.giant(iterations=5), EQUAL, rounds=1)[1] < 1e-20
    for base in ("svrg", "scaffold"):
        found = stationarity(algorithms.fedosaa(step=1.0, iterations=5, base=base, cut=1e-12), EQUAL, rounds=3)
        assert found[-1] < 1e-12


def test_giant_counts_three_communications_per_round() -> None:
    history = simulate(algorithms.giant(iterations=5), EQUAL, rounds=2).history
    assert history["communications"].tolist() == [0, 3, 6]
    assert history["bytes_up"][1] == 3 * 8 * (2 * 5 + 11)
    assert history["bytes_down"][1] == 3 * 8 * (3 * 5)


def test_dane_is_feddane_when_everyone_takes_part() -> None:
    dane, feddane = (make(mu=1.0, oracle=exact(1.0)) for make in (algorithms.dane, algorithms.feddane))
    np.testing.assert_allclose(stationarity(dane), stationarity(feddane), rtol=1e-9)


def test_s_dane_is_dane_where_local_problems_are_solved() -> None:
    """The mean of the local optimality conditions says that v + is the mean of the x_i, if mu is 0."""
    s_dane = stationarity(algorithms.s_dane(rho=1.0, oracle=exact(1.0)))
    np.testing.assert_allclose(s_dane, stationarity(algorithms.dane(mu=1.0, oracle=exact(1.0))), rtol=1e-6)


def test_the_first_round_of_acc_s_dane_is_that_of_s_dane() -> None:
    settings: dict[str, Any] = {"rho": 1.0, "oracle": oracles.gd(0.3, 2), "mu": 0.1}
    run = simulate(algorithms.acc_s_dane(**settings), PROBLEM, rounds=1)
    server = simulate(algorithms.s_dane(**settings), PROBLEM, rounds=1).model
    a = 1.0  # B/rho
    ratio = a / (1 + a * 0.1)
    following = (1 + np.sqrt(1 + 4 * ratio)) / 2
    x = run.agents.x.tree.mean(0)
    np.testing.assert_allclose(run.model, (ratio * x + following * server) / (ratio + following), atol=1e-12)


def test_acceleration_helps_where_the_condition_is_bad() -> None:
    hessian = np.diag(np.logspace(-3, 0, 20))
    problem = problems.quadratic(np.repeat(hessian[None], 3, axis=0), np.ones((3, 20)))
    settings: dict[str, Any] = {"rho": 1.0, "oracle": oracles.gd(0.5, 8)}
    accelerated = stationarity(algorithms.acc_s_dane(**settings), problem, rounds=100)[-1]
    assert accelerated < 0.1 * stationarity(algorithms.s_dane(**settings), problem, rounds=100)[-1]


def test_fedadmm_insa_is_fedpd_with_exact_solves_and_fixed_penalties() -> None:
    settings: dict[str, Any] = {"beta": 2.0, "smoothness": L, "convexity": 1e-30, "iterations": 80}
    insa = algorithms.fedadmm_insa(**settings, tau=1.0, delta=0.0)
    fedpd = algorithms.fedpd(eta=0.5, oracle=exact(2.0))
    np.testing.assert_allclose(stationarity(insa), stationarity(fedpd), rtol=1e-6, atol=1e-14)


def test_fedadmm_insa_finds_its_penalty() -> None:
    """Penalties that are a thousand times too large do little harm, since they adapt; fixed ones do not get there."""
    settings: dict[str, Any] = {"beta": 1e3, "smoothness": L, "convexity": MU}
    assert stationarity(algorithms.fedadmm_insa(**settings), rounds=150)[-1] < 1e-12
    assert stationarity(algorithms.fedadmm_insa(**settings, tau=1.0), rounds=150)[-1] > 1e-2


def test_fedosaa_ends_with_many_agents_on_two_devices() -> None:
    """A batch of LAPACK calls per agent once waited for ever here."""
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=100, samples=20, dimension=20))
    run = simulate(algorithms.fedosaa(step=0.5, iterations=8), problem, rounds=3, devices=2)
    assert run.history["round"][-1] == 3
