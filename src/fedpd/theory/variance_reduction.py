"""Theorem 3: the guarantees of FedPD with Oracle II at p = 0, as printed and as proved.

There are Q = `iterations` local steps per round, a full gradient every I = `refresh` rounds, and B = `batch` samples
per step (None: all samples of the agent, so that no gradient is noisy). gamma is the proximal step. L must be the
smoothness of the samples' losses, E||grad F(x; xi) - grad F(y; xi)||^2 <= L^2 ||x - y||^2, on average over an agent's
samples. Lemma 11, on the variance, needs it, and it does not follow from Assumption 1, on the f_i. Proofs are in
docs/theory/rates.md. `gap` is D_0 = f(x^0) - inf f, and `gradients` is mean_i ||grad f_i(x^0)||^2. All functions take
the arguments of `bound`.
"""

import math
from typing import NamedTuple

from fedpd.base.checks import at_least, below, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.theory.conditions import SMOOTHNESS

ETA = "Theorem 3 needs eta < variance_reduction.max_eta(L, Q, I, B)"
GAMMA = "Theorem 3 needs gamma > variance_reduction.min_gamma(L, eta, Q, I, B); 13 eta is always enough"
SAFE_GAMMA = 13  # gamma = 13 eta is enough for all Q, I, B and eta that Theorem 3 allows


class Schedule(NamedTuple):
    """The settings of Oracle II.

    Attributes:
        iterations: Q, the local steps per round.
        refresh: I, the rounds between two full gradients.
        batch: B, the samples per step; None: all samples of the agent.
    """

    iterations: int
    refresh: int
    batch: int | None


@explained
def max_eta(L: float, iterations: int, refresh: int, batch: int | None) -> float:
    """Return 1/(3 (Q + sqrt(Q I/B)) L). Theorem 3 needs an eta below it."""
    positive("L", L, SMOOTHNESS)
    plan = _schedule(iterations, refresh, batch)
    return 1 / (3 * (iterations + math.sqrt(iterations * refresh * _inverse(plan))) * L)


class Constants(NamedTuple):
    """The constants of the proved theorem, in place of the printed ones.

    C_11 and C_13 have no counterpart, because the proof bounds grad f without them.

    Attributes:
        C_9: The factor of (D_0 + start * mean_i ||grad f_i(x^0)||^2)/T.
        C_10: The decrease of the augmented Lagrangian per squared local step.
        C_12: The decrease of f per squared local step.
        start: The cost of starting at lambda_i^0 = 0 instead of -grad f_i(x^0).
    """

    C_9: float
    C_10: float
    C_12: float
    start: float


@explained
def constants(L: float, eta: float, gamma: float, iterations: int, refresh: int, batch: int | None) -> Constants:
    """Return the constants of the proved Theorem 3.

    With s = sqrt((IQ - 1)/B), and n = 0 if IQ = 1 (no estimate is used for a second step), else 1:

        k    = L (sqrt(Q) + n/sqrt(B)) + 2/gamma    bounds the duals' steps
        C_10 = 1/(2 eta) + 1/gamma - L/2 - L s - eta k^2
        C_12 = C_10 - eta ((L + 1/gamma)^2 + n L^2/B)/(2 (1 - L eta))
        J    = (1 + L eta) k + L + 1/gamma + n L sqrt(I/B)
        C_9  = 2 J^2/C_12 + 4/eta          start = eta (1 + 2 eta k^2/C_12 + (1 + L eta)^2/2)
    """
    plan = _schedule(iterations, refresh, batch)
    _check_steps(L, eta, gamma, plan)
    c_10, c_12 = _descent(L, eta, eta / gamma, plan)
    if c_12 <= 0:
        refuse("gamma", gamma, f"must be above {min_gamma(L, eta, *plan):g}", GAMMA)
    a, noise = L * eta, _noise(plan)
    k = L * (math.sqrt(iterations) + math.sqrt(noise)) + 2 / gamma
    J = (1 + a) * k + L + 1 / gamma + L * math.sqrt(noise * refresh)
    start = eta * (1 + 2 * eta * k**2 / c_12 + (1 + a) ** 2 / 2)
    return Constants(2 * J**2 / c_12 + 4 / eta, c_10, c_12, start)


