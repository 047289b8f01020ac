"""Check Theorems 1 and 3: compare the mean of ||grad f||^2 over the rounds with the printed and the proved bound.

fedpd checks a bound at every T of the run. It tries each theorem on an ordinary problem, and from a minimiser of f,
where the printed bound has only the errors of the local solves. An infinite printed bound claims nothing.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpd import algorithms, oracles, problems, simulate, theory
from fedpd.core import Oracle, Problem
from fedpd.experiments import experiment
from fedpd.reproduce.plots import lines_figure
from fedpd.reproduce.session import Findings, Session, experiment_text, run_file
from fedpd.reproduce.verdict import Check, outcome
from fedpd.theory import printed, rates
from fedpd.theory import variance_reduction as vr

ACCURACY = 1e-10  # eps_1 of theorem1.toml
ITERATIONS, REFRESH = 2, 5  # Q and I of Theorem 3's run


def running_means(stationarity: np.ndarray) -> np.ndarray:
    """Return (1/T) sum_{r<T} ||grad f(x^r)||^2 for T = 1, 2, ..."""
    return np.cumsum(stationarity[:-1]) / np.arange(1, len(stationarity))


def theorem_1(session: Session) -> Findings:
    """Check case I of Theorem 1 on quadratics, and from a minimiser."""
    plan, results = run_file(session, "theorem1")
    problem = plan.problem
    gap = theory.objective(problem, problem.start) - theory.objective(problem, problem.answer.minimiser)
    gradients = float(np.mean(np.sum(problem.data["linear"] ** 2, axis=-1)))  # grad f_i(0) = -c_i
    checks: list[Check] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, eta in (("FedPD, eta L = 0.15", 0.15), ("FedPD, eta L = 0.3", 0.3)):
        means = running_means(results[label].runs[0].history["stationarity"])
        rounds = range(1, len(means) + 1)
        as_printed = [printed.bound(T, gap, L=1.0, eta=eta, epsilon_1=ACCURACY) for T in rounds]
        proved = [rates.bound(T, gap, L=1.0, eta=eta, gradients=gradients, epsilon_1=ACCURACY) for T in rounds]
        checks.append(_bound(f"case I, {label}: every T up to {len(means)}", means, as_printed, proved))
        lines |= {f"{label}: measured": _points(means), f"{label}: proved": _points(proved)}
    oracle = oracles.gd(step=1 / (1 + 1 / 0.3), iterations=500, tolerance=1e-20)
    means = running_means(_from_minimiser(oracle))
    rounds = range(1, len(means) + 1)
    as_printed = [printed.bound(T, 0.0, L=1.0, eta=0.3, epsilon_1=1e-20) for T in rounds]
    proved = [rates.bound(T, 0.0, L=1.0, eta=0.3, gradients=1.0, epsilon_1=1e-20) for T in rounds]
    why = "lambda^0 = 0 is not -grad f_i(x^0): the first round moves away. The start adds C_1 mean ||grad f_i(x^0)||^2."
    checks.append(_bound("case I from a minimiser of f", means, as_printed, proved, why))
    figure = lines_figure(lines, [], "T, rounds", "mean of ‖∇f‖² over the rounds", points_label="")
    return Findings(checks, "quadratics of 10 agents, L = 1, case I (p = 0)", figure)


def theorem_3(session: Session) -> Findings:
    """Check Theorem 3 on logistic regression, and from a minimiser."""
    schedule = (ITERATIONS, REFRESH, 1)
    steps: dict[str, Any] = {"iterations": ITERATIONS, "refresh": REFRESH}
    problem = experiment.parse(experiment_text("theorem3", steps | {"eta": 1.0, "gamma": 1.0})).problem
    L = theory.smoothness_constants(problem).per_sample or math.inf
    eta = 0.9 * vr.max_eta(L, *schedule)
    gamma = vr.SAFE_GAMMA * eta
    _, results = run_file(session, "theorem3", steps | {"eta": eta, "gamma": gamma})
    runs = results["FedPD-VR"].runs
    means = running_means(np.mean([run.history["stationarity"] for run in runs], axis=0))
    gap, gradients = theory.objective(problem, problem.start), _start_gradients(problem)
    rounds = range(1, len(means) + 1)
    settings = steps | {"L": L, "eta": eta, "gamma": gamma, "batch": 1}
    as_printed = [vr.printed_bound(T, gap, **settings) for T in rounds]
    proved = [vr.bound(T, gap, gradients, **settings) for T in rounds]
    negative = vr.printed_constants(**settings).C_10
    why = f"The printed C_10 is {negative:.3g} here, and the printed bound infinite where it is negative."
    checks = [_bound(f"Q = {ITERATIONS}, I = {REFRESH}, B = 1, mean of 5 seeds", means, as_printed, proved, why)]
    away = running_means(_from_minimiser(oracles.vr(30.0, 1, 1, None)))
    exact: dict[str, Any] = {"L": 1.0, "eta": 0.3, "gamma": 30.0, "iterations": 1, "refresh": 1, "batch": None}
    rounds = range(1, len(away) + 1)
    nothing = [vr.printed_bound(T, 0.0, **exact) for T in rounds]
    enough = [vr.bound(T, 0.0, 1.0, **exact) for T in rounds]
    why = "As for Theorem 1: the start adds C_14 mean ||grad f_i(x^0)||^2."
    checks += [_bound("from a minimiser of f", away, nothing, enough, why), _positive()]
    lines = {"measured": _points(means), "proved": _points(proved)}
    figure = lines_figure(lines, [], "T, rounds", "mean of ‖∇f‖² over the rounds", points_label="")
    return Findings(checks, "10 agents x 40 samples, D = 5", figure)


def _from_minimiser(oracle: Oracle) -> np.ndarray:
    """Return ||grad f||^2 of FedPD from f's minimiser 0; the f_i have curvatures 1 and 0.2 and opposite gradients."""
    problem = problems.quadratic(np.array([[[1.0]], [[0.2]]]), np.array([[1.0], [-1.0]]))
    run = simulate(algorithms.fedpd(eta=0.3, oracle=oracle), problem, rounds=5, progress=False)
    return run.history["stationarity"]


