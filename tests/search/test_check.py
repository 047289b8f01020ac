"""A run beside its theorem: bounds by hand, verdicts, and the assumptions that fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, Problem, Run, algorithms, data, oracles, problems, simulate, theory, transforms
from fedpd.theory import TheoryCheck, check, max_eta, rates
from fedpd.theory import variance_reduction as vr
from tests.slow_cases import slow_but

QUADRATIC = problems.quadratic(
    np.array([np.diag([1.0, 0.5]), np.diag([0.2, -0.1])]), np.array([[1.0, 0.0], [0.0, -1.0]]), start=np.ones(2)
)
ETA = 0.9 * max_eta(1.0)
GD = oracles.gd(step=0.2, iterations=3)


def run_of(method: Any = None, problem: Problem = QUADRATIC, rounds: int = 12, **options: Any) -> Any:
    method = algorithms.fedpd(eta=ETA, oracle=GD) if method is None else method
    return simulate(method, problem, rounds=rounds, **options)


def recorded(**options: Any) -> Any:
    return run_of(record=["local_accuracy"], **options)


def held(found: TheoryCheck, name: str) -> bool | None:
    return next(one.holds for one in found.assumptions if one.name == name)


def test_the_bound_is_the_theorems_and_the_mean_is_that_of_the_rounds() -> None:
    run = recorded()
    found = check(run, QUADRATIC)
    squares, accuracy = run.history["stationarity"], run.history["local_accuracy"]
    assert found.theorem == "Theorem 1, case I (p = 0)"
    assert found.rounds.tolist() == list(range(1, 13))
    assert found.measured[2] == pytest.approx(squares[:3].mean(), rel=1e-14)
    # f(x) = 0.3 x_1^2 + 0.1 x_2^2 - x_1/2 + x_2/2: f(1, 1) = 0.4, and inf f = -(1/4)/(4 0.3) - (1/4)/(4 0.1)
    gap = 0.4 + 0.25 / 1.2 + 0.25 / 0.4
    gradients = ((1 - 1) ** 2 + 0.5**2 + 0.2**2 + (-0.1 + 1) ** 2) / 2
    wanted = rates.bound(3, gap, L=1.0, eta=ETA, p=0.0, epsilon_1=accuracy[1:].max(), gradients=gradients)
    assert found.bound[2] == pytest.approx(wanted, rel=1e-9)
    assert found.verdict == "holds"
    assert all(one.holds for one in found.assumptions)


@pytest.mark.parametrize("options", slow_but([{}], [{}, {"devices": 2}, {"execution": "debug"}]), ids=str)
def test_the_local_accuracy_is_that_of_a_plain_program(options: Any) -> None:
    hessians, linear = QUADRATIC.data["hessian"][:, 0], QUADRATIC.data["linear"][:, 0]
    x, x0, dual, largest = np.ones((2, 2)), np.ones(2), np.zeros((2, 2)), []
    for _ in range(12):

        def gradient(x: np.ndarray, x0: np.ndarray = x0, dual: np.ndarray = dual) -> np.ndarray:
            return np.einsum("nij,nj->ni", hessians, x) - linear + dual + (x - x0) / ETA

        for _ in range(3):
            x = x - 0.2 * gradient(x)
        largest.append(np.sum(gradient(x) ** 2, axis=1).max())
        dual = dual + (x - x0) / ETA
        x0 = (x + ETA * dual).mean(axis=0)
    history = recorded(**options).history
    assert np.isnan(history["local_accuracy"][0]), "no local solve has ended at the start"
    np.testing.assert_allclose(history["local_accuracy"][1:], largest, rtol=1e-9)


def test_without_the_accuracy_a_run_below_the_bound_satisfies_it_for_any() -> None:
    found = check(run_of(), QUADRATIC)
    assert found.verdict == "holds"
    assert found.reason.endswith("at every T, for any eps_1")
    assert held(found, "eps_1") is None
    exact = rates.bound(12, 0.4 + 0.25 / 1.2 + 0.25 / 0.4, L=1.0, eta=ETA, p=0.0, epsilon_1=0.0, gradients=0.55)
    assert found.bound[-1] == pytest.approx(exact, rel=1e-9)
    assert found.bound[-1] < check(recorded(), QUADRATIC).bound[-1]


def worse(run: Run) -> Run:
    """A run whose ||grad f||^2 is a million times larger: no run has that, but a fault in the package may."""
    return replace(run, history={**run.history, "stationarity": 1e6 * run.history["stationarity"]})


def test_a_run_above_the_bound_is_found() -> None:
    found = check(worse(recorded()), QUADRATIC)
    assert found.verdict == "violated"
    assert "which contradicts the theorem" in found.reason
    unknown = check(worse(run_of()), QUADRATIC)
    assert unknown.verdict == "unknown"
    assert unknown.reason.endswith('as far as eps_1 is known. Use record=["local_accuracy"] and metrics_every=1')


def test_rounds_that_were_not_measured_leave_no_verdict() -> None:
    found = check(recorded(metrics_every=4), QUADRATIC)
    assert found.rounds.tolist() == [4, 8, 12]
    squares = recorded().history["stationarity"]
    assert found.measured[1] == pytest.approx((squares[0] + squares[4]) / 8, rel=1e-12)
    assert found.verdict == "unknown"
    assert "metrics_every=1" in found.reason
    above = check(worse(recorded(metrics_every=4)), QUADRATIC)
    assert above.verdict == "unknown", "eps_1 may be larger in the other rounds"
    assert above.reason.endswith('as far as eps_1 is known. Use record=["local_accuracy"] and metrics_every=1')


def own(losses: Any = lambda x, row: row @ x + 0.5 * (x @ x)) -> Problem:
    return problems.from_losses(losses, np.array([[[1.0, 2.0]], [[0.5, -1.0]]]), np.ones(2))


def test_an_estimate_and_an_assumed_floor_are_not_certain() -> None:
    problem = own()
    run = recorded(problem=problem)
    found = check(run, problem, floor=-10.0)
    assert held(found, "L") is None
    assert held(found, "lower bound of f") is True
    assert found.verdict == "holds"
    assert found.reason.endswith("at every T, if L is right")
    assert "one of these is wrong: L" in check(worse(run), problem, floor=-10.0).reason
    below = check(run, problem)  # 0 is not a lower bound here
    assert held(below, "lower bound of f") is False
    assert below.verdict == "not covered"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "name", "words"),
    [
        (algorithms.fedpd(eta=1.0, oracle=GD), {}, "eta", "1, not below (sqrt(5)-1)/(4L) = 0.309"),
        (algorithms.fedpd(eta=ETA, oracle=GD, p=0.2), {}, "delta", "no upper bound for all x is known"),
        (algorithms.fedpd(eta=ETA, oracle=GD, p="auto"), {}, "method", "p = auto"),
        (algorithms.fedpd(eta=ETA, oracle=GD, p=lambda r: 0.1), {}, "method", "p ="),
        (algorithms.fedpd(eta=ETA, oracle=GD, p=0.1, drift="corrected"), {}, "method", "drift = corrected"),
        (algorithms.fedpd(eta=ETA, oracle=GD, x0_rule="matlab"), {}, "method", "x0_rule = matlab"),
        (algorithms.fedpd(eta=ETA, oracle=oracles.lbfgs(), memory=3), {}, "method", "memory = 3"),
        (algorithms.fedpd(eta="auto", oracle=oracles.lbfgs()), {}, "method", "eta = auto"),
        (transforms.wrap(algorithms.fedpd(eta=ETA, oracle=GD), up=transforms.top_k(0.5)), {}, "method", "up = "),
        (algorithms.fedavg(oracle=GD), {}, "method", "is not FedPD"),
        (None, {"participation": 0.5}, "participation", "some agents were absent"),
        (None, {"average": True}, "measured", "average"),
        (None, {"metrics_agents": 1}, "measured", "metrics_agents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_no_theorem_covers_is_called_that(method: Any, options: Any, name: str, words: str) -> None:
    found = check(run_of(method, rounds=4, **options), QUADRATIC)
    assert found.verdict == "not covered"
    assert found.theorem == ""
    assert held(found, name) is False
    assert words in next(one.text for one in found.assumptions if one.name == name)
    assert np.isnan(found.bound).all()
    assert np.isfinite(found.measured).all()
    assert words in found.reason
    assert found.plot().axes[0].lines[0].get_xdata().size == 4


@pytest.mark.slow
def test_skipping_needs_delta_and_several_seeds() -> None:
    problem = problems.quadratic(np.stack([np.eye(2)] * 2), np.array([[1.0, 0.0], [0.0, 1.0]]))
    method = algorithms.fedpd(eta=0.1, oracle=GD, p=0.3)
    one, many = (recorded(method=method, problem=problem, seed=seed) for seed in (0, range(3)))
    assert held(check(one, problem), "p") is None
    found = check(many, problem)
    assert found.theorem == "Theorem 1, case II (p > 0)"
    assert held(found, "p") is True
    assert found.measured[-1] == pytest.approx(many.mean["stationarity"][:-1].mean(), rel=1e-12)
    accuracy = max(run.history["local_accuracy"][1:].max() for run in many.runs)
    settings: dict[str, Any] = {"L": 1.0, "eta": 0.1, "p": 0.3, "epsilon_1": accuracy, "gradients": 1.0}
    wanted = rates.bound(12, 0.25, **settings, delta=0.5**0.5, agents=2)
    assert found.bound[-1] == pytest.approx(wanted, rel=1e-9)
    convex = check(many, problem, nonconvexity=0.0)
    assert convex.bound[-1] < found.bound[-1]
    large = check(recorded(method=algorithms.fedpd(eta=0.1, oracle=GD, p=0.9), problem=problem), problem)
    assert held(large, "p") is False
    assert check(many, problem, delta=10.0).bound[-1] > found.bound[-1]


def test_oracle_2_has_theorem_3() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=3, samples=10, dimension=2))
    L = theory.smoothness_constants(problem).per_sample
    assert L is not None
    eta = 0.9 * vr.max_eta(L, 2, 5, 1)
    run = run_of(algorithms.fedpd(eta=eta, oracle=oracles.vr(13 * eta, 2, 5)), problem, seed=range(2))
    found = check(run, problem)
    assert found.theorem == "Theorem 3 (p = 0)"
    gradients = float(theory.profile(problem, [problem.start]).squares[0]) / 3
    wanted = vr.bound(12, np.log(2), gradients, L=L, eta=eta, gamma=13 * eta, iterations=2, refresh=5, batch=1)
    assert found.bound[-1] == pytest.approx(wanted, rel=1e-6)
    assert found.verdict == "holds"


@pytest.mark.slow
def test_oracle_2_needs_the_settings_of_theorem_3() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=3, samples=10, dimension=2))
    L = theory.smoothness_constants(problem).per_sample
    assert L is not None
    eta = 0.9 * vr.max_eta(L, 2, 5, 1)
    for gamma, p, name in ((eta / 10, 0.0, "gamma"), (13 * eta, 0.1, "p")):
        method = algorithms.fedpd(eta=eta, oracle=oracles.vr(gamma, 2, 5), p=p)
        assert held(check(run_of(method, problem), problem), name) is False
    early = algorithms.fedpd(eta=eta, oracle=oracles.vr(13 * eta, 2, 5, tolerance=1e-3))
    assert held(check(run_of(early, problem), problem), "oracle") is False


def test_another_problem_or_start_is_refused() -> None:
    run = recorded()
    with pytest.raises(FedpdError, match=r"has f\(x\^0\) = .*, and the run began at f = 0\.4"):
        check(run, problems.quadratic(np.stack([np.eye(2)] * 2), np.ones((2, 2))))
    hessians = QUADRATIC.data["hessian"][:, 0]
    same_start = problems.quadratic(hessians + np.array([[0, 0.5], [0.5, 0]]), np.array([[1.5, 0.0], [0.5, -1.0]]))
    with pytest.raises(FedpdError, match=r"has f = .* at the run's model, and the run recorded"):
        check(run, replace(same_start, start=np.ones(2)))
    elsewhere = recorded(start=np.zeros(2))
    with pytest.raises(FedpdError, match="Give the problem of the run, and start= if it began at another model"):
        check(elsewhere, QUADRATIC)
    assert check(elsewhere, QUADRATIC, start=np.zeros(2)).verdict == "holds"
    with pytest.raises(FedpdError, match="start"):
        check(elsewhere, QUADRATIC, start=np.zeros(3))
    with pytest.raises(FedpdError, match="run = 3: must be"):
        check(3, QUADRATIC)
    with pytest.raises(FedpdError, match="floor = 5"):
        check(run, QUADRATIC, floor=5.0)


def test_it_is_shown_drawn_and_saved(tmp_path: Path) -> None:
    found = check(recorded(), QUADRATIC)
    text = repr(found)
    assert text.startswith("Theorem 1, case I (p = 0) on fedpd(eta=")
    assert "\n  holds: mean of ||grad f||^2 over 12 rounds = " in text
    assert "yes  L: 1, exact" in text
    assert "<td" in found._repr_html_()
    frame = found.frame()
    assert list(frame.columns) == ["rounds", "communications", "measured", "bound"]
    assert frame["bound"].tolist() == found.bound.tolist()
    measured, bound = found.plot("rounds").axes[0].lines
    assert measured.get_ydata().tolist() == found.measured.tolist()
    assert bound.get_ydata().tolist() == found.bound.tolist()
    with pytest.raises(FedpdError, match="against = 'seconds'"):
        found.plot("seconds")
    again = fedpd.load(found.save(tmp_path / "check"))
    assert repr(again) == text
    assert again.measured.tolist() == found.measured.tolist()


@pytest.mark.parametrize(
    "options", [{"participation": 0.5}, {"cohort": 1}, {"store": "agents"}, {"average": True}], ids=str
)
def test_the_local_accuracy_is_refused_where_states_do_not_show_it(options: Any, tmp_path: Path) -> None:
    options = {key: tmp_path / value if key == "store" else value for key, value in options.items()}
    with pytest.raises(FedpdError, match="record = 'local_accuracy': needs "):
        recorded(**options)


def test_the_local_accuracy_is_refused_without_duals() -> None:
    with pytest.raises(FedpdError, match=r"needs algorithms\.fedpd itself"):
        recorded(method=algorithms.fedavg(oracle=GD))
