"""Theorem 1 (th:FedPD_Comm): what FedPD with Oracle I guarantees, as printed and as it can be proved.

The average of E||grad f(mean_i x_{0,i}^r)||^2 over the rounds r = 0, ..., T-1 is bounded by three terms: the start,
which fades as 1/T; skipped communications, which leave p delta^2; and inexact local solves, which leave eps_1. `bound`
is proved in docs/theory/rates.md, `printed_bound` is the paper's right-hand side: no guarantee. The paper's
D_0 = f(x^0) - inf f is `gap` here (any upper bound of it will do), and mean_i ||grad f_i(x^0)||^2 is `gradients`.
`nonconvexity` is an m in [0, L] such that every f_i + (m/2)||x||^2 is convex: 0 where the f_i are, and L (None) always.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from fedpd.checks import at_least, at_most, below, count, positive, refuse

SMOOTHNESS = "L is the smoothness of the f_i; theory.smoothness(problem) finds it"
ETA = "Theorem 1 asks for eta < max_eta(L)"
ACCURACY = "epsilon_1 bounds ||grad L_i||^2 after a local solve; 0 is an exact one"


def max_eta(L: float) -> float:
    """The bound of Theorem 1: eta must be below (sqrt(5) - 1)/(4L)."""
    positive("L", L, SMOOTHNESS)
    return (math.sqrt(5) - 1) / (4 * L)


# --- the paper's C(p), and what its Table 2 makes of it ---------------------------------------------------------------


def communication_factor(p: float, L: float, eta: float) -> float:
    """C(p) = eta (1 - C_3^{1/(1-p)})^2 p (p^2 (3 + L eta)^2 + 4) / (1 - 2 L eta - p (1 + L eta))^2.

    C_3 = (p (1 + L eta) + L eta)/(1 - L eta), and the denominator is ((1 - L eta)(1 - C_3))^2: at C_3 = 1 the quotient
    is 0/0, a removable singularity with value 1/((1-p)(1-L eta)) for its root.
    """
    _probability(p)
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
    return eta * root * root * p * (p**2 * (3 + product) ** 2 + 4)  # a product goes to infinity where a power raises


def skip_probability(epsilon: float, delta: float, L: float, eta: float) -> float:
    """The largest p with C(p) <= epsilon/(3 delta^2), by bisection: C grows with p from 0 at p = 0.

    delta = 0 (all agents alike) allows any p below 1; delta = infinity allows none. This is the paper's rule, which
    drops the constant C_5 before C(p): `guaranteed_skip_probability` is the rule that is proved.
    """
    ratio = _ratio(epsilon, delta)
    return _largest(lambda p: communication_factor(p, L, eta), ratio / 3, math.nextafter(1.0, 0.0))


def linear_skip_probability(epsilon: float, delta: float, eta: float) -> float:
    """p = epsilon/(36 eta delta^2), the paper's approximation (tab:saving, row 1) from C(p) ~ 12 eta p; at most 1.

    It is offered for C_3 < 1 and eta = max_eta(L)/2. At small p it is low by a factor near 2, since there
    C(p) ~ 4 eta p/(1 - L eta)^2.
    """
    positive("eta", eta, ETA)
    return min(1.0, _ratio(epsilon, delta) / (36 * eta))


def logarithmic_skip_probability(epsilon: float, delta: float, eta: float) -> float:
    """p = 1 - 2/log(epsilon/(42 eta delta^2)), the paper's approximation (tab:saving, row 2); 0 where that is negative.

    It is offered for C_3 >= 1 and eta = max_eta(L)/2, from C(p) ~ 14 eta C_3^{2/(1-p)}; log C_3 is left out on the way,
    and so is the denominator (3 L eta)^2 of C(p).
    """
    positive("eta", eta, ETA)
    ratio = _ratio(epsilon, delta) / (42 * eta)
    return 1 - 2 / math.log(ratio) if ratio > math.e**2 else 0.0


class Savings(NamedTuple):
    """How many communications may be skipped, against epsilon/delta^2 (fig:p_delta)."""

    ratio: np.ndarray  # epsilon/delta^2
    exact: np.ndarray  # the paper's rule, solved
    linear: np.ndarray  # the paper's two approximations of it
    logarithmic: np.ndarray
    guaranteed: np.ndarray  # the rule that is proved


def savings(ratios: Sequence[float] | np.ndarray, L: float, eta: float) -> Savings:
    """The curves of fig:p_delta at these epsilon/delta^2; the paper takes eta = max_eta(L)/2."""
    columns: tuple[Callable[[float], float], ...] = (
        lambda ratio: skip_probability(ratio, 1.0, L, eta),
        lambda ratio: linear_skip_probability(ratio, 1.0, eta),
        lambda ratio: logarithmic_skip_probability(ratio, 1.0, eta),
        lambda ratio: guaranteed_skip_probability(ratio, 1.0, L, eta),
    )
    ratio = np.asarray(ratios, float)
    return Savings(ratio, *(np.array([column(one) for one in ratio.tolist()]) for column in columns))


# --- the theorem as printed -------------------------------------------------------------------------------------------


class PrintedConstants(NamedTuple):
    """C_2, ..., C_8 of the appendix, each as small as it is allowed to be."""

    C_2: float
    C_3: float
    C_4: float
    C_5: float
    C_6: float
    C_7: float
    C_8: float


def printed_constants(L: float, eta: float, p: float = 0.0) -> PrintedConstants:
    """The constants as printed. Their units do not match (1 + 2 eta, 4L^2 beside 2): a change of unit breaks them."""
    product = _product(L, eta)
    c_8 = (_probability(p) * (1 + product) + product) / (1 - product)
    c_6 = max(((1 + product) / eta) ** 2, (1 + 2 * eta) ** 2, product**2)
    descents = (1 - 2 * product - 4 * product**2) / (2 * eta), 1 / (2 * eta), (1 + 8 * product) / (2 * L)
    c_7 = 2 * c_6 / min(descents)
    c_2 = 4 * L**2 * c_7
    return PrintedConstants(c_2, c_8, c_2 * (1 + 8 * product) / L, 8 * c_2, c_6, c_7, c_8)


def printed_bound(
    T: int,
    gap: float,
    *,
    L: float,
    eta: float,
    epsilon_1: float = 0.0,
    p: float = 0.0,
    delta: float = math.inf,
    agents: int | None = None,
) -> float:
    """The right-hand side of th:FedPD_Comm as printed (case I is p = 0): NOT a guarantee, see docs/theory/rates.md.

    C_2 D_0/T + ((N-1)/N) C_5 C(p) (delta^2 + epsilon_1) + C_4 epsilon_1; agents=None leaves (N-1)/N at 1.
    """
    c = printed_constants(L, eta, p)
    _check_run(T, gap, epsilon_1, agents)
    skipping = _skipping(p, c.C_5 * communication_factor(p, L, eta), delta, epsilon_1)
    share = 1.0 if agents is None else (agents - 1) / agents
    return c.C_2 * gap / T + share * skipping + c.C_4 * epsilon_1


# --- the theorem as proved --------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """What stands in for the printed constants; C_6 and C_7 have no counterpart, grad f is bounded without them."""

    C_2: float  # of (D_0 + start * mean_i ||grad f_i(x^0)||^2)/T
    C_3: float  # by which the agents' disagreement (root mean square) grows in a round: a guarantee needs < 1
    C_4: float  # of eps_1
    C_5: float  # of guaranteed_factor(p) (delta^2 + eps_1)
    start: float  # what lambda_i^0 = 0 instead of -grad f_i(x^0) costs


def constants(L: float, eta: float, p: float = 0.0, nonconvexity: float | None = None) -> Constants:
    """With a = L eta and b = m eta:

    C_2 = (2/eta) (2 + [p > 0] + a^2 (1+a)^2/(1 - 2a - 4a^2))      C_3 = sqrt(p + (1-p) a^2)/(1-b)
    C_4 = C_2 ((1 + 8a)/L + (3 + 2a)^2 eta/2)                      C_5 = 2 C_2
    start = eta (1 + 2a)/(1-a)^2 + eta/4
    """
    a, b = _product(L, eta), _weak(nonconvexity, L, eta)
    c_3 = math.sqrt(_probability(p) + (1 - p) * a**2) / (1 - b)
    c_2 = 2 / eta * (2 + (p > 0) + (a * (1 + a)) ** 2 / (1 - 2 * a - 4 * a**2))
    c_4 = c_2 * ((1 + 8 * a) / L + (3 + 2 * a) ** 2 * eta / 2)
    return Constants(c_2, c_3, c_4, 2 * c_2, eta * (1 + 2 * a) / (1 - a) ** 2 + eta / 4)


class Disagreement(NamedTuple):
    """Bounds of sqrt(E mean_i ||v_i - mean_j v_j||^2), in units of eta (delta + sqrt(eps_1))."""

    x: float  # of the x_i^r
    x0: float  # of the x_{0,i}^{r+}
    skipped: float  # of the x_{0,i}^{r+} given that the round before was skipped


def disagreement(p: float, L: float, eta: float, nonconvexity: float | None = None) -> Disagreement:
    """The fixed point of the second-moment recursion that replaces le:FedPD_prop and eq. th_comm_8.

    With a = L eta and b = m eta, in units of eta (delta + sqrt(eps_1)): (1-b) V(x^{r+1}) <= V(x^r) + 1 if round r-1 was
    skipped (a proximal step on f_i), and <= a V(x^r) + 2 if not. So for the root mean squares X_r

        (1-b)^2 X_{r+1}^2 <= p (X_r + 1)^2 + (1-p) (a X_r + 2)^2

    which has a fixed point that X_r never exceeds if p + (1-p) a^2 < (1-b)^2. Infinite elsewhere.
    """
    a, b = _product(L, eta), _weak(nonconvexity, L, eta)
    slack = (1 - b) ** 2 - _probability(p) - (1 - p) * a**2
    if slack <= 0:
        return Disagreement(math.inf, math.inf, math.inf)
    half = p + 2 * (1 - p) * a
    x = (half + math.sqrt(half**2 + slack * (4 - 3 * p))) / slack
    return Disagreement(x, (1 + a) * x + 1, (1 + a) * (x + 1) / (1 - b) + 1)


def max_skip_probability(L: float, eta: float, nonconvexity: float | None = None) -> float:
    """((1 - m eta)^2 - (L eta)^2)/(1 - (L eta)^2): the p from which on C_3 >= 1 and nothing is guaranteed.

    It is 1 for convex f_i (m = 0), and (1 - 2 L eta)/(1 - (L eta)^2) where nothing is known of them (m = L).
    """
    a, b = _product(L, eta), _weak(nonconvexity, L, eta)
    return ((1 - b) ** 2 - a**2) / (1 - a**2)


def guaranteed_factor(p: float, L: float, eta: float, T: int = 1, nonconvexity: float | None = None) -> float:
    """What stands in for C(p): (eta/2) p ((1-p) z^2 + ((L eta)^2 + 1/T) y^2), (., y, z) the `disagreement`.

    z^2 is what a communication after a skipped round adds to the augmented Lagrangian, y^2 what the gradient is off
    because the copies x_{0,i} differ.
    """
    count("T", T, "T is the number of rounds")
    _, y, z = disagreement(p, L, eta, nonconvexity)
    return eta / 2 * p * ((1 - p) * z**2 + ((L * eta) ** 2 + 1 / T) * y**2) if p else 0.0


class Terms(NamedTuple):
    """The three terms of the bound."""

    start: float  # C_2 (D_0 + start * gradients)/T
    skipping: float  # C_5 guaranteed_factor(p) (delta^2 + eps_1)
    accuracy: float  # C_4 eps_1


def terms(
    T: int,
    gap: float,
    *,
    L: float,
    eta: float,
    gradients: float | None = None,
    epsilon_1: float = 0.0,
    p: float = 0.0,
    delta: float = math.inf,
    agents: int | None = None,
    nonconvexity: float | None = None,
) -> Terms:
    """The terms of `bound`, to see which of them dominates.

    delta bounds ||grad f_i(x) - grad f(x)||, as theory.heterogeneity does. The agents must start at x_i = x_{0,i} = x^0
    with lambda_i = 0, and every local solve must reach ||grad L_i||^2 <= eps_1 (epsilon_1). `gradients` may be left out
    where delta is finite: 2 L D_0 + delta^2 bounds them.
    """
    c = constants(L, eta, p)
    _check_run(T, gap, epsilon_1, agents)
    factor = c.C_5 * guaranteed_factor(p, L, eta, T, nonconvexity)
    skipping = 0.0 if agents == 1 else _skipping(p, factor, delta, epsilon_1)
    start = c.C_2 * (gap + c.start * _gradients(gradients, gap, L, delta)) / T
    return Terms(start, skipping, c.C_4 * epsilon_1)


def bound(T: int, gap: float, **settings: Any) -> float:
    """An upper bound of (1/T) sum_{r=0}^{T-1} E||grad f(mean_i x_{0,i}^r)||^2: Theorem 1, corrected and proved.

        (C_2/T) (D_0 + start mean_i ||grad f_i(x^0)||^2) + C_5 guaranteed_factor(p) (delta^2 + eps_1) + C_4 eps_1

    The sum of `terms`, with their settings. Case I is p = 0, with any delta. Case II, p > 0, needs a finite delta and
    p < max_skip_probability(L, eta, m), which is 1 where the f_i are convex (m = nonconvexity = 0): it is infinite
    elsewhere.
    """
    return sum(terms(T, gap, **settings))


# --- what to choose for a target --------------------------------------------------------------------------------------


def rounds_for(
    epsilon: float,
    gap: float,
    *,
    L: float,
    eta: float,
    gradients: float | None = None,
    p: float = 0.0,
    delta: float = math.inf,
) -> int:
    """T = 2 C_2 (D_0 + start * gradients)/epsilon, rounded up: the start takes half of epsilon.

    The paper's remark has the inverse, T = 1/(2 C_2 D_0 epsilon). With `local_accuracy` and p at most
    `guaranteed_skip_probability` for the rest, `bound` is at most epsilon.
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    c = constants(L, eta, p)
    at_least("gap", gap, 0, "gap bounds f(x^0) - inf f from above")
    return max(1, math.ceil(2 * c.C_2 * (gap + c.start * _gradients(gradients, gap, L, delta)) / epsilon))


