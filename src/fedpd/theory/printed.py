"""Theorem 1 as printed: C(p), its approximations in Table 2, the constants and the right-hand side.

Nothing here is a guarantee. `rates` has the proved bounds, and docs/theory/rates.md lists the mistakes in this form.
The functions take the arguments of `rates.bound`, where delta is the heterogeneity of Assumption 5.
"""

import math
from typing import NamedTuple

from fedpd.base.checks import at_least, positive, refuse
from fedpd.base.typed import explained
from fedpd.theory.conditions import (
    ETA,
    accuracy_ratio,
    allowed_product,
    check_probability,
    check_setting,
    difference_bound,
    largest_below,
    skipping_term,
)


@explained
def communication_factor(p: float, L: float, eta: float) -> float:
    """Return C(p) = eta (1 - C_3^{1/(1-p)})^2 p (p^2 (3 + L eta)^2 + 4) / (1 - 2 L eta - p (1 + L eta))^2.

    C_3 = (p (1 + L eta) + L eta)/(1 - L eta), and the denominator is ((1 - L eta)(1 - C_3))^2. At C_3 = 1 the quotient
    is 0/0. This is a removable singularity; the root of the quotient is then 1/((1-p)(1-L eta)).

    Args:
        p: The probability of skipping a communication, in [0, 1).
        L: The smoothness of the f_i.
        eta: The step of FedPD, with L eta < 1.
    """
    check_probability(p)
    positive("eta", eta, ETA)
    product = at_least("L", L, 0, "L is the smoothness of the f_i") * eta
    if product >= 1:
        refuse("L * eta", product, "must be below 1", ETA)
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
    return eta * root * root * p * (p**2 * (3 + product) ** 2 + 4)  # a product overflows to infinity; a power raises


@explained
def skip_probability(epsilon: float, delta: float, L: float, eta: float) -> float:
    """Return the largest p with C(p) <= epsilon/(3 delta^2), by bisection; C grows with p and C(0) = 0.

    delta = 0 (all agents have the same gradients) allows any p below 1; delta = infinity allows only p = 0. This is the
    paper's rule, which drops the constant C_5 of C(p). `rates.guaranteed_skip_probability` is the proved rule.

    Args:
        epsilon: The target for ||grad f||^2.
        delta: The heterogeneity of Assumption 5.
        L: The smoothness of the f_i.
        eta: The step of FedPD.

    Examples:
        >>> from fedpd import theory
        >>> p = theory.skip_probability(epsilon=1e-2, delta=0.1, L=1.0, eta=0.1)
        >>> round(3 * 0.1**2 * theory.communication_factor(p, L=1.0, eta=0.1), 6)
        0.01
    """
    ratio = accuracy_ratio(epsilon, delta)
    return largest_below(lambda p: communication_factor(p, L, eta), ratio / 3, math.nextafter(1.0, 0.0))


@explained
def linear_skip_probability(epsilon: float, delta: float, eta: float) -> float:
    """Return p = epsilon/(36 eta delta^2), at most 1, the approximation in the first row of the paper's Table 2.

    It follows from C(p) ~ 12 eta p; the paper gives it for C_3 < 1 and eta = max_eta(L)/2. At small p it is too low by
    a factor near 2, since there C(p) ~ 4 eta p/(1 - L eta)^2.
    """
    positive("eta", eta, ETA)
    return min(1.0, accuracy_ratio(epsilon, delta) / (36 * eta))


@explained
def logarithmic_skip_probability(epsilon: float, delta: float, eta: float) -> float:
    """Return p = 1 - 2/log(epsilon/(42 eta delta^2)), at least 0, the second row of the paper's Table 2.

    It follows from C(p) ~ 14 eta C_3^{2/(1-p)}; the paper gives it for C_3 >= 1 and eta = max_eta(L)/2. It leaves out
    log C_3 and the denominator (3 L eta)^2 of C(p).
    """
    positive("eta", eta, ETA)
    ratio = accuracy_ratio(epsilon, delta) / (42 * eta)
    return 1 - 2 / math.log(ratio) if ratio > math.e**2 else 0.0


class Constants(NamedTuple):
    """C_2, ..., C_8 of the appendix, each with its smallest allowed value."""

    C_2: float
    C_3: float
    C_4: float
    C_5: float
    C_6: float
    C_7: float
    C_8: float


@explained
def constants(L: float, eta: float, p: float = 0.0) -> Constants:
    """Return the constants as printed.

    Their units do not match (1 + 2 eta, or 4L^2 added to 2), so they do not hold after a change of units.
    """
    product = allowed_product(L, eta)
    c_8 = (check_probability(p) * (1 + product) + product) / (1 - product)
    c_6 = max(((1 + product) / eta) ** 2, (1 + 2 * eta) ** 2, product**2)
    descents = (1 - 2 * product - 4 * product**2) / (2 * eta), 1 / (2 * eta), (1 + 8 * product) / (2 * L)
    c_7 = 2 * c_6 / min(descents)
    c_2 = 4 * L**2 * c_7
    return Constants(c_2, c_8, c_2 * (1 + 8 * product) / L, 8 * c_2, c_6, c_7, c_8)


@explained
def bound(
    T: int,
    gap: float,
    *,
    L: float,
    eta: float,
    p: float,
    epsilon_1: float,
    delta: float | None = None,
    agents: int | None = None,
) -> float:
    """Return the right-hand side of Theorem 1 as printed. It is NOT a guarantee, see docs/theory/rates.md.

    C_2 D_0/T + ((N-1)/N) C_5 C(p) (delta^2 + epsilon_1) + C_4 epsilon_1; case I is p = 0.
    """
    c, delta = constants(L, eta, p), difference_bound(p, delta)
    check_setting(T, gap, epsilon_1, agents)
    skipping = skipping_term(p, c.C_5 * communication_factor(p, L, eta), delta, epsilon_1)
    share = 1.0 if agents is None else (agents - 1) / agents
    return c.C_2 * gap / T + share * skipping + c.C_4 * epsilon_1
