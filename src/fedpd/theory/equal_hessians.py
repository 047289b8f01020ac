"""Corrected skipping when all Hessians are equal: closed forms, for fixed and for random stretches.

The corrected rule with the exact mean dual multiplies the mean of the agents' errors by (1 + eta h)^-k and their
differences by 1 - (1 + eta h)^-k, along every eigenvector of H with eigenvalue h in [mu, L]. `fedpd.theory.skipping`
defines a stretch.
"""

import math
from typing import NamedTuple

import numpy as np

from fedpd.base.checks import at_least, below, check_room, count, positive
from fedpd.base.typed import explained

ETA = "1/eta is the penalty of FedPD"
STRETCH = "k is the number of rounds per communication; 1 skips none"
CURVATURE = "mu and L are the smallest and the largest eigenvalue of the Hessians"
TAIL = 1e-18  # sums over all stretches leave out the longest ones, which have this probability in all


class Stretch(NamedTuple):
    """A number of rounds per communication, and its contraction factor.

    Attributes:
        k: The rounds per communication.
        contraction: The factor per communication.
    """

    k: int
    contraction: float


class Factors(NamedTuple):
    """The factors of a stretch along an eigenvector.

    Attributes:
        mean: The factor of the mean of the agents' errors.
        difference: The factor of the differences between them.
    """

    mean: float
    difference: float


@explained
def factors(h: float, eta: float, k: int) -> Factors:
    """Return (1 + eta h)^-k and 1 - (1 + eta h)^-k.

    Args:
        h: An eigenvalue of the Hessian.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return Factors(math.exp(-folds), -math.expm1(-folds))


@explained
def k_folds(h: float, eta: float, k: float) -> float:
    """Return k log(1 + eta h), the e-foldings of the mean's error in k rounds."""
    return k * math.log1p(positive("eta", eta, ETA) * positive("h", h, CURVATURE))


@explained
def effective_eta(h: float, eta: float, k: int) -> float:
    """Return ((1 + eta h)^k - 1)/h, the eta whose factors without skipping equal those of k rounds with `eta`.

    Args:
        h: An eigenvalue of the Hessian.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return math.expm1(folds) / h if folds < 700 else math.inf


@explained
def equal_contraction(mu: float, L: float, eta: float, k: int) -> float:
    """Return max((1 + eta mu)^-k, 1 - (1 + eta L)^-k), the `contraction` for N > 1 agents with the same Hessian.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    _check_curvature(mu, L)
    return max(factors(mu, eta, k).mean, factors(L, eta, k).difference)


