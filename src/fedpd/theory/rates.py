"""Theorem 1 as proved: the guarantees of FedPD with Oracle I.

The average of E||grad f(mean_i x_{0,i}^r)||^2 over the rounds r = 0, ..., T-1 is bounded by three terms. The term of
the start falls as 1/T, skipped communications leave p delta^2, and inexact local solves leave eps_1.
docs/theory/rates.md proves `bound`. `printed.bound` is the paper's right-hand side, which is not a guarantee.

All functions take the arguments of `bound`, and `epsilon`, the target for ||grad f||^2. `gap` is the paper's D_0 =
f(x^0) - inf f, or any upper bound of it, and `gradients` is mean_i ||grad f_i(x^0)||^2. `nonconvexity` is an m in
[0, L] such that every f_i + (m/2)||x||^2 is convex: 0 for convex f_i; L (None) always holds.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, below, brief, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.theory.conditions import (
    ETA,
    SMOOTHNESS,
    accuracy_ratio,
    allowed_product,
    check_heterogeneity,
    check_probability,
    check_setting,
    difference_bound,
    largest_below,
    skipping_term,
    start_gradients,
    weak_convexity,
)
from fedpd.theory.printed import linear_skip_probability, logarithmic_skip_probability, skip_probability


class Constants(NamedTuple):
    """The constants of the proved theorem, in place of the printed ones.

    C_6 and C_7 have no counterpart, because the proof bounds grad f without them.

    Attributes:
        C_2: The factor of (D_0 + start * mean_i ||grad f_i(x^0)||^2)/T.
        C_3: The growth factor of the agents' disagreement (root mean square) per round; a guarantee needs C_3 < 1.
        C_4: The factor of eps_1.
        C_5: The factor of guaranteed_factor(p) (delta^2 + eps_1).
        start: The cost of starting at lambda_i^0 = 0 instead of -grad f_i(x^0).
    """

    C_2: float
    C_3: float
    C_4: float
    C_5: float
    start: float


@explained
def constants(L: float, eta: float, p: float = 0.0, nonconvexity: float | None = None) -> Constants:
    """Return the constants of the proved Theorem 1. With a = L eta and b = m eta:

    C_2 = (2/eta) (2 + [p > 0] + a^2 (1+a)^2/(1 - 2a - 4a^2))      C_3 = sqrt(p + (1-p) a^2)/(1-b)
    C_4 = C_2 ((1 + 8a)/L + (3 + 2a)^2 eta/2)                      C_5 = 2 C_2
    start = eta (1 + 2a)/(1-a)^2 + eta/4
    """
    a, b = allowed_product(L, eta), weak_convexity(nonconvexity, L, eta)
    c_3 = math.sqrt(check_probability(p) + (1 - p) * a**2) / (1 - b)
    c_2 = 2 / eta * (2 + (p > 0) + (a * (1 + a)) ** 2 / (1 - 2 * a - 4 * a**2))
    c_4 = c_2 * ((1 + 8 * a) / L + (3 + 2 * a) ** 2 * eta / 2)
    return Constants(c_2, c_3, c_4, 2 * c_2, eta * (1 + 2 * a) / (1 - a) ** 2 + eta / 4)


class Disagreement(NamedTuple):
    """Bounds of sqrt(E mean_i ||v_i - mean_j v_j||^2), in units of eta (delta + sqrt(eps_1)).

    Attributes:
        x: The bound for v_i = x_i^r.
        x0: The bound for v_i = x_{0,i}^{r+}.
        skipped: The bound for v_i = x_{0,i}^{r+}, given that the previous round was skipped.
    """

    x: float
    x0: float
    skipped: float


@explained
def disagreement(p: float, L: float, eta: float, nonconvexity: float | None = None) -> Disagreement:
    """Return the fixed point of the second-moment recursion that replaces Lemma 7 and its use in the proof.

    With a = L eta and b = m eta, in units of eta (delta + sqrt(eps_1)): (1-b) V(x^{r+1}) <= V(x^r) + 1 if round r-1 was
    skipped (a proximal step on f_i), and <= a V(x^r) + 2 if not. So for the root mean squares X_r

        (1-b)^2 X_{r+1}^2 <= p (X_r + 1)^2 + (1-p) (a X_r + 2)^2

    If p + (1-p) a^2 < (1-b)^2, this has a fixed point that X_r never exceeds. Otherwise the result is infinite.
    """
    a, b = allowed_product(L, eta), weak_convexity(nonconvexity, L, eta)
    slack = (1 - b) ** 2 - check_probability(p) - (1 - p) * a**2
    if slack <= 0:
        return Disagreement(math.inf, math.inf, math.inf)
    half = p + 2 * (1 - p) * a
    x = (half + math.sqrt(half**2 + slack * (4 - 3 * p))) / slack
    return Disagreement(x, (1 + a) * x + 1, (1 + a) * (x + 1) / (1 - b) + 1)


@explained
def max_skip_probability(L: float, eta: float, nonconvexity: float | None = None) -> float:
    """Return ((1 - m eta)^2 - (L eta)^2)/(1 - (L eta)^2). At this p and above, C_3 >= 1 and there is no guarantee.

    It is 1 for convex f_i (m = 0), and (1 - 2 L eta)/(1 - (L eta)^2) if the f_i may be non-convex (m = L).
    """
    a, b = allowed_product(L, eta), weak_convexity(nonconvexity, L, eta)
    return ((1 - b) ** 2 - a**2) / (1 - a**2)


@explained
def guaranteed_factor(p: float, L: float, eta: float, T: int = 1, nonconvexity: float | None = None) -> float:
    """Return the factor (eta/2) p ((1-p) z^2 + ((L eta)^2 + 1/T) y^2), which replaces C(p).

    (., y, z) is the `disagreement`. A communication after a skipped round adds z^2 to the augmented Lagrangian. y^2 is
    the error of the gradient that comes from the differences between the copies x_{0,i}.
    """
    count("T", T, "T is the number of rounds")
    _, y, z = disagreement(p, L, eta, nonconvexity)
    return eta / 2 * p * ((1 - p) * z**2 + ((L * eta) ** 2 + 1 / T) * y**2) if p else 0.0


class Terms(NamedTuple):
    """The three terms of the bound.

    Attributes:
        start: C_2 (D_0 + start * gradients)/T.
        skipping: C_5 guaranteed_factor(p) (delta^2 + eps_1).
        accuracy: C_4 eps_1.
    """

    start: float
    skipping: float
    accuracy: float


@explained
def terms(
    T: int,
    gap: float,
    *,
    L: float,
    eta: float,
    p: float,
    epsilon_1: float,
    gradients: float | None = None,
    delta: float | None = None,
    agents: int | None = None,
    nonconvexity: float | None = None,
) -> Terms:
    """Return the terms of `bound`, to see which of them dominates.

    The agents must start at x_i = x_{0,i} = x^0 with lambda_i = 0, and every local solve must reach
    ||grad L_i||^2 <= eps_1 (epsilon_1).
    """
    c, delta = constants(L, eta, p), difference_bound(p, delta)
    check_setting(T, gap, epsilon_1, agents)
    factor = c.C_5 * guaranteed_factor(p, L, eta, T, nonconvexity)
    skipping = 0.0 if agents == 1 else skipping_term(p, factor, delta, epsilon_1)
    start = c.C_2 * (gap + c.start * start_gradients(gradients, gap, L, delta)) / T
    return Terms(start, skipping, c.C_4 * epsilon_1)


@explained
def bound(
    T: int,
    gap: float,
    *,
    L: float,
    eta: float,
    p: float,
    epsilon_1: float,
    gradients: float | None = None,
    delta: float | None = None,
    agents: int | None = None,
    nonconvexity: float | None = None,
) -> float:
    """Return an upper bound of (1/T) sum_{r=0}^{T-1} E||grad f(mean_i x_{0,i}^r)||^2: Theorem 1, corrected and proved.

        (C_2/T) (D_0 + start mean_i ||grad f_i(x^0)||^2)
        + C_5 guaranteed_factor(p) (delta^2 + eps_1) + C_4 eps_1

    Case I is p = 0, with any delta. Case II, p > 0, needs a finite delta and p < max_skip_probability(L, eta, m), which
    is 1 if the f_i are convex (m = nonconvexity = 0). Otherwise the bound is infinite.

    Args:
        T: The number of rounds.
        gap: D_0 = f(x^0) - inf f, or an upper bound of it.
        L: The smoothness of the f_i.
        eta: The step of FedPD, below max_eta(L).
        p: The probability of skipping a communication, in [0, 1).
        epsilon_1: The bound of ||grad L_i||^2 after a local solve; 0 is an exact solve.
        gradients: mean_i ||grad f_i(x^0)||^2; None: 2 L D_0 + delta^2, an upper bound of it if delta is finite.
        delta: An upper bound of ||grad f_i(x) - grad f(x)||, as theory.heterogeneity gives it; needed if p > 0.
        agents: N; None: unknown.
        nonconvexity: m; None: L.
    """
    steps: dict[str, float] = {"L": L, "eta": eta, "p": p, "epsilon_1": epsilon_1}
    return sum(terms(T, gap, **steps, gradients=gradients, delta=delta, agents=agents, nonconvexity=nonconvexity))


@explained
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
    """Return T = 2 C_2 (D_0 + start * gradients)/epsilon, rounded up; the start's term is then half of epsilon.

    The paper's remark has the inverse, T = 1/(2 C_2 D_0 epsilon). If local solves reach `local_accuracy` and p is at
    most `guaranteed_skip_probability`, `bound` is at most epsilon.
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    c = constants(L, eta, p)
    at_least("gap", gap, 0, "gap is an upper bound of f(x^0) - inf f")
    return max(1, math.ceil(2 * c.C_2 * (gap + c.start * start_gradients(gradients, gap, L, delta)) / epsilon))


