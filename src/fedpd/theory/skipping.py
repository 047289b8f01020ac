"""The effect of skipped rounds on convex quadratics f_i(x) = x^T H_i x/2 - c_i^T x, with exact local solves.

A stretch is k local rounds followed by a communication. With u_i = x_i - x* at a communication, P_i = (I + eta H_i)^-1,
y = x_0 - x* = mean_i (I - eta H_i) u_i and g_i = grad f_i(x*), a stretch is affine in the u_i and in m, the mean dual:

    paper       u_i+ = P_i^k (y + eta H_i u_i) - T_i g_i                T_i = eta (P_i + ... + P_i^{k-1})
    corrected   u_i+ = P_i^k y + (I - P_i^k) u_i + T_i m                m: exact, m = -mean_i H_i u_i, or estimated

`contraction` is the spectral radius of that map: in the long run one communication multiplies the error by it. If all
Hessians are equal there are closed forms, in `fedpd.theory.equal_hessians` and available from here. Proofs are in
docs/theory/skipping.md.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.arrays import as_array, check_finite
from fedpd.base.checks import choice, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.theory.equal_hessians import (
    ETA,
    STRETCH,
    Factors,
    Schedule,
    Stretch,
    best_equal_stretch,
    effective_eta,
    equal_contraction,
    factors,
    fewest_communications,
    free_mean_map,
    k_folds,
    longest_winning_stretch,
    mean_square_contraction,
    typical_contraction,
)

__all__ = [
    "DRIFTS",
    "Drift",
    "Errors",
    "Factors",
    "Floor",
    "Schedule",
    "Stretch",
    "best_equal_stretch",
    "best_stretch",
    "communications_map",
    "contraction",
    "effective_eta",
    "equal_contraction",
    "factors",
    "fewest_communications",
    "free_mean_map",
    "k_folds",
    "longest_winning_stretch",
    "mean_square_contraction",
    "paper_floor",
    "rate_per_round",
    "relative_communications",
    "small_eta_floor",
    "stretch_map",
    "typical_contraction",
]

Drift = Literal["paper", "corrected", "corrected-exact"]
Errors = Literal["agents", "server"]
DRIFTS: tuple[Drift, ...] = get_args(Drift)
VISIBLE = 1e-9  # a mode affects the server if the server's part of its unit eigenvector is larger than this


@explained
def stretch_map(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> np.ndarray:
    """Return the matrix of a stretch on the state (u_1, ..., u_N), (N d, N d).

    drift="corrected" adds d rows and columns for eta m, the estimate. At k = 1 the three rules are the same and m has
    no effect, so it is left out.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
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
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
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
    """Return the k-th root of `contraction`, the factor per local round.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
    """
    return contraction(hessians, eta, k, drift) ** (1 / k)


@explained
def relative_communications(hessians: np.ndarray, eta: float, k: int, drift: Drift = "corrected-exact") -> float:
    """Return the number of communications to a high accuracy, divided by the number for k = 1 at the same eta.

    Below 1, skipping wins. It is log contraction(1)/log contraction(k), and infinite if a stretch does not contract.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        k: The rounds per communication.
        drift: The rule for skipped rounds.
    """
    single, stretch = contraction(hessians, eta, 1, drift), contraction(hessians, eta, k, drift)
    return math.log(single) / math.log(stretch) if stretch < 1 else math.inf


@explained
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
    steps, stretches = as_array(etas, "etas", ETA), as_array(ks, "ks", STRETCH)
    rows = [[relative_communications(hessians, eta, k, drift) for eta in steps.tolist()] for k in stretches.tolist()]
    return np.array(rows)


@explained
def best_stretch(hessians: np.ndarray, eta: float, drift: Drift = "corrected-exact", longest: int = 64) -> Stretch:
    """Return the k in 1, ..., longest with the smallest `contraction`, or the smallest of several such k.

    Args:
        hessians: The H_i, (N, d, d).
        eta: The step of FedPD.
        drift: The rule for skipped rounds.
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
        linear: The c_i, (N, d).
        eta: The step of FedPD.
        k: The rounds per communication.
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
        linear: The c_i, (N, d).
        eta: The step of FedPD.
        k: The rounds per communication.
    """
    count("k", k, STRETCH)
    hessians, linear, gradients = _at_solution(hessians, linear)
    pull = np.einsum("nij,nj->i", hessians, gradients) / len(hessians)
    return _floor(hessians, positive("eta", eta, ETA) * (k - 1) / 2 * np.linalg.solve(hessians.mean(0), pull))


# --- helper functions -------------------------------------------------------------------------------------------------


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
