"""Check Figure 1 and Table 2, on the communications that may be skipped, and wrong remarks and constants of the text.

All use eta = (sqrt(5)-1)/(8L).
An approximation agrees if it is within a quarter of its formula. A relation (linear, logarithmic) agrees if it follows
from the rule C(p) <= epsilon/(3 delta^2), which the paper solves. A remark
is compared with its corrected form. No method runs here.
"""

import math

import jax
import numpy as np

from fedpd.base.precision import scope
from fedpd.problems.hard_instance import PSI_1, theta
from fedpd.report.figures import skip_probability_figure
from fedpd.reproduce.session import Check, Findings, Session, lines_figure, numbers, outcome
from fedpd.theory import communication_factor, max_eta, printed, rates

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
    figure = lines_figure(lines, [], "p, probability of skipping", "C(p)/η")
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


def remarks(session: Session) -> Findings:
    """Check all remarks and constants."""
    found = (_rounds, _rule, _singularity, _matrix, _slope, _tanh, _chain_gap, _chain_gradient, _lower_bound)
    return Findings([check() for check in found], "formulas")


def _rounds() -> Check:
    """Check the remark's T for a target: the term of D_0 in the bound must be at most epsilon/2."""
    epsilon, gap = 1e-4, 1.0
    c_2 = printed.constants(L, ETA).C_2
    as_printed, corrected = 1 / (2 * c_2 * gap * epsilon), 2 * c_2 * gap / epsilon
    left = [c_2 * gap / T for T in (as_printed, corrected)]
    return Check(
        "communication complexity: C_2 D_0/T at the T for epsilon = 1e-4",
        f"{epsilon / 2:.1e} at T = 1/(2 C_2 D_0 epsilon) = {as_printed:.3g}",
        f"{left[0]:.2g}; {left[1]:.1e} at T = 2 C_2 D_0/epsilon = {corrected:.3g}",
        outcome(left[0] <= epsilon / 2, left[1] <= epsilon / 2 * (1 + 1e-12)),
        "The quotient is inverted.",
    )


def _rule() -> Check:
    """Check that p by the remark's rule keeps the theorem's skipping term within epsilon/2."""
    epsilon, delta = 1e-2, 1.0
    p, proved = (
        rates.skip_probability(epsilon, delta, L, ETA),
        rates.guaranteed_skip_probability(epsilon, delta, L, ETA),
    )
    terms = [
        rates.terms(10**9, 1.0, L=L, eta=ETA, p=one, epsilon_1=0.0, delta=delta, gradients=1.0).skipping
        for one in (p, proved)
    ]
    return Check(
        "communication complexity: what skipping leaves at the p of the rule, epsilon = 0.01, delta = 1",
        f"at most {epsilon / 2:g} at p = {p:.2g}",
        f"up to {terms[0]:.2g}; {terms[1]:.2g} at p = {proved:.2g}",
        outcome(terms[0] <= epsilon / 2, terms[1] <= epsilon / 2),
        "C(p) <= epsilon/(3 delta^2) leaves out the constant C_5 before C(p).",
    )


def _singularity() -> Check:
    """Check C(p) at p = (1 - 2a)/(1 + a), where numerator and denominator are 0, as printed and as a limit."""
    p = (1 - 2 * A) / (1 + A)
    numerator = (1 - ((p * (1 + A) + A) / (1 - A)) ** (1 / (1 - p))) ** 2 * p * (p**2 * (3 + A) ** 2 + 4)
    with np.errstate(all="ignore"):
        as_printed = float(np.float64(numerator) / np.float64(1 - 2 * A - p * (1 + A)) ** 2)
    near = [communication_factor(p + step, L, ETA) / ETA for step in (-1e-6, 0.0, 1e-6)]
    return Check(
        f"C(p)/eta at p = (1 - 2 L eta)/(1 + L eta) = {p:.3f}",
        f"0/0, in floating point {as_printed:.3g}",
        f"{near[1]:.4f}, and {near[0]:.4f} and {near[2]:.4f} next to it",
        outcome(abs(as_printed / near[1] - 1) < 1e-3, max(near) / min(near) < 1 + 1e-3),
        "Removable: the quotient's root is 1/((1-p)(1-L eta)).",
    )