@explained
def local_accuracy(
    epsilon: float, *, L: float, eta: float, p: float = 0.0, delta: float = math.inf, nonconvexity: float | None = None
) -> float:
    """Return the eps_1 that local solves must reach: epsilon/(2 C_4) if every round communicates.

    If some rounds are skipped, a quarter of epsilon remains for the local solves:

        eps_1 = min(epsilon/(4 C_4), epsilon/(4 C_5 guaranteed_factor(p)) - delta^2)

    In place of the second term the paper has delta^2. It is smaller for every p up to `guaranteed_skip_probability`,
    and 0 for agents with the same gradients.
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    c = constants(L, eta, p)
    if p == 0:
        return epsilon / (2 * c.C_4)
    spent = 4 * c.C_5 * guaranteed_factor(p, L, eta, nonconvexity=nonconvexity)
    if spent * check_heterogeneity(delta) ** 2 >= epsilon:
        rule = "is too large: even with exact local solves, skipping leaves more than epsilon"
        refuse("p", p, rule, "Try guaranteed_skip_probability")
    left = epsilon / spent - delta**2 if spent else math.inf  # at p = 1e-320, `spent` rounds to 0
    return min(epsilon / (4 * c.C_4), left)


@explained
def guaranteed_skip_probability(
    epsilon: float, delta: float, L: float, eta: float, nonconvexity: float | None = None
) -> float:
    """Return the largest p with C_5 guaranteed_factor(p) 2 delta^2 <= epsilon/4, so that skipping costs epsilon/4."""
    c_5 = constants(L, eta, 0.5).C_5
    allowed = accuracy_ratio(epsilon, delta) / (8 * c_5)
    most = math.nextafter(max_skip_probability(L, eta, nonconvexity), 0)
    return largest_below(lambda p: guaranteed_factor(p, L, eta, nonconvexity=nonconvexity), allowed, most)


@explained
def local_iterations(epsilon_1: float, start: float, L: float, eta: float) -> int:
    """Return the Q of gradient descent with step 1/(L + 1/eta) that reduces ||grad L_i||^2 from `start` to epsilon_1.

    L_i is (1/eta - L)-strongly convex and (1/eta + L)-smooth, so a step multiplies ||grad L_i|| by at most
    1 - (1 - L eta)/(1 + L eta) = 2 L eta/(1 + L eta). This needs only L eta < 1.

    Args:
        epsilon_1: The ||grad L_i||^2 to reach.
        start: ||grad L_i||^2 at the start of the local solve.
    """
    positive("epsilon_1", epsilon_1, "epsilon_1 is the ||grad L_i||^2 to reach, e.g. 1e-8")
    at_least("start", start, 0, "start is ||grad L_i||^2 at the start of the local solve")
    positive("L", L, SMOOTHNESS)
    positive("eta", eta, ETA)
    a = below("L * eta", L * eta, 1, "Lower eta: L_i is strongly convex only if L * eta < 1")
    if start <= epsilon_1:
        return 0
    rate = 2 * math.log(2 * a / (1 + a))
    return math.ceil(math.log(epsilon_1 / start) / rate)


class Savings(NamedTuple):
    """The skip probabilities that the rules allow, as functions of epsilon/delta^2 (the paper's figure of p and delta).

    Attributes:
        ratio: epsilon/delta^2.
        exact: The paper's rule, solved numerically.
        linear: The paper's approximation for small p.
        logarithmic: The paper's approximation for p near 1.
        guaranteed: The proved rule.
    """

    ratio: np.ndarray
    exact: np.ndarray
    linear: np.ndarray
    logarithmic: np.ndarray
    guaranteed: np.ndarray

    def __repr__(self) -> str:
        return brief(self)


@explained
def savings(ratios: Sequence[float] | np.ndarray, L: float, eta: float) -> Savings:
    """Return the skip probabilities that are allowed at these epsilon/delta^2; the paper uses eta = max_eta(L)/2."""
    columns: tuple[Callable[[float], float], ...] = (
        lambda ratio: skip_probability(ratio, 1.0, L, eta),
        lambda ratio: linear_skip_probability(ratio, 1.0, eta),
        lambda ratio: logarithmic_skip_probability(ratio, 1.0, eta),
        lambda ratio: guaranteed_skip_probability(ratio, 1.0, L, eta),
    )
    ratio = as_array(ratios, "ratios", "Give values of epsilon/delta^2").astype(float)
    if ratio.ndim != 1:
        refuse("shape of ratios", ratio.shape, "must be a list of numbers", "Give values of epsilon/delta^2")
    return Savings(ratio, *(np.array([column(one) for one in ratio.tolist()]) for column in columns))
