"""What skipped rounds do on convex quadratics f_i(x) = x^T H_i x/2 - c_i^T x, with local problems solved exactly.

A stretch is k local rounds and then a communication. With u_i = x_i - x* at a communication, P_i = (I + eta H_i)^-1,
y = x_0 - x* = mean_i (I - eta H_i) u_i and g_i = grad f_i(x*), a stretch is affine in the u_i and in m, the mean dual:

    paper       u_i+ = P_i^k (y + eta H_i u_i) - T_i g_i                T_i = eta (P_i + ... + P_i^{k-1})
    corrected   u_i+ = P_i^k y + (I - P_i^k) u_i + T_i m                m: exact, m = -mean_i H_i u_i, or estimated

`contraction` is the spectral radius of that map, the factor by which one communication reduces the error in the long
run. Where all Hessians are equal there are closed forms: the corrected rule with the exact m multiplies the mean of the
agents by (1 + eta h)^-k and their differences by 1 - (1 + eta h)^-k, in every eigenvector of H, h its eigenvalue in
[mu, L]. Proofs are in docs/theory/skipping.md.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.checks import at_least, below, choice, count, positive, refuse

Drift = Literal["paper", "corrected", "corrected-exact"]
Errors = Literal["agents", "server"]
DRIFTS: tuple[Drift, ...] = get_args(Drift)
ETA = "1/eta is the penalty of FedPD"
STRETCH = "k counts the local rounds up to and with the one that communicates; 1 skips nothing"
CURVATURE = "mu and L are the smallest and the largest eigenvalue of the Hessians"
VISIBLE = 1e-9  # part of an eigenvector of length 1 that the server must have to see its mode
TAIL = 1e-18  # probability of stretches that sums over all lengths leave out


# --- any Hessians -----------------------------------------------------------------------------------------------------


def stretch_map(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> np.ndarray:
    """Return the matrix of a stretch on the state (u_1, ..., u_N), (N d, N d).

    drift="corrected" has eta m, the estimate, as d more rows and columns. At k = 1 the three rules are the same, and m
    has no effect: it is left out.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
    """
    powers, sums = _powers(hessians, eta, k)
    hessians = np.asarray(hessians, float)
    agents, d, _ = hessians.shape
    free = choice("drift", drift, DRIFTS) == "corrected" and k > 1
    state = np.eye((agents + free) * d)
    u, estimate = state[: agents * d].reshape(agents, d, -1), state[agents * d :]
    dual = -eta * (hessians @ u).mean(0)  # eta times the mean of the duals
    y = u.mean(0) + dual
    if drift == "paper":
        return (powers @ (y + eta * hessians @ u)).reshape(state.shape)
    m = estimate if free else dual
    new = powers @ (y - u) + u + sums @ m / eta
    rows = new.reshape(agents * d, -1)
    if not free:
        return rows
    moved = (new - eta * hessians @ new).mean(0) - y
    return np.concatenate([rows, m + 2 * (moved - k * m) / (k + 3)])


def contraction(
    hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact", of: Errors = "agents"
) -> float:
    """Return the spectral radius of a stretch: in the long run each communication multiplies the error by it.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
        of: "agents": the error of every x_i and lambda_i. "server": the error of the mean of the x_i and of x_0 only,
            which do not depend on every difference between agents, and on none where the Hessians are equal.
    """
    matrix = stretch_map(hessians, eta, k, drift)
    if choice("of", of, get_args(Errors)) == "agents":
        return float(np.abs(np.linalg.eigvals(matrix)).max())
    hessians = np.asarray(hessians, float)
    agents, d, _ = hessians.shape
    values, vectors = np.linalg.eig(matrix)
    u = vectors[: agents * d].reshape(agents, d, -1)
    seen = np.linalg.norm(np.concatenate([u.mean(0), eta * (hessians @ u).mean(0)]), axis=0)
    return float(np.abs(values[seen > VISIBLE]).max())


def rate_per_round(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> float:
    """Return the k-th root of `contraction`: the factor per round of local work.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
    """
    return contraction(hessians, eta, k, drift) ** (1 / k)


def relative_communications(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> float:
    """Return the communications to a high accuracy, divided by those that k = 1 needs at the same eta.

    Below 1, skipping wins. It is log contraction(1)/log contraction(k); infinite where a stretch does not contract.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
    """
    single, stretch = contraction(hessians, eta, 1, drift), contraction(hessians, eta, k, drift)
    return math.log(single) / math.log(stretch) if stretch < 1 else math.inf


def communications_map(
    hessians: np.ndarray, etas: Sequence[float] | np.ndarray, ks: Sequence[int], drift: Drift = "corrected-exact"
) -> np.ndarray:
    """Return `relative_communications` for every k (rows) and eta (columns).

    Args:
        hessians: The H_i, (N, d, d).
        etas: Steps of FedPD.
        ks: Rounds per communication.
        drift: The rule for skipped rounds.
    """
    rows = [[relative_communications(hessians, float(eta), k, drift) for eta in etas] for k in ks]
    return np.array(rows)


class Stretch(NamedTuple):
    """A number of rounds per communication, and what it achieves.

    Attributes:
        k: The rounds per communication.
        contraction: The factor per communication.
    """

    k: int
    contraction: float


def best_stretch(hessians: np.ndarray, eta: float, drift: Drift = "corrected-exact", longest: int = 64) -> Stretch:
    """Return the k of 1, ..., longest with the smallest `contraction`, by trying all; the shortest of equals.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        drift: The rule for skipped rounds.
        longest: The largest k to try.
    """
    count("longest", longest, STRETCH)
    found = [Stretch(k, contraction(hessians, eta, k, drift)) for k in range(1, longest + 1)]
    return min(found, key=lambda stretch: stretch.contraction)


class Floor(NamedTuple):
    """The error floor of Algorithm 2 with skipped rounds, right after a communication.

    Attributes:
        offset: (d,) x_0 - x*.
        stationarity: ||grad f(x_0)||^2.
    """

    offset: np.ndarray
    stationarity: float


def paper_floor(hessians: np.ndarray, linear: np.ndarray, eta: float, k: int) -> Floor:
    """Return the fixed point of drift="paper", u = M u - T g; it is zero where k = 1 or all Hessians are equal.

    Args:
        hessians: The H_i, (N, d, d), with a positive definite mean.
        linear: The c_i, (N, d).
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    hessians, linear, gradients = _at_solution(hessians, linear)
    _, sums = _powers(hessians, eta, k)
    pull = -(sums @ gradients[..., None]).reshape(-1)
    u = np.linalg.solve(np.eye(len(pull)) - stretch_map(hessians, eta, k, "paper"), pull).reshape(linear.shape)
    return _floor(hessians, (u - eta * np.einsum("nij,nj->ni", hessians, u)).mean(0))