def _bound(what: str, means: np.ndarray, as_printed: Sequence[float], proved: Sequence[float], why: str = "") -> Check:
    T = len(means)
    below, held = bool((means <= as_printed).all() and np.isfinite(as_printed).all()), bool((means <= proved).all())
    words = f"{means[-1]:.2e} at T = {T}; proved bound {proved[-1]:.2e}"
    return Check(what, f"at most {as_printed[-1]:.2e} at T = {T}", words, outcome(below and held, held), why)


def _positive() -> Check:
    """Check the sign of the printed C_10 under the printed conditions."""
    negative = vr.printed_constants(1.0, 0.99 * vr.max_eta(1.0, 1, 100, 1), math.inf, 1, 100, 1).C_10
    corrected = vr.constants(1.0, 0.99 * vr.max_eta(1.0, 1, 100, 1), math.inf, 1, 100, 1).C_10
    return Check(
        "C_10 > 0 under the stated conditions, at L = 1, Q = B = 1, I = 100",
        "positive",
        f"{negative:.3g} as printed, {corrected:.3g} corrected",
        outcome(negative > 0, corrected > 0),
        "Young's inequality with the weight sqrt(I Q/B) in place of I Q/B.",
    )


def _start_gradients(problem: Problem) -> float:
    """Return mean_i ||grad f_i(0)||^2 of logistic regression; the gradient is half the mean of -b a."""
    return float(np.mean(np.sum((problem.data.mean(axis=1) / 2) ** 2, axis=-1)))


def _points(values: Sequence[float] | np.ndarray) -> list[tuple[float, float]]:
    return [(T, float(value)) for T, value in enumerate(values, 1)]
