"""Check what the paper proves: Theorems 1 and 3, Claims 2.1 and 2.2, and rows of Table 1.

A theorem bounds the mean of ||grad f||^2 over the rounds. fedpd checks the printed and the proved bound at every T of
the run. It tries each theorem on an ordinary problem, and from a minimiser of f, where the printed bound has only the
errors of the local solves. An infinite printed bound claims nothing.

Claim 2.1 is on the communications of every method on the hard instance, and Claim 2.2 on FedAvg on opposing quadratics.

Table 1 says how the number of communications grows as epsilon falls, here on hard instances of Claim 2.1. They have two
agents, L = 1 and f(0) - inf f = 1; a chain of T links makes epsilon proportional to 1/T. The exponent is the slope of
log(communications) as a function of log(1/epsilon). A printed order is an upper bound. So a method agrees if its
exponent is, within 0.25, at most the printed one and at least 1, the exponent of Claim 2.1. A row differs if its method
never reached epsilon. Rows for strongly convex problems and for noisy gradients cannot be run here.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpd import algorithms, oracles, problems, simulate, theory
from fedpd.core import Oracle
from fedpd.experiments.experiment import parse
from fedpd.experiments.runner import Result
from fedpd.problems.hard_instance import PSI_1, initial_gap
from fedpd.report.figures import comparison_figure
from fedpd.reproduce.session import Check, Findings, Session, experiment_text, lines_figure, numbers, outcome, run_file
from fedpd.search.sweep import first_below
from fedpd.theory import printed, rates
from fedpd.theory import variance_reduction as vr
from fedpd.theory.complexity import TABLE

ACCURACY = 1e-10  # eps_1 of theorem1.toml
ITERATIONS, REFRESH = 2, 5  # Q and I of Theorem 3's run


def running_means(stationarity: np.ndarray) -> np.ndarray:
    """Return (1/T) sum_{r<T} ||grad f(x^r)||^2 for T = 1, 2, ..."""
    return np.cumsum(stationarity[:-1]) / np.arange(1, len(stationarity))


def theorem_1(session: Session) -> Findings:
    """Check case I of Theorem 1 on quadratics, and from a minimiser."""
    experiment, results = run_file(session, "theorem1")
    problem = experiment.problem
    gap = theory.objective(problem, problem.start) - theory.objective(problem, problem.answer.minimiser)
    gradients = float(np.mean(np.sum(problem.data["linear"] ** 2, axis=-1)))  # grad f_i(0) = -c_i
    checks: list[Check] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, eta in (("FedPD, eta L = 0.15", 0.15), ("FedPD, eta L = 0.3", 0.3)):
        means = running_means(results[label].runs[0].history["stationarity"])
        rounds = range(1, len(means) + 1)
        as_printed = [printed.bound(T, gap, L=1.0, eta=eta, p=0.0, epsilon_1=ACCURACY) for T in rounds]
        proved = [rates.bound(T, gap, L=1.0, eta=eta, gradients=gradients, p=0.0, epsilon_1=ACCURACY) for T in rounds]
        checks.append(_bound(f"case I, {label}: every T up to {len(means)}", means, as_printed, proved))
        lines |= {f"{label}: measured": _points(means), f"{label}: proved": _points(proved)}
    oracle = oracles.gd(step=1 / (1 + 1 / 0.3), iterations=500, tolerance=1e-20)
    means = running_means(_from_minimiser(oracle))
    rounds = range(1, len(means) + 1)
    as_printed = [printed.bound(T, 0.0, L=1.0, eta=0.3, p=0.0, epsilon_1=1e-20) for T in rounds]
    proved = [rates.bound(T, 0.0, L=1.0, eta=0.3, gradients=1.0, p=0.0, epsilon_1=1e-20) for T in rounds]
    why = "lambda^0 = 0 is not -grad f_i(x^0): the first round moves away. The start adds C_1 mean ||grad f_i(x^0)||^2."
    checks.append(_bound("case I from a minimiser of f", means, as_printed, proved, why))
    figure = lines_figure(lines, [], "T, rounds", "mean of ‖∇f‖² over the rounds")
    return Findings(checks, "quadratics of 10 agents, L = 1, case I (p = 0)", figure)


def theorem_3(session: Session) -> Findings:
    """Check Theorem 3 on logistic regression, and from a minimiser."""
    schedule = (ITERATIONS, REFRESH, 1)
    steps: dict[str, Any] = {"iterations": ITERATIONS, "refresh": REFRESH}
    problem = parse(experiment_text("theorem3", steps | {"eta": 1.0, "gamma": 1.0})).problem
    L = theory.smoothness_constants(problem).per_sample or math.inf
    eta = 0.9 * vr.max_eta(L, *schedule)
    gamma = vr.SAFE_GAMMA * eta
    _, results = run_file(session, "theorem3", steps | {"eta": eta, "gamma": gamma})
    runs = results["FedPD-VR"].runs
    means = running_means(np.mean([run.history["stationarity"] for run in runs], axis=0))
    gap = theory.objective(problem, problem.start)
    # mean_i ||grad f_i(0)||^2 of logistic regression: the gradient is half the mean of -b a
    gradients = float(np.mean(np.sum((problem.data.mean(axis=1) / 2) ** 2, axis=-1)))
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
    figure = lines_figure(lines, [], "T, rounds", "mean of ‖∇f‖² over the rounds")
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


def _points(values: Sequence[float] | np.ndarray) -> list[tuple[float, float]]:
    return [(T, float(value)) for T, value in enumerate(values, 1)]


AGENTS, LINKS, EPSILON, ROUNDS = 8, 16, 1e-3, 200
GROWTH = {  # label: (step, Q)
    "FedAvg Q=1, step 0.1": (0.1, 1),
    "FedAvg Q=2, step 0.1": (0.1, 2),
    "FedAvg Q=8, step 0.1": (0.1, 8),
    "FedAvg Q=2, step 0.5": (0.5, 2),
}


def claim_1(session: Session) -> Findings:
    """Check that no method reaches epsilon before the T-th communication, and check the printed bound."""
    _, results = run_file(session, "claim2.1", {"agents": AGENTS, "links": LINKS, "epsilon": EPSILON, "rounds": ROUNDS})
    needed = {label: first_below(result.runs[0], EPSILON) for label, result in results.items()}
    reached = [number for number in needed.values() if not math.isnan(number)]
    gap = initial_gap(AGENTS, LINKS, epsilon=EPSILON)
    printed = gap * AGENTS / (10 * math.pi**2 * EPSILON)  # L = 1
    corrected = gap / (2 * math.pi**2 * AGENTS * EPSILON) - PSI_1 * AGENTS / 2
    fewest = min(reached, default=math.inf)
    told = {label: f"not in {ROUNDS}" if math.isnan(number) else f"{number:.0f}" for label, number in needed.items()}
    each = ", ".join(f"{label}: {words}" for label, words in told.items())
    checks = [
        Check(
            f"no method reaches epsilon in fewer than T = {LINKS} communications, N = {AGENTS}",
            f"at least T = {LINKS}",
            each,
            outcome(bool(reached) and fewest >= LINKS),
            "The chain's last entry is 0 until then, for any Q.",
        ),
        Check(
            "the bound of Theorem B.1 on these f_i",
            f"(f(0) - inf f) L N/(10 pi^2 epsilon) = {printed:.1f}",
            f"fewest {fewest:.0f}; corrected bound {corrected:.1f}",
            outcome(fewest >= printed, fewest >= corrected - 1e-9),
            "N belongs in the denominator: L (f(0) - inf f)/(2 pi^2 N epsilon) - (1 - 1/e) N/2.",
        ),
    ]
    figure = comparison_figure(list(results.values()), f"hard instance, N = {AGENTS}, T = {LINKS}, ε = {EPSILON:g}")
    return Findings(checks, f"N = {AGENTS} agents, T = {LINKS} links, epsilon = {EPSILON:g}, L = 1", figure)


def claim_2(session: Session) -> Findings:
    """Check that a round multiplies x by ((1+eta)^Q + (1-eta)^Q)/2, which is more than 1 for Q > 1."""
    _, results = run_file(session, "claim2.2")
    checks = [_growth(label, results[label]) for label in GROWTH]
    x = abs(float(np.asarray(results["FedPD Q=8, eta 0.2"].runs[0].model).item()))  # f = 0: every x is a solution
    words = f"|x| = {x:.3g} after 40 rounds"
    checks.append(Check("FedPD stays bounded on the same problem", "|x| bounded", words, outcome(x < 10)))
    checks.append(_gradient(results["FedAvg Q=8, step 0.1"]))
    factors = {f"Q = {Q}": [(step, _factor(step, Q)) for step in np.geomspace(0.01, 0.9, 40)] for Q in (1, 2, 4, 8)}
    measured = [(step, _measured(results[label])) for label, (step, _) in GROWTH.items()]
    figure = lines_figure(factors, measured, "step η", "growth of |x| per round", points_label="measured")
    return Findings(checks, figure=figure)


def _factor(step: float, iterations: int) -> float:
    return ((1 + step) ** iterations + (1 - step) ** iterations) / 2


def _measured(result: Result) -> float:
    """Return the mean growth of |x| per round from x^0 = 1; f = 0 here, so only x can show divergence."""
    run = result.runs[0]
    return abs(np.asarray(run.model).item()) ** (1 / int(run.history["round"][-1]))


def _growth(label: str, result: Result) -> Check:
    step, iterations = GROWTH[label]
    predicted, measured = _factor(step, iterations), _measured(result)
    diverges = (measured > 1 + 1e-9) == (iterations > 1)
    close = math.isclose(measured, predicted, rel_tol=1e-9)
    return Check(
        f"{label}: growth of |x| per round", f"{predicted:.6f}", f"{measured:.6f}", outcome(close and diverges)
    )


def _gradient(result: Result) -> Check:
    """Check whether ||grad f|| diverges too: it does not if f = 0, but it does with a little curvature."""
    printed = float(result.runs[0].history["stationarity"][-1])
    step, iterations = 0.1, 8
    mu = (iterations - 1) * step / 2
    problem = problems.quadratic(np.array([[[1 + mu]], [[-1.0]]]), np.zeros((2, 1)), start=np.ones(1))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step, iterations)), problem, rounds=40, progress=False)
    first, last = run.history["stationarity"][[0, -1]]
    return Check(
        "the gradient diverges too",
        "FedAvg diverges to infinity",
        f"‖∇f‖² = {printed:g} on the printed f = 0; {first:.2g} to {last:.2g} on f_1 = (1+mu) x^2/2",
        outcome(printed > 1, last > 1e3 * first),
        f"f = 0 on the printed example, so that every point is stationary. With mu = (Q-1) eta/2 = {mu:g}, f has a "
        "minimiser and the gradient diverges.",
    )


CHAIN_AGENTS, CHAINS = 2, (8, 16, 32, 64)  # the instances of Table 1, by their links
ROUNDS_PER_LINK = 12
SLACK = 0.25  # the allowed error of an exponent


def epsilon_of(links: int) -> float:
    """Return the epsilon for which f(0) - inf f = 1 at L = 1: pi^2 N epsilon (Psi(1) N + 2T) = 1."""
    return 1 / (math.pi**2 * CHAIN_AGENTS * (PSI_1 * CHAIN_AGENTS + 2 * links))


def table_1(session: Session) -> Findings:
    """Check the exponents of the rows that can be run here, and the factor that the last row leaves out."""
    needed: dict[str, list[float]] = {}
    for links in CHAINS:
        epsilon = epsilon_of(links)
        name, values = f"table1-{links}", {"links": links, "epsilon": epsilon, "rounds": ROUNDS_PER_LINK * links}
        _, results = run_file(session, "table1", values, into=name)
        for label, result in results.items():
            needed.setdefault(label, []).append(first_below(result.runs[0], epsilon))
    checks = [_exponent(label, counts) for label, counts in needed.items()]
    inverse = [1 / epsilon_of(links) for links in CHAINS]
    lines = {label: list(zip(inverse, counts, strict=True)) for label, counts in needed.items()}
    least = list(zip(inverse, map(float, CHAINS), strict=True))
    figure = lines_figure(lines, least, "1/ε", "communications to ‖∇f‖² ≤ ε", points_label="T, the least of Claim 2.1")
    scale = "two agents, chains of 8 to 64 links, f(0) - inf f = 1, L = 1"
    return Findings([*checks, _samples()], scale, figure)


def exponent(epsilons: list[float], counts: list[float]) -> float:
    """Return the slope of log(counts) as a function of log(1/epsilon); NaN if a count is missing."""
    return float(np.polyfit(-np.log(epsilons), np.log(counts), 1)[0]) if np.isfinite(counts).all() else math.nan


def _exponent(label: str, counts: list[float]) -> Check:
    formula = next(row.rounds for row in TABLE if row.method == label).formula
    printed = 1.5 if "1.5" in formula else 1.0
    found = exponent([epsilon_of(links) for links in CHAINS], counts)
    return Check(
        f"{label}: communications",
        f"O({formula})",
        f"exponent {found:.2f} ({numbers(counts, '.0f')})",
        outcome(1 - SLACK <= found <= printed + SLACK),
        "At T = 8, 16, 32 and 64. No method can need fewer than T.",
    )


def _samples() -> Check:
    """Check whether FedPD-VR's rounds are independent of Q, as its row says, by 1/eta, to which C_9 is proportional."""
    M, N, L = 40_000, 100, 1.0
    grown = []
    for iterations in (1, 4):
        schedule = vr.schedule(M, N, iterations)
        eta = 0.9 * vr.max_eta(L, *schedule)
        grown.append(vr.constants(L, eta, vr.SAFE_GAMMA * eta, *schedule).C_9)
    ratio = grown[1] / grown[0]
    return Check(
        "FedPD-VR: rounds at Q = 4 over those at Q = 1, as its theorem bounds them, M = 40 000, N = 100",
        "1: O(1/e), independent of Q",
        f"{ratio:.2f}",
        outcome(ratio < 1 + SLACK, ratio <= 4 * (1 + SLACK)),
        "eta < 1/(3 (Q + sqrt(Q I/B)) L) shrinks with Q: T is O(Q sqrt(N)/e), samples O(M + Q sqrt(M N)/e).",
    )
