"""The effect of skipped rounds on convex quadratics f_i(x) = x^T H_i x/2 - c_i^T x, with exact local solves.

A stretch is k local rounds followed by a communication. With u_i = x_i - x* at a communication, P_i = (I + eta H_i)^-1,
y = x_0 - x* = mean_i (I - eta H_i) u_i and g_i = grad f_i(x*), a stretch is affine in the u_i and in m, the mean dual:

    paper       u_i+ = P_i^k (y + eta H_i u_i) - T_i g_i,   T_i = eta (P_i + ... + P_i^{k-1})
    corrected   u_i+ = P_i^k y + (I - P_i^k) u_i + T_i m,   m = -mean_i H_i u_i, or an estimate

`contraction` is the spectral radius of that map: in the long run one communication multiplies the error by it. If all
Hessians are equal there are closed forms, for fixed and for random stretches: the corrected rule with the exact mean
dual multiplies the mean of the agents' errors by (1 + eta h)^-k and their differences by 1 - (1 + eta h)^-k, along
every eigenvector of H with eigenvalue h in [mu, L]. Proofs are in docs/theory/skipping.md.

Arguments of the functions: `hessians` are the H_i (N, d, d), `linear` the c_i (N, d), `eta` is the step of FedPD, `k`
the rounds per communication, `drift` the rule for skipped rounds, `h` an eigenvalue of the Hessian, `mu` and `L` are
the smallest and the largest, and `p` in [0, 1) is the probability of skipping a communication.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.arrays import as_array, check_finite
from fedpd.base.checks import at_least, below, check_room, choice, count, positive, refuse
from fedpd.base.typed import explained

Drift = Literal["paper", "corrected", "corrected-exact"]
Errors = Literal["agents", "server"]
DRIFTS: tuple[Drift, ...] = get_args(Drift)
VISIBLE = 1e-9  # a mode affects the server if the server's part of its unit eigenvector is larger than this
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


@explained
def stretch_map(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> np.ndarray:
    """Return the matrix of a stretch on the state (u_1, ..., u_N), (N d, N d).

    drift="corrected" adds d rows and columns for eta m, the estimate. At k = 1 the three rules are the same and m has
    no effect, so it is left out.
    """
    hessians = _hessians(hessians)
    powers, sums = _powers(hessians, eta, k)
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


@explained
def contraction(
    hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact", of: Errors = "agents"
) -> float:
    """Return the spectral radius of a stretch, the factor on the error per communication in the long run.

    Args:
        of: "agents": the error of every x_i and lambda_i. "server": only the error of the mean of the x_i and of x_0.
            These do not depend on every difference between agents, and on none if the Hessians are equal.
    """
    hessians = _hessians(hessians)
    matrix = stretch_map(hessians, eta, k, drift)
    if choice("of", of, get_args(Errors)) == "agents":
        return float(np.abs(np.linalg.eigvals(matrix)).max())
    agents, d, _ = hessians.shape
    values, vectors = np.linalg.eig(matrix)
    u = vectors[: agents * d].reshape(agents, d, -1)
    seen = np.linalg.norm(np.concatenate([u.mean(0), eta * (hessians @ u).mean(0)]), axis=0)
    return float(np.abs(values[seen > VISIBLE]).max())


@explained
def rate_per_round(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> float:
    """Return the k-th root of `contraction`, the factor per local round."""
    return contraction(hessians, eta, k, drift) ** (1 / k)


@explained
def relative_communications(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> float:
    """Return the number of communications to a high accuracy, divided by the number for k = 1 at the same eta.

    Below 1, skipping wins. It is log contraction(1)/log contraction(k), and infinite if a stretch does not contract.
    """
    single, stretch = contraction(hessians, eta, 1, drift), contraction(hessians, eta, k, drift)
    return math.log(single) / math.log(stretch) if stretch < 1 else math.inf


@explained
def communications_map(
    hessians: np.ndarray, etas: Sequence[float] | np.ndarray, ks: Sequence[int], drift: Drift = "corrected-exact"
) -> np.ndarray:
    """Return `relative_communications` for every k (rows) and eta (columns)."""
    steps, stretches = as_array(etas, "etas", ETA), as_array(ks, "ks", STRETCH)
    rows = [[relative_communications(hessians, eta, k, drift) for eta in steps.tolist()] for k in stretches.tolist()]
    return np.array(rows)


@explained
def best_stretch(hessians: np.ndarray, eta: float, drift: Drift = "corrected-exact", longest: int = 64) -> Stretch:
    """Return the k in 1, ..., longest with the smallest `contraction`, or the smallest of several such k.

    Args:
        longest: The largest k to try.
    """
    count("longest", longest, STRETCH, bits=16)
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


@explained
def paper_floor(hessians: np.ndarray, linear: np.ndarray, eta: float, k: int) -> Floor:
    """Return the fixed point of drift="paper", u = M u - T g; it is zero if k = 1 or if all Hessians are equal.

    Args:
        hessians: The H_i, (N, d, d), with a positive definite mean.
    """
    hessians, linear, gradients = _at_solution(hessians, linear)
    _, sums = _powers(hessians, eta, k)
    pull = -(sums @ gradients[..., None]).reshape(-1)
    u = np.linalg.solve(np.eye(len(pull)) - stretch_map(hessians, eta, k, "paper"), pull).reshape(linear.shape)
    return _floor(hessians, (u - eta * np.einsum("nij,nj->ni", hessians, u)).mean(0))


@explained
def small_eta_floor(hessians: np.ndarray, linear: np.ndarray, eta: float, k: int) -> Floor:
    """Return `paper_floor` to first order in eta: x_0 - x* = (eta (k-1)/2) mean(H)^-1 mean_i H_i g_i.

    Args:
        hessians: The H_i, (N, d, d), with a positive definite mean.
    """
    count("k", k, STRETCH)
    hessians, linear, gradients = _at_solution(hessians, linear)
    pull = np.einsum("nij,nj->i", hessians, gradients) / len(hessians)
    return _floor(hessians, positive("eta", eta, ETA) * (k - 1) / 2 * np.linalg.solve(hessians.mean(0), pull))


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
    """Return the Hessians as float64; refuse matrices that are not symmetric and positive semidefinite."""
    matrices = check_finite(as_array(hessians, "hessians").astype(float), "hessians")
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        refuse("hessians", matrices.shape, "must have shape (N, d, d)", "Give one H_i per agent")
    if not np.allclose(matrices, matrices.swapaxes(1, 2)):
        refuse("hessians", matrices.shape, "must be symmetric", "Use (H + H^T)/2, which is the same function")
    values = np.linalg.eigvalsh(matrices)
    if values.min() < -1e-12 * np.abs(values).max():
        refuse("hessians", float(values.min()), "must have no negative eigenvalue", "Give convex f_i")
    return matrices


def _at_solution(hessians: Any, linear: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Hessians, linear terms and the gradients g_i at x*."""
    hessians, linear = _hessians(hessians), check_finite(as_array(linear, "linear").astype(float), "linear")
    if linear.shape != hessians.shape[:2]:
        refuse("linear", linear.shape, f"must have shape {hessians.shape[:2]}", "Give one c_i per agent")
    mean = hessians.mean(0)
    least = float(np.linalg.eigvalsh(mean)[0])
    if least <= 0:
        refuse("mean of the hessians", least, "must be positive definite", "Otherwise there is no unique solution x*")
    solution = np.linalg.solve(mean, linear.mean(0))
    return hessians, linear, hessians @ solution - linear


