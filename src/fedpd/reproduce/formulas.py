"""Check Figure 1 and Table 2, on the number of communications that may be skipped, at eta = (sqrt(5)-1)/(8L).

An approximation agrees if it is within a quarter of its formula. A relation (linear, logarithmic) agrees if it follows
from the rule C(p) <= epsilon/(3 delta^2), which the paper solves. No method runs here.
"""

import math

import numpy as np

from fedpd.report.theory import skip_probability_figure
from fedpd.reproduce.plots import lines_figure
from fedpd.reproduce.session import Findings, Session
from fedpd.reproduce.verdict import Check, numbers, outcome
from fedpd.theory import communication_factor, max_eta, rates

L = 1.0
ETA = max_eta(L) / 2
A = L * ETA
CLOSE = 0.25  # the allowed relative error of an approximation
SMALL = (0.01, 0.05, 0.1)  # values of p with C_3 well below 1
LARGE = (0.9, 0.95, 0.98)  # values of p with C_3 above 1


def figure_1(session: Session) -> Findings:
    """Check that p as a function of epsilon/delta^2 is linear on the left and logarithmic on the right."""
    few, many = np.array([1e-4, 1e-3, 1e-2]), np.array([1e10, 1e20, 1e40, 1e80])
    left, right = rates.savings(few, L, ETA), rates.savings(many, L, ETA)
    slope = float(np.polyfit(np.log(few), np.log(left.exact), 1)[0])
    times = (1 - right.exact) * np.log(many)  # a constant, if 1 - p falls as 1/log
    steady = float(times.max() / times.min())
    guaranteed = float(np.polyfit(np.log(few), np.log(left.guaranteed), 1)[0])
    most = rates.max_skip_probability(L, ETA)
    checks = [
        Check(
            "left: p is linear in epsilon/delta^2",
            "exponent 1",
            f"exponent {slope:.3f}; of what is proved {guaranteed:.3f}",
            outcome(abs(slope - 1) < 0.05 and abs(guaranteed - 1) < 0.05),
        ),
        Check(
            "right: 1 - p falls as 1/log(epsilon/delta^2)",
            "(1 - p) log(epsilon/delta^2) constant",
            numbers(times, ".2f"),
            outcome(steady < 1 + CLOSE),
            "At epsilon/delta^2 of 1e10, 1e20, 1e40 and 1e80.",
        ),
        Check(
            "p goes to 1 as the agents' data become equal",
            "p -> 1",
            f"{right.exact[-1]:.3f} by the printed rule; at most {most:.3f} is proved, 1 for convex f_i",
            outcome(float(right.guaranteed[-1]) > 0.9, rates.max_skip_probability(L, ETA, 0.0) == 1),
            "The printed rule leaves out the constant C_5 and Theorem 1's proof ends at p = (1-2a)/(1-a^2), a = L eta, "
            "for f_i that are not convex.",
        ),
    ]
    return Findings(checks, "formulas, at eta = (sqrt(5)-1)/(8L)", skip_probability_figure(L, ETA))


def growth(p: float) -> float:
    """Return C_3 as printed."""
    return (p * (1 + A) + A) / (1 - A)


def table_2(session: Session) -> Findings:
    """Check C(p) and the p that follows from it, row by row."""
    small = [communication_factor(p, L, ETA) / (ETA * p) for p in SMALL]
    large = [communication_factor(p, L, ETA) / (ETA * growth(p) ** (2 / (1 - p))) for p in LARGE]
    low, high = 4 / (1 - A) ** 2, ((3 + A) ** 2 + 4) / (3 * A) ** 2
    few, many = np.array([1e-3, 1e-2, 1e-1]), np.array([1e20, 1e40, 1e80])
    left, right = rates.savings(few, L, ETA), rates.savings(many, L, ETA)
    linear = few / (3 * low * ETA)
    last = math.log(growth(1 - 1e-9))  # C_3 as p goes to 1
    logarithmic = 1 - 2 * last / np.log(many / (3 * high * ETA))
    checks = [
        _approximation("C(p)/(eta p) at p = 0.01, 0.05, 0.1", 12, small, low, "4/(1 - L eta)^2"),
        _approximation(
            "C(p)/(eta C_3^{2/(1-p)}) at p = 0.9, 0.95, 0.98", 14, large, high, "((3 + L eta)^2 + 4)/(3 L eta)^2"
        ),
        Check(
            "p at epsilon/delta^2 = 1e-3, 1e-2, 0.1",
            numbers(left.linear, ".2g"),
            f"{numbers(left.exact, '.2g')}; corrected formula {numbers(linear, '.2g')}",
            outcome(_close(left.linear, left.exact), _close(linear, left.exact)),
            "12 eta p is twice C(p) there, so that half of the p that the rule allows is taken.",
        ),
        Check(
            "1 - p at epsilon/delta^2 = 1e20, 1e40, 1e80",
            numbers(1 - right.logarithmic, ".2g"),
            f"{numbers(1 - right.exact, '.2g')}; corrected formula {numbers(1 - logarithmic, '.2g')}",
            outcome(_close(1 - right.logarithmic, 1 - right.exact), _close(1 - logarithmic, 1 - right.exact)),
            "log C_3 is left out: 1 - p is 2 log(C_3)/log(.), not 2/log(.).",
        ),
    ]
    grid = np.linspace(0.005, 0.6, 100).tolist()
    lines = {
        "C(p)/η": [(p, communication_factor(p, L, ETA) / ETA) for p in grid],
        "printed, 12 p": [(p, 12 * p) for p in grid],
        "corrected, 4 p/(1-Lη)²": [(p, low * p) for p in grid],
    }
    figure = lines_figure(lines, [], "p, probability of skipping", "C(p)/η", points_label="")
    return Findings(checks, "formulas, at eta = (sqrt(5)-1)/(8L)", figure)


def _close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.allclose(found, wanted, rtol=CLOSE, atol=0))


def _approximation(what: str, printed: float, exact: list[float], corrected: float, formula: str) -> Check:
    values = np.array(exact)
    return Check(
        what,
        f"about {printed:g}",
        numbers(exact, ".3g"),
        outcome(_close(np.full_like(values, printed), values), _close(np.full_like(values, corrected), values)),
        f"{formula} = {corrected:.3g}.",
    )