@explained
def min_gamma(L: float, eta: float, iterations: int, refresh: int, batch: int | None) -> float:
    """Return the gamma above which C_12 > 0; it is below 13 eta for every Q, I, B. gamma = infinity is allowed.

    The printed condition, gamma > 5 eta/(B sqrt(L)), does not have the unit of gamma, and does not make C_10 positive.
    eta C_12 is a concave quadratic in t = eta/gamma that is positive at t = 0. The result is eta divided by its
    positive root.
    """
    plan = _schedule(iterations, refresh, batch)
    _check_steps(L, eta, math.inf, plan)
    a = L * eta
    constant = eta * _descent(L, eta, 0.0, plan)[1]
    slope = 1 - 4 * a * (math.sqrt(iterations) + math.sqrt(_noise(plan))) - a / (1 - a)
    curvature = 4 + 1 / (2 * (1 - a))
    return eta * 2 * curvature / (slope + math.sqrt(slope**2 + 4 * curvature * constant))


@explained
def bound(
    T: int,
    gap: float,
    gradients: float,
    *,
    L: float,
    eta: float,
    gamma: float,
    iterations: int,
    refresh: int,
    batch: int | None,
) -> float:
    """Return an upper bound of (1/T) sum_{r=0}^{T-1} E||grad f(x_0^r)||^2: Theorem 3, corrected and proved.

        (C_9/T) (D_0 + start mean_i ||grad f_i(x^0)||^2)

    It holds for p = 0, agents that start at x_i = x_0 = x^0 with lambda_i = 0, and samples drawn with replacement.

    Args:
        T: The number of rounds.
        gap: D_0 = f(x^0) - inf f, or an upper bound of it.
        gradients: mean_i ||grad f_i(x^0)||^2.
        L: The smoothness of the samples' losses.
        eta: The step of FedPD, below max_eta.
        gamma: The proximal step, above min_gamma.
        iterations: Q, the local steps per round.
        refresh: I, the rounds between two full gradients.
        batch: B, the samples per step; None: all samples of the agent.
    """
    c = constants(L, eta, gamma, iterations, refresh, batch)
    _check_run(T, gap)
    at_least("gradients", gradients, 0, "gradients is mean_i ||grad f_i(x^0)||^2")
    return c.C_9 / T * (gap + c.start * gradients)


class PrintedConstants(NamedTuple):
    """C_9, ..., C_13 of the appendix. Some that should be positive can be negative."""

    C_9: float
    C_10: float
    C_11: float
    C_12: float
    C_13: float


@explained
def printed_constants(
    L: float, eta: float, gamma: float, iterations: int, refresh: int, batch: int | None
) -> PrintedConstants:
    """Return the constants as printed, even if they are negative; C_9 is then infinite."""
    plan = _schedule(iterations, refresh, batch)
    _check_steps(L, eta, gamma, plan)
    Q, I, b = iterations, refresh, _inverse(plan)  # noqa: E741 (the paper's I)
    t, a = eta / gamma, L * eta  # all terms below are multiplied by eta, so that gamma may be infinite
    c_10 = (0.5 + t - a - 6 * t**2 - 9 * Q**2 * a**2 - (1 + 18 * a) * a * I * Q * b / 2) / eta
    c_12 = c_10 - ((1 / gamma + L) ** 2 + L**2) * b / (4 * L)
    c_13 = Q * (
        2 * ((1 + t) / eta) ** 2
        + 2 * I * (1 + 18 * eta**2) * L**2 * b
        + 3 * L * (1 + 9 * a) * t**2 * b / 2
        + 18 * Q**2 * a**2
    )
    c_11 = min(c_12 / c_13, 1 / (4 * eta))
    return PrintedConstants(4 * L**2 / c_11 if c_11 > 0 else math.inf, c_10, c_11, c_12, c_13)