def _matrix() -> Check:
    """Check the lemma on the agents' differences, which says that A has rank 1."""
    p = 0.5
    determinants = [p * (1 + A) * A - entry for entry in (A * (1 - A), p * A * (1 + A))]
    return Check(
        "Lemma on the agents' differences: det A, p = 0.5",
        "0 (rank 1)",
        f"{determinants[0]:.3g}; {determinants[1]:.3g} with A_12 = p L eta (1 + L eta)",
        outcome(abs(determinants[0]) < 1e-12, abs(determinants[1]) < 1e-12),
        "The printed A_12 is L eta (1 - L eta).",
    )


def _slope() -> Check:
    """Check Appendix A's claim that v = e^z/(1+e^z)^2 lies in (0, 1), from which delta follows."""
    z = np.linspace(-20, 20, 100_001)
    largest = float((np.exp(z) / (1 + np.exp(z)) ** 2).max())
    return Check(
        "Appendix A, sigmoid: the supremum of v, to which delta is proportional",
        "1",
        f"{largest:.4f}",
        outcome(abs(largest - 1) < 1e-3, abs(largest - 0.25) < 1e-6),
        "v is at most 1/4, so that the printed delta is 4 times too large.",
    )


def _tanh() -> Check:
    """Check Appendix A's claim that tanh z = 2/(1 + e^{2z}) - 1."""
    z = 0.7
    as_printed, corrected = 2 / (1 + math.exp(2 * z)) - 1, 1 - 2 / (1 + math.exp(2 * z))
    return Check(
        "Appendix A: tanh(0.7)",
        f"2/(1 + e^1.4) - 1 = {as_printed:.4f}",
        f"{math.tanh(z):.4f}",
        outcome(math.isclose(as_printed, math.tanh(z)), math.isclose(corrected, math.tanh(z))),
        "The sign: it is 1 - 2/(1 + e^{2z}).",
    )


def _chain_gap() -> Check:
    """Check Lemma B.1 (4) at T = N."""
    found, bound, corrected = 2 * math.pi * PSI_1 + 4 * math.pi, 5 * math.pi, 2 * math.pi * (3 - 1 / math.e)
    return Check(
        "lower bound, Lemma B.1: g(0) - inf g at T = N",
        f"at most 5 pi T/N = {bound:.2f}",
        f"{found:.2f}",
        outcome(found <= bound, found <= corrected + 1e-12),
        f"2 pi (1 - 1/e) + 4 pi T/N, at most 2 pi (3 - 1/e) T/N = {corrected:.2f}.",
    )


def _chain_gradient() -> Check:
    """Check Theorem B.1: measure ||grad f||^2/epsilon at an x with x[T+1] = 0 and large other entries."""
    N = T = 8
    x = np.full(T + 1, 1e4)
    x[-1] = 0.0
    with scope(True):
        slope = jax.grad(lambda x: theta(x)[0] + theta(x)[1:].sum() / N)(x)
        square = float(np.sum(np.square(slope)))  # ||grad g||^2
    as_printed, corrected = 2 * square, (N / 4) ** 2 * square  # (height/width)^2/epsilon of each scale
    return Check(
        f"lower bound, Theorem B.1: ‖∇f‖²/epsilon before the T-th communication, N = {N}",
        "at least 1",
        f"{as_printed:.3f} with the printed scale; {corrected:.3f} with one that grows with N",
        outcome(as_printed >= 1, corrected >= 1 - 1e-6),
        "||grad g|| is of order 1/N; the corrected scale is what claim2.1 runs.",
    )


def _lower_bound() -> Check:
    """Compare the printed lower bound with gradient descent's upper bound, in units of L (f(0) - inf f)/epsilon."""
    N = 400
    as_printed, corrected, upper = N / (10 * math.pi**2), 1 / (math.pi**2 * (3 - 1 / math.e) * N), 2.0
    return Check(
        f"lower bound, Theorem B.1, over L (f(0) - inf f)/epsilon, N = {N}",
        f"{as_printed:.3g}",
        f"gradient descent needs at most {upper:g}; corrected bound {corrected:.2g}",
        outcome(as_printed <= upper, corrected <= upper),
        "N belongs in the denominator.",
    )
