"""Theorem 1: how large eta may be, and how often a communication may be skipped."""

import math
from numbers import Real

from fedpd.checks import at_least, positive, refuse


def max_eta(L: float) -> float:
    """The bound of Theorem 1: eta must be below (sqrt(5) - 1)/(4L)."""
    positive("L", L, "L is the smoothness of the f_i; theory.smoothness(problem) finds it")
    return (math.sqrt(5) - 1) / (4 * L)


def communication_factor(p: float, L: float, eta: float) -> float:
    """C(p) = eta (1 - C_3^{1/(1-p)})^2 p (p^2 (3 + L eta)^2 + 4) / (1 - 2 L eta - p (1 + L eta))^2.

    C_3 = (p (1 + L eta) + L eta)/(1 - L eta), and the denominator is ((1 - L eta)(1 - C_3))^2: at C_3 = 1 the quotient
    is 0/0, a removable singularity with value 1/((1-p)(1-L eta)) for its root.
    """
    if not isinstance(p, Real) or not 0 <= p < 1:
        refuse("p", p, "must lie in [0, 1)", "p is the probability of skipping a communication")
    positive("eta", eta, "Theorem 1 asks for eta < max_eta(L)")
    product = at_least("L", L, 0, "L is the smoothness of the f_i") * eta
    if product >= 1:
        refuse("L * eta", product, "must be below 1", "Theorem 1 asks for eta < max_eta(L)")
    # With u = log C_3: (1 - C_3^{1/(1-p)})/(1 - C_3) = expm1(u/(1-p))/expm1(u), stable at u = 0.
    u = math.log((p * (1 + product) + product) / (1 - product)) if p + product else -math.inf
    if u == 0:
        ratio = 1 / (1 - p)
    elif u == -math.inf:
        ratio = 1.0
    else:
        exponent = u / (1 - p)
        ratio = math.expm1(exponent) / math.expm1(u) if exponent < 700 else math.inf
    root = ratio / (1 - product)
    return eta * root * root * p * (p**2 * (3 + product) ** 2 + 4)  # a product goes to infinity where a power raises


def skip_probability(epsilon: float, delta: float, L: float, eta: float) -> float:
    """The largest p with C(p) <= epsilon/(3 delta^2), by bisection: C grows with p from 0 at p = 0.

    delta = 0 (all agents alike) allows any p below 1; delta = infinity allows none.
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    if not isinstance(delta, Real) or not delta >= 0:
        refuse("delta", delta, "must be at least 0", "theory.heterogeneity(problem) estimates it")
    allowed = math.inf if delta == 0 else epsilon / 3 / delta / delta
    low, high = 0.0, math.nextafter(1.0, 0.0)
    if communication_factor(high, L, eta) <= allowed:
        return high
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (middle, high) if communication_factor(middle, L, eta) <= allowed else (low, middle)
    return low