def _floor(hessians: np.ndarray, offset: np.ndarray) -> Floor:
    """Return the floor at x_0 = x* + offset."""
    gradient = hessians.mean(0) @ offset
    return Floor(offset, float(gradient @ gradient))


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
    """Return (1 + eta h)^-k and 1 - (1 + eta h)^-k."""
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return Factors(math.exp(-folds), -math.expm1(-folds))


@explained
def k_folds(h: float, eta: float, k: float) -> float:
    """Return k log(1 + eta h), the e-foldings of the mean's error in k rounds."""
    return k * math.log1p(positive("eta", eta, ETA) * positive("h", h, CURVATURE))


@explained
def effective_eta(h: float, eta: float, k: int) -> float:
    """Return ((1 + eta h)^k - 1)/h, the eta whose factors without skipping equal those of k rounds with `eta`."""
    folds = k_folds(h, eta, count("k", k, STRETCH))
    return math.expm1(folds) / h if folds < 700 else math.inf


@explained
def equal_contraction(mu: float, L: float, eta: float, k: int) -> float:
    """Return max((1 + eta mu)^-k, 1 - (1 + eta L)^-k), the `contraction` for N > 1 agents with the same Hessian."""
    _check_curvature(mu, L)
    return max(factors(mu, eta, k).mean, factors(L, eta, k).difference)


@explained
def free_mean_map(h: float, eta: float, k: int) -> np.ndarray:
    """Return the matrix (2, 2) by which a stretch with the estimated m multiplies (mean of u_i, eta m).

    The differences between agents change as with the exact m.
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


@explained
def mean_square_contraction(mu: float, L: float, eta: float, p: float) -> float:
    """Return the root mean square of the factor per communication, for the worst mode, at skip probability p.

    P(k) = (1-p) p^{k-1}, and E t^k = (1-p) t/(1 - p t) gives E q^{2k} for the mean (h = mu) and E (1 - q^k)^2 for the
    differences (h = L), with q = 1/(1 + eta h).
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