def local_accuracy(
    epsilon: float,
    *,
    L: float,
    eta: float,
    p: float = 0.0,
    delta: float = math.inf,
    nonconvexity: float | None = None,
) -> float:
    """eps_1 = epsilon/(2 C_4) where every round communicates. Where some are skipped, a quarter of epsilon is left:

        eps_1 = min(epsilon/(4 C_4), epsilon/(4 C_5 guaranteed_factor(p)) - delta^2)

    The paper has delta^2 for the second, which is smaller at any p up to `guaranteed_skip_probability`, and 0 for
    agents that are alike.
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    c = constants(L, eta, p)
    if p == 0:
        return epsilon / (2 * c.C_4)
    spent = 4 * c.C_5 * guaranteed_factor(p, L, eta, nonconvexity=nonconvexity)
    if spent * _heterogeneity(delta) ** 2 >= epsilon:
        refuse("p", p, "leaves more than epsilon, however exact the local solves", "Try guaranteed_skip_probability")
    left = epsilon / spent - delta**2 if spent else math.inf  # a p of 1e-320 spends nothing
    return min(epsilon / (4 * c.C_4), left)


def guaranteed_skip_probability(
    epsilon: float, delta: float, L: float, eta: float, nonconvexity: float | None = None
) -> float:
    """The largest p with C_5 guaranteed_factor(p) 2 delta^2 <= epsilon/4: skipping takes a quarter of epsilon."""
    c_5 = constants(L, eta, 0.5).C_5
    allowed = _ratio(epsilon, delta) / (8 * c_5)
    most = math.nextafter(max_skip_probability(L, eta, nonconvexity), 0)
    return _largest(lambda p: guaranteed_factor(p, L, eta, nonconvexity=nonconvexity), allowed, most)


def local_iterations(epsilon_1: float, start: float, L: float, eta: float) -> int:
    """Q of gradient descent with step 1/(L + 1/eta) that takes ||grad L_i||^2 from `start` to epsilon_1.

    L_i is (1/eta - L)-strongly convex and (1/eta + L)-smooth, so that a step leaves at most the part
    1 - (1 - L eta)/(1 + L eta) = 2 L eta/(1 + L eta) of ||grad L_i||. Needs L eta < 1 only.
    """
    positive("epsilon_1", epsilon_1, "epsilon_1 is the ||grad L_i||^2 to reach, e.g. 1e-8")
    at_least("start", start, 0, "start is ||grad L_i||^2 where the local solve begins")
    positive("L", L, SMOOTHNESS)
    positive("eta", eta, ETA)
    a = below("L * eta", L * eta, 1, "L_i is strongly convex only then")
    if start <= epsilon_1:
        return 0
    rate = 2 * math.log(2 * a / (1 + a))
    return math.ceil(math.log(epsilon_1 / start) / rate)


# --- what is shared ---------------------------------------------------------------------------------------------------


def _product(L: float, eta: float) -> float:
    """L eta, where Theorem 1 allows it."""
    positive("eta", eta, ETA)
    below("eta", eta, max_eta(L), ETA)
    return L * eta


def _weak(nonconvexity: float | None, L: float, eta: float) -> float:
    """m eta, where f_i + (m/2)||x||^2 is convex; m = L always will do."""
    remedy = "nonconvexity is 0 for convex f_i, and L at most"
    if nonconvexity is None:
        return L * eta
    at_least("nonconvexity", nonconvexity, 0, remedy)
    return at_most("nonconvexity", nonconvexity, L, remedy) * eta


def _probability(p: float) -> float:
    if not isinstance(p, Real) or not 0 <= p < 1:
        refuse("p", p, "must lie in [0, 1)", "p is the probability of skipping a communication")
    return p


def _heterogeneity(delta: float) -> float:
    if not isinstance(delta, Real) or not delta >= 0:
        refuse("delta", delta, "must be at least 0", "theory.heterogeneity(problem) estimates it")
    return delta


def _ratio(epsilon: float, delta: float) -> float:
    """epsilon/delta^2, without overflow on the way."""
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    return math.inf if _heterogeneity(delta) == 0 else epsilon / delta / delta


def _gradients(gradients: float | None, gap: float, L: float, delta: float) -> float:
    """mean_i ||grad f_i(x^0)||^2 = ||grad f(x^0)||^2 + mean_i ||grad (f_i - f)(x^0)||^2 <= 2 L D_0 + delta^2."""
    if gradients is not None:
        return at_least("gradients", gradients, 0, "gradients is mean_i ||grad f_i(x^0)||^2")
    if math.isinf(_heterogeneity(delta)):
        refuse("gradients", gradients, "must be given where delta is infinite", "It is mean_i ||grad f_i(x^0)||^2")
    return 2 * L * gap + delta**2


def _check_run(T: int, gap: float, epsilon_1: float, agents: int | None) -> None:
    count("T", T, "T is the number of rounds")
    at_least("gap", gap, 0, "gap bounds f(x^0) - inf f from above")
    at_least("epsilon_1", epsilon_1, 0, ACCURACY)
    if agents is not None:
        count("agents", agents, "agents is N")


def _skipping(p: float, factor: float, delta: float, epsilon_1: float) -> float:
    """factor (delta^2 + eps_1); 0 without skips, whatever delta is, and with agents alike, whatever the factor is."""
    difference = _heterogeneity(delta) ** 2 + epsilon_1
    return factor * difference if p and difference else 0.0


def _largest(growing: Callable[[float], float], allowed: float, most: float) -> float:
    """The largest p in [0, most] with growing(p) <= allowed, by bisection."""
    low, high = 0.0, most
    if growing(high) <= allowed:
        return high
    while high - low > 1e-15:
        middle = (low + high) / 2
        low, high = (middle, high) if growing(middle) <= allowed else (low, middle)
    return low