def small_eta_floor(hessians: np.ndarray, linear: np.ndarray, eta: float, k: int) -> Floor:
    """Return `paper_floor` to first order in eta: x_0 - x* = (eta (k-1)/2) mean(H)^-1 mean_i H_i g_i.

    Args:
        hessians: The H_i, (N, d, d), with a positive definite mean.
        linear: The c_i, (N, d).
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    count("k", k, STRETCH)
    hessians, linear, gradients = _at_solution(hessians, linear)
    pull = np.einsum("nij,nj->i", hessians, gradients) / len(hessians)
    return _floor(hessians, positive("eta", eta, ETA) * (k - 1) / 2 * np.linalg.solve(hessians.mean(0), pull))


# --- equal Hessians, eigenvalues in [mu, L], the corrected rule with the exact mean dual ------------------------------


class Factors(NamedTuple):
    """What a stretch multiplies along an eigenvector.

    Attributes:
        mean: The factor of the mean of the agents' errors.
        difference: The factor of the differences between them.
    """

    mean: float
    difference: float


def factors(h: float, eta: float, k: int) -> Factors:
    """Return (1 + eta h)^-k and 1 - (1 + eta h)^-k.

    Args:
        h: An eigenvalue of the Hessian.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return Factors(math.exp(-folds), -math.expm1(-folds))


def k_folds(h: float, eta: float, k: float) -> float:
    """Return k log(1 + eta h): the e-foldings of the mean's error in k rounds."""
    return k * math.log1p(positive("eta", eta, ETA) * positive("h", h, CURVATURE))


def effective_eta(h: float, eta: float, k: int) -> float:
    """Return ((1 + eta h)^k - 1)/h: without skipping, this eta has the factors that k rounds of `eta` have.

    Args:
        h: An eigenvalue of the Hessian.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return math.expm1(folds) / h if folds < 700 else math.inf


def equal_contraction(mu: float, L: float, eta: float, k: int) -> float:
    """Return max((1 + eta mu)^-k, 1 - (1 + eta L)^-k): `contraction` for N > 1 agents with the same Hessian.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    _check_curvature(mu, L)
    return max(factors(mu, eta, k).mean, factors(L, eta, k).difference)


def free_mean_map(h: float, eta: float, k: int) -> np.ndarray:
    """Return what a stretch with the estimated m does to (mean of u_i, eta m), (2, 2).

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


def best_equal_stretch(mu: float, L: float, eta: float) -> Stretch:
    """Return the k with the smallest `equal_contraction`.

    It is an integer next to the root of (1 + eta mu)^-k + (1 + eta L)^-k = 1. The root lies between log 2/log(1 + eta
    L) and log 2/log(1 + eta mu), and equals them where mu = L. Below it the mean is the slower part, above it the
    differences.

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


