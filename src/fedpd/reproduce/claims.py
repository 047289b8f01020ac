"""Run Claims 2.1 and 2.2: communications of every method on the hard instance, and FedAvg on opposing quadratics."""

import math

import numpy as np

from fedpd import algorithms, oracles, problems, simulate
from fedpd.experiments.runner import Result
from fedpd.problems.hard_instance import PSI_1, initial_gap
from fedpd.report.figures import comparison_figure
from fedpd.reproduce.plots import lines_figure
from fedpd.reproduce.session import Findings, Session, run_file
from fedpd.reproduce.verdict import Check, outcome
from fedpd.search.sweep import first_below

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
    each = ", ".join(f"{label}: {_count(number)}" for label, number in needed.items())
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
    checks.append(_bounded(results["FedPD Q=8, eta 0.2"]))
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


def _bounded(result: Result) -> Check:
    """Check that x stays bounded with FedPD on the same problem, where f = 0 and every x is a solution."""
    x = abs(float(np.asarray(result.runs[0].model).item()))
    return Check(
        "FedPD stays bounded on the same problem", "|x| bounded", f"|x| = {x:.3g} after 40 rounds", outcome(x < 10)
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


def _count(number: float) -> str:
    return f"not in {ROUNDS}" if math.isnan(number) else f"{number:.0f}"
