"""The hard instance of Claim 2.1: N agents hold a chain of T links, and every link costs a communication.

    Psi(w) = 1 - e^{-w^2} for w > 0, else 0,    Phi(w) = 4 arctan w + 2 pi
    Theta(x, 1) = -Psi(1) Phi(x[1])
    Theta(x, j) = Psi(-x[j-1]) Phi(-x[j]) - Psi(x[j-1]) Phi(x[j]),    j = 2..T+1,  x in R^{T+1}
    g_i(x) = Theta(x, 1) + sum_{m=1}^{T/N} Theta(x, (m-1)N + i + 1),  i = 1..N
    g(x)   = Theta(x, 1) + (1/N) sum_{j=2}^{T+1} Theta(x, j)
    f_i(x) = height g_i(x / width)

Theta(x, j) has a gradient in x[j] only where x[j-1] is not 0, and no agent holds two links in a row (N >= 2). So from
x^0 = 0 every communication extends the support by one entry, for any number of local steps. After t communications it
lies in {1..t+1}, so x[T+1] = 0 before the T-th. For every k, N ||grad g(x)|| > Phi'(x[k]) = 4/(1 + x[k]^2), which is 4
where x[k] = 0. With

    height = pi N^2 epsilon / (2 L),    width = 2 pi N sqrt(epsilon) / L

every f_i is L-smooth, and ||grad f||^2 > epsilon until T communications have happened.

This file corrects the paper in five places (docs/theory/lower_bound.md has the proofs). g has the factor 1/N, which is
missing in the paper. The g_i are exactly 8 pi-smooth (the paper has 27 pi, and its f_i are 8 L-smooth, not L-smooth).
g(0) - inf g is 2 pi Psi(1) + 4 pi T/N, which at T = N is more than the paper's 5 pi T/N. ||grad g|| is of order 1/N, so
the scale of the f_i has to grow with N for ||grad f||^2 > epsilon. And x[T+1], not x[T], costs T communications.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedpd.base.checks import check_room, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Array, Problem, Tree
from fedpd.problems.build import from_losses

PSI_1 = -math.expm1(-1)  # Psi(1) = 1 - 1/e


def psi(w: ArrayLike) -> Array:
    """Return Psi(w) = 1 - e^{-w^2} for w > 0, and 0 elsewhere, by entry."""
    w = jnp.clip(w, 0.0, 40.0)  # Psi(40) is 1 in floating point; a larger w^2 could overflow and give a NaN slope
    return -jnp.expm1(-w * w)


def phi(w: ArrayLike) -> Array:
    """Return Phi(w) = 4 arctan w + 2 pi, by entry; it lies in (0, 4 pi)."""
    return 4 * jnp.arctan(w) + 2 * math.pi


def theta(x: Array | np.ndarray) -> Array:
    """Return Theta(x, 1), ..., Theta(x, T+1) of points x (..., T+1), in the same shape."""
    first = -PSI_1 * phi(x[..., :1])
    before, after = x[..., :-1], x[..., 1:]
    links = psi(-before) * phi(-after) - psi(before) * phi(after)
    return jnp.concatenate([first, links], axis=-1)


@explained
def hard_instance(agents: int, rounds: int, *, epsilon: float = 1e-3, smoothness: float = 1.0) -> Problem:
    """Return a problem whose ||grad f||^2 stays above epsilon until T = `rounds` communications.

    It starts from x^0 = 0 in R^{T+1}.

    The bound holds for every method whose agents combine their own gradients and the server's messages linearly, for
    any number of local steps. f approaches its infimum at infinity, so there is no minimiser; `initial_gap` is f(0) -
    inf f. All agents have the same gradient at the start, so do not measure the heterogeneity there: it is 0.

    Args:
        agents: N, at least 2.
        rounds: T, a multiple of N.
        epsilon: The lower bound of ||grad f||^2.
        smoothness: L of the f_i.
    """
    _check(agents, rounds)
    check_room(f"a chain of {rounds} links for {agents} agents", agents * (rounds + 1), "Give fewer agents or rounds")
    height, width = _scale(agents, epsilon, smoothness)
    links = np.ones((agents, 1, rounds + 1))  # all agents hold Theta(x, 1); agent m mod N holds Theta(x, m+2)
    links[:, 0, 1:] = np.arange(rounds) % agents == np.arange(agents)[:, None]
    data = {"links": links, "height": np.full((agents, 1), height), "width": np.full((agents, 1), width)}
    answer = Answer(smoothness=float(smoothness))
    return from_losses(_losses, data, np.zeros(rounds + 1), answer=answer, name="hard_instance", check=False)


@explained
def initial_gap(agents: int, rounds: int, *, epsilon: float = 1e-3, smoothness: float = 1.0) -> float:
    """Return f(0) - inf f = height (2 pi Psi(1) + 4 pi T/N) = pi^2 N epsilon (Psi(1) N + 2 T) / L of `hard_instance`.

    Solved for T, it is the corrected lower bound: T = L (f(0) - inf f)/(2 pi^2 N epsilon) - Psi(1) N/2 communications.
    """
    _check(agents, rounds)
    height, _ = _scale(agents, epsilon, smoothness)
    return height * 2 * math.pi * (PSI_1 + 2 * rounds / agents)


def _losses(x: Array, sample: Tree) -> Array:
    """Return height g_i(x / width) of each sample."""
    terms = theta(x / sample["width"][:, None])  # (B, T+1)
    return sample["height"] * jnp.sum(sample["links"] * terms, axis=1)


def _check(agents: int, rounds: int) -> None:
    """Check that the chain can be divided among the agents."""
    count("agents", agents, "A single agent holds the whole chain and never needs to communicate", least=2)
    count("rounds", rounds, "Give T, the number of communications that the instance must cost")
    if rounds % agents:
        rule = f"must be a multiple of agents = {agents}, so that each holds T/N links of the chain"
        refuse("rounds", rounds, rule, f"Give e.g. {agents * -(-rounds // agents)}")


def _scale(agents: int, epsilon: float, smoothness: float) -> tuple[float, float]:
    """Return height and width, from height/width^2 = L/(8 pi) and height/width = N sqrt(epsilon)/4."""
    positive("epsilon", epsilon, "epsilon is the lower bound of ||grad f||^2, e.g. 1e-3")
    positive("smoothness", smoothness, "Give L, the smoothness of the f_i, e.g. 1")
    width = 2 * math.pi * agents * math.sqrt(epsilon) / smoothness
    return agents * math.sqrt(epsilon) / 4 * width, width