@explained
def printed_bound(
    T: int, gap: float, *, L: float, eta: float, gamma: float, iterations: int, refresh: int, batch: int | None
) -> float:
    """Return C_9 D_0/T, the right-hand side of Theorem 3 as printed. NOT a guarantee, see docs/theory/rates.md."""
    c_9 = printed_constants(L, eta, gamma, iterations, refresh, batch).C_9
    _check_run(T, gap)
    return c_9 * gap / T if gap else 0.0


@explained
def schedule(samples: int, agents: int, iterations: int) -> Schedule:
    """Return the paper's choice I = sqrt(M), B = I/(Q N), rounded to integers of at least 1.

    Then Q I/B = Q^2 N, so that eta is 1/(3 Q (1 + sqrt(N)) L). C_9 and T then grow as Q sqrt(N), a factor that the
    paper's O(M + sqrt(M)/epsilon) leaves out.

    Args:
        samples: M, the samples of all agents together.
        agents: N.
    """
    count("samples", samples, "samples is M, the number of samples of all agents")
    count("agents", agents, "agents is N")
    count("iterations", iterations, "iterations is Q, the number of local steps per round")
    refresh = max(1, round(math.sqrt(samples)))
    return Schedule(iterations, refresh, max(1, round(refresh / (iterations * agents))))


@explained
def sample_gradients(T: int, samples: int, agents: int, iterations: int, refresh: int, batch: int | None) -> int:
    """Return the number of sample gradients of all agents in T rounds, ceil(T/I) M + 2 T Q B N, as in `simulate`.

    Args:
        samples: M, the samples of all agents together.
        agents: N.
    """
    count("T", T, "T is the number of rounds", least=0)
    count("samples", samples, "samples is M, the number of samples of all agents")
    count("agents", agents, "agents is N")
    _schedule(iterations, refresh, batch)
    each_step = samples if batch is None else batch * agents
    return -(-T // refresh) * samples + 2 * T * iterations * each_step


def _schedule(iterations: int, refresh: int, batch: int | None) -> Schedule:
    """Return the schedule of Oracle II; refuse numbers below 1."""
    count("iterations", iterations, "iterations is Q, the number of local steps per round")
    count("refresh", refresh, "refresh is I, the rounds between two full gradients")
    if batch is not None:
        count("batch", batch, "batch is B, the samples per step, or None for all samples of the agent")
    return Schedule(iterations, refresh, batch)


def _check_steps(L: float, eta: float, gamma: float, plan: Schedule) -> None:
    """Check that Theorem 3 allows these steps."""
    positive("eta", eta, ETA)
    below("eta", eta, max_eta(L, *plan), ETA)
    positive("gamma", gamma, GAMMA, infinite=True)


def _check_run(T: int, gap: float) -> None:
    """Check the number of rounds and the gap."""
    count("T", T, "T is the number of rounds")
    at_least("gap", gap, 0, "gap is an upper bound of f(x^0) - inf f")


def _inverse(plan: Schedule) -> float:
    """Return 1/B, or 0 if a step takes all samples."""
    return 0.0 if plan.batch is None else 1 / plan.batch


def _noise(plan: Schedule) -> float:
    """Return 1/B if an estimate is used for a second step, else 0, because g is exact after a full gradient."""
    return _inverse(plan) if plan.iterations * plan.refresh > 1 else 0.0


def _descent(L: float, eta: float, t: float, plan: Schedule) -> tuple[float, float]:
    """Return C_10 and C_12 at gamma = eta/t."""
    a, noise = L * eta, _noise(plan)
    spread = math.sqrt((plan.iterations * plan.refresh - 1) * noise)
    duals = a * (math.sqrt(plan.iterations) + math.sqrt(noise)) + 2 * t
    lagrangian = 0.5 + t - a / 2 - a * spread - duals**2
    objective = lagrangian - ((a + t) ** 2 + a**2 * noise) / (2 * (1 - a))
    return lagrangian / eta, objective / eta