@explained
def free_mean_map(h: float, eta: float, k: int) -> np.ndarray:
    """Return the matrix (2, 2) by which a stretch with the estimated m multiplies (mean of u_i, eta m).

    The differences between agents change as with the exact m.

    Args:
        h: An eigenvalue of the Hessian.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    a, q = positive("eta", eta, ETA) * positive("h", h, CURVATURE), factors(h, eta, k).mean
    rounds = (1 - q * (1 + a)) / a  # 1/(1 + a) + ... + 1/(1 + a)^{k-1}
    gain = 2 * (1 - a) / (k + 3)
    return np.array([[1 - q * a, rounds], [-gain * q * a, (3 - k) / (k + 3) + gain * rounds]])


@explained
def best_equal_stretch(mu: float, L: float, eta: float) -> Stretch:
    """Return the k with the smallest `equal_contraction`.

    It is an integer next to the root of (1 + eta mu)^-k + (1 + eta L)^-k = 1. The root lies between log 2/log(1 + eta
    L) and log 2/log(1 + eta mu), and equals both if mu = L. Below the root the mean converges more slowly than the
    differences, above it the differences do.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
    """
    _check_curvature(mu, L)
    low, high = (math.log(2) / k_folds(h, eta, 1) for h in (L, mu))
    for _ in range(200):
        middle = (low + high) / 2
        slow = math.exp(-k_folds(mu, eta, middle)) + math.exp(-k_folds(L, eta, middle)) > 1
        low, high = (middle, high) if slow else (low, middle)
    near = {max(1, math.floor(low)), max(1, math.ceil(low))}
    return min((Stretch(k, equal_contraction(mu, L, eta, k)) for k in sorted(near)), key=lambda one: one.contraction)


@explained
def longest_winning_stretch(mu: float, L: float, eta: float) -> int:
    """Return the largest k whose `equal_contraction` is below that of k = 1, or 1 if skipping never wins.

    Skipping wins for k > 1 with (1 + eta L)^k < 1 + 1/(eta mu). There is no such k if eta >= 1/sqrt(mu L).

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
    """
    _check_curvature(mu, L)
    limit = math.log1p(1 / (positive("eta", eta, ETA) * mu)) / k_folds(L, eta, 1)
    return max(1, math.ceil(limit) - 1)


class Schedule(NamedTuple):
    """The schedule with the fewest communications: one long stretch, and single rounds otherwise.

    Attributes:
        communications: The number of communications.
        rounds: The total number of local rounds.
        long: The number of rounds in the long stretch.
    """

    communications: int
    rounds: int
    long: int


@explained
def fewest_communications(mu: float, L: float, eta: float, accuracy: float) -> Schedule:
    """Return the fewest communications, over all sequences of stretches, that multiply every error by `accuracy`.

    The mean needs log(1/accuracy)/log(1 + eta mu) rounds, for any division into stretches. Single rounds reduce the
    differences most, each by the factor eta L/(1 + eta L).

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        accuracy: The factor to reach, in (0, 1).
    """
    _check_curvature(mu, L)
    below("accuracy", positive("accuracy", accuracy, "Give e.g. 1e-5"), 1, "Give e.g. 1e-5")
    digits, single = -math.log(accuracy), math.log1p(1 / (positive("eta", eta, ETA) * L))
    rounds = max(1, math.ceil(digits / k_folds(mu, eta, 1)))
    fewest = max(1, math.ceil(digits / single))
    for communications in (fewest, fewest + 1):
        total = max(rounds, communications)
        long = total - communications + 1
        if (communications - 1) * single - math.log(factors(L, eta, long).difference) >= digits * (1 - 1e-14):
            break
    return Schedule(communications, total, long)


# --- equal Hessians and random skipping: stretches of random length ---------------------------------------------------


@explained
def mean_square_contraction(mu: float, L: float, eta: float, p: float) -> float:
    """Return the root mean square of the factor per communication, for the worst mode, at skip probability p.

    P(k) = (1-p) p^{k-1}, and E t^k = (1-p) t/(1 - p t) gives E q^{2k} for the mean (h = mu) and E (1 - q^k)^2 for the
    differences (h = L), with q = 1/(1 + eta h).

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        p: The probability of skipping a communication, in [0, 1).
    """
    _check_curvature(mu, L)
    _probability(p)
    slow, fast = (math.exp(-k_folds(h, eta, 1)) for h in (mu, L))

    def moment(t: float) -> float:
        return (1 - p) * t / (1 - p * t)

    return math.sqrt(max(moment(slow**2), 1 - 2 * moment(fast) + moment(fast**2)))


@explained
def typical_contraction(mu: float, L: float, eta: float, p: float) -> float:
    """Return exp of the mean logarithm of the factor per communication, the factor of a long run with probability 1.

    It is at most the factor of a fixed stretch with the mean length 1/(1-p), since log(1 - q^k) is concave in k.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        p: The probability of skipping a communication, in [0, 1).
    """
    _check_curvature(mu, L)
    _probability(p)
    longest = math.ceil(math.log(TAIL) / math.log(p)) if p > 1e-300 else 0
    check_room(f"p = {p}: the distribution of {longest} lengths", 8 * longest, "Give a p further from 1")
    lengths = np.arange(1, 2 + longest)
    chances = (1 - p) * p ** (lengths - 1.0)
    differences = float(chances @ np.log(-np.expm1(-lengths * k_folds(L, eta, 1))))
    return math.exp(max(-k_folds(mu, eta, 1 / (1 - p)), differences))


def _check_curvature(mu: float, L: float) -> None:
    """Check that 0 < mu <= L."""
    positive("mu", mu, CURVATURE)
    at_least("L", L, mu, CURVATURE)


def _probability(p: float) -> float:
    """Return p; refuse a value outside [0, 1)."""
    return below("p", at_least("p", p, 0, "p is a probability"), 1, "With p = 1 no round communicates")
