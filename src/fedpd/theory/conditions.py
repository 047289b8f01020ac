"""The conditions of Theorem 1, and the common parts of its printed and its proved form."""

import math
from collections.abc import Callable
from numbers import Real

from fedpd.base.checks import at_least, at_most, below, count, positive, refuse
from fedpd.base.typed import explained

SMOOTHNESS = "L is the smoothness of the f_i; theory.smoothness(problem) finds it"
ETA = "Theorem 1 needs eta < max_eta(L)"
ACCURACY = "epsilon_1 is an upper bound of ||grad L_i||^2 after a local solve; 0 is an exact solve"


@explained
def max_eta(L: float) -> float:
    """Return (sqrt(5) - 1)/(4L). Theorem 1 needs an eta below it.

    Args:
        L: The smoothness of the f_i.

    Examples:
        >>> from fedpd import theory
        >>> round(theory.max_eta(L=1.0), 3)
        0.309
    """
    positive("L", L, SMOOTHNESS)
    return (math.sqrt(5) - 1) / (4 * L)


def allowed_product(L: float, eta: float) -> float:
    """Return L eta; refuse an eta that Theorem 1 does not allow."""
    positive("eta", eta, ETA)
    below("eta", eta, max_eta(L), ETA)
    return L * eta


def weak_convexity(nonconvexity: float | None, L: float, eta: float) -> float:
    """Return m eta, where f_i + (m/2)||x||^2 is convex; None means m = L, which always holds."""
    remedy = "nonconvexity is 0 for convex f_i, and at most L"
    if nonconvexity is None:
        return L * eta
    at_least("nonconvexity", nonconvexity, 0, remedy)
    return at_most("nonconvexity", nonconvexity, L, remedy) * eta


def check_probability(p: float) -> float:
    """Return p; refuse a value outside [0, 1)."""
    if not isinstance(p, Real) or not 0 <= p < 1:
        refuse("p", p, "must lie in [0, 1)", "p is the probability of skipping a communication")
    return p


def check_heterogeneity(delta: float) -> float:
    """Return delta; refuse a value below 0."""
    if not isinstance(delta, Real) or not delta >= 0:
        refuse("delta", delta, "must be at least 0", "theory.heterogeneity(problem) estimates it")
    return delta


def accuracy_ratio(epsilon: float, delta: float) -> float:
    """Return epsilon/delta^2, computed without overflow."""
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    return math.inf if check_heterogeneity(delta) == 0 else epsilon / delta / delta


def start_gradients(gradients: float | None, gap: float, L: float, delta: float) -> float:
    """Return mean_i ||grad f_i(x^0)||^2 if it is given, else an upper bound of it.

    The mean is ||grad f(x^0)||^2 + mean_i ||grad (f_i - f)(x^0)||^2 <= 2 L D_0 + delta^2.
    """
    if gradients is not None:
        return at_least("gradients", gradients, 0, "gradients is mean_i ||grad f_i(x^0)||^2")
    if math.isinf(check_heterogeneity(delta)):
        refuse("gradients", gradients, "is needed if delta is infinite", "Give mean_i ||grad f_i(x^0)||^2")
    return 2 * L * gap + delta**2


def check_setting(T: int, gap: float, epsilon_1: float, agents: int | None) -> None:
    """Check the number of rounds, the gap, the accuracy and the number of agents."""
    count("T", T, "T is the number of rounds")
    at_least("gap", gap, 0, "gap is an upper bound of f(x^0) - inf f")
    at_least("epsilon_1", epsilon_1, 0, ACCURACY)
    if agents is not None:
        count("agents", agents, "agents is N")


def difference_bound(p: float, delta: float | None) -> float:
    """Return delta; if it is not given, refuse a p above 0, and return infinity, which any agents are within."""
    if delta is None and p > 0:
        remedy = (
            "Give an upper bound of ||grad f_i - grad f||, or math.inf if there is none: the bound is then infinite"
        )
        refuse("delta", delta, f"is needed if p = {p:g} is above 0", remedy)
    return math.inf if delta is None else delta


def skipping_term(p: float, factor: float, delta: float, epsilon_1: float) -> float:
    """Return factor (delta^2 + eps_1), or 0 if p = 0 (for any delta) or agents are equal (for any factor)."""
    difference = check_heterogeneity(delta) ** 2 + epsilon_1
    return factor * difference if p and difference else 0.0


def largest_below(growing: Callable[[float], float], allowed: float, most: float) -> float:
    """Return the largest p in [0, most] with growing(p) <= allowed, by bisection."""
    low, high = 0.0, most
    if growing(high) <= allowed:
        return high
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (middle, high) if growing(middle) <= allowed else (low, middle)
    return low