def longest_winning_stretch(mu: float, L: float, eta: float) -> int:
    """Return the largest k whose `equal_contraction` is below that of k = 1; 1 where skipping never wins.

    Those are the k > 1 with (1 + eta L)^k < 1 + 1/(eta mu): none where eta is 1/sqrt(mu L) or more.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
    """
    _check_curvature(mu, L)
    limit = math.log1p(1 / (positive("eta", eta, ETA) * mu)) / k_folds(L, eta, 1)
    return max(1, math.ceil(limit) - 1)


class Schedule(NamedTuple):
    """The fewest communications: all stretches but one are single rounds.

    Attributes:
        communications: The number of communications.
        rounds: The rounds of local work in all.
        long: The rounds of the long stretch.
    """

    communications: int
    rounds: int
    long: int


def fewest_communications(mu: float, L: float, eta: float, accuracy: float) -> Schedule:
    """Return the fewest communications, over all sequences of stretches, that multiply every error by `accuracy`.

    The mean takes log(1/accuracy)/log(1 + eta mu) rounds, however they are divided; the differences are reduced most by
    single rounds, each by eta L/(1 + eta L).

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


# --- equal Hessians, a coin each round: stretches of random length ----------------------------------------------------


def mean_square_contraction(mu: float, L: float, eta: float, p: float) -> float:
    """Return the root mean square of a communication's factor, of the worst mode, at skip probability p.

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


def typical_contraction(mu: float, L: float, eta: float, p: float) -> float:
    """Return exp of the mean logarithm of a communication's factor: with probability 1 the factor of a long run.

    It is never above that of a fixed stretch of the mean length 1/(1-p), since log(1 - q^k) is concave in k.

    Args:
        mu: The smallest eigenvalue.
        L: The largest eigenvalue.
        eta: The step of FedPD.
        p: The probability of skipping a communication, in [0, 1).
    """
    _check_curvature(mu, L)
    _probability(p)
    lengths = np.arange(1, 2 + (math.ceil(math.log(TAIL) / math.log(p)) if p > 1e-300 else 0))
    chances = (1 - p) * p ** (lengths - 1.0)
    differences = float(chances @ np.log(-np.expm1(-lengths * k_folds(L, eta, 1))))
    return math.exp(max(-k_folds(mu, eta, 1 / (1 - p)), differences))


# --- small parts ------------------------------------------------------------------------------------------------------


def _powers(hessians: np.ndarray, eta: float, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P_i^k and T_i = eta (P_i + ... + P_i^{k-1}) of all agents, each (N, d, d)."""
    positive("eta", eta, ETA)
    count("k", k, STRETCH)
    values, vectors = np.linalg.eigh(_hessians(hessians))
    values = np.maximum(values, 0)
    logs = np.log1p(eta * values)
    flat = values * eta < 1e-300
    sums = np.where(flat, eta * (k - 1), -np.expm1((1 - k) * logs) / np.where(flat, 1, values))
    powers, sums = ((vectors * diagonal[:, None]) @ vectors.swapaxes(1, 2) for diagonal in (np.exp(-k * logs), sums))
    return powers, sums


def _hessians(hessians: Any) -> np.ndarray:
    """Return the Hessians as float64; refuse what is not symmetric and positive semidefinite."""
    matrices = np.asarray(hessians, float)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        refuse("hessians", matrices.shape, "must have shape (N, d, d)", "One H_i per agent")
    if not np.allclose(matrices, matrices.swapaxes(1, 2)):
        refuse("hessians", matrices.shape, "must be symmetric", "Use (H + H^T)/2, which is the same function")
    values = np.linalg.eigvalsh(matrices)
    if values.min() < -1e-12 * np.abs(values).max():
        refuse("hessians", float(values.min()), "must have no negative eigenvalue", "The f_i must be convex here")
    return matrices


def _at_solution(hessians: Any, linear: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Hessians, linear terms and the gradients g_i at x*."""
    hessians, linear = _hessians(hessians), np.asarray(linear, float)
    if linear.shape != hessians.shape[:2]:
        refuse("linear", linear.shape, f"must have shape {hessians.shape[:2]}", "One c_i per agent")
    mean = hessians.mean(0)
    least = float(np.linalg.eigvalsh(mean)[0])
    if least <= 0:
        refuse("mean of the hessians", least, "must be positive definite", "Else there is no single solution x*")
    solution = np.linalg.solve(mean, linear.mean(0))
    return hessians, linear, hessians @ solution - linear


def _floor(hessians: np.ndarray, offset: np.ndarray) -> Floor:
    """Return the floor at x_0 = x* + offset."""
    gradient = hessians.mean(0) @ offset
    return Floor(offset, float(gradient @ gradient))


def _check_curvature(mu: float, L: float) -> None:
    """Refuse mu and L that are not 0 < mu <= L."""
    positive("mu", mu, CURVATURE)
    at_least("L", L, mu, CURVATURE)


def _probability(p: float) -> float:
    """Return p; refuse a value outside [0, 1)."""
    return below("p", at_least("p", p, 0, "p is a probability"), 1, "p = 1 would never communicate")
