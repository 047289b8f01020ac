"""Measure rows of Table 1: how the number of communications grows as epsilon falls, on the hard instances of Claim 2.1.

The instances have two agents, L = 1 and f(0) - inf f = 1; a chain of T links makes epsilon proportional to 1/T. The
exponent is the slope of log(communications) as a function of log(1/epsilon). A printed order is an upper bound. So a
method agrees if its exponent is, within 0.25, at most the printed one and at least 1, the exponent of Claim 2.1. A row
differs if its method never reached epsilon. Rows for strongly convex problems and for noisy gradients cannot be run
here.
"""

import math

import numpy as np

from fedpd.problems.hard_instance import PSI_1
from fedpd.reproduce.plots import lines_figure
from fedpd.reproduce.session import Findings, Session, run_file
from fedpd.reproduce.verdict import Check, numbers, outcome
from fedpd.search.sweep import first_below
from fedpd.theory import variance_reduction as vr
from fedpd.theory.complexity import TABLE

AGENTS, LINKS = 2, (8, 16, 32, 64)
ROUNDS = 12  # rounds per link of the chain
SLACK = 0.25  # the allowed error of an exponent


def epsilon_of(links: int) -> float:
    """Return the epsilon for which f(0) - inf f = 1 at L = 1: pi^2 N epsilon (Psi(1) N + 2T) = 1."""
    return 1 / (math.pi**2 * AGENTS * (PSI_1 * AGENTS + 2 * links))


def table_1(session: Session) -> Findings:
    """Check the exponents of the rows that can be run here, and the factor that the last row leaves out."""
    needed: dict[str, list[float]] = {}
    for links in LINKS:
        epsilon = epsilon_of(links)
        name, values = f"table1-{links}", {"links": links, "epsilon": epsilon, "rounds": ROUNDS * links}
        _, results = run_file(session, "table1", values, into=name)
        for label, result in results.items():
            needed.setdefault(label, []).append(first_below(result.runs[0], epsilon))
    checks = [_exponent(label, counts) for label, counts in needed.items()]
    inverse = [1 / epsilon_of(links) for links in LINKS]
    lines = {label: list(zip(inverse, counts, strict=True)) for label, counts in needed.items()}
    least = list(zip(inverse, map(float, LINKS), strict=True))
    figure = lines_figure(lines, least, "1/ε", "communications to ‖∇f‖² ≤ ε", points_label="T, the least of Claim 2.1")
    scale = "two agents, chains of 8 to 64 links, f(0) - inf f = 1, L = 1"
    return Findings([*checks, _samples()], scale, figure)


def exponent(epsilons: list[float], counts: list[float]) -> float:
    """Return the slope of log(counts) as a function of log(1/epsilon); NaN if a count is missing."""
    return float(np.polyfit(-np.log(epsilons), np.log(counts), 1)[0]) if np.isfinite(counts).all() else math.nan


def _exponent(label: str, counts: list[float]) -> Check:
    formula = next(row.rounds for row in TABLE if row.method == label).formula
    printed = 1.5 if "1.5" in formula else 1.0
    found = exponent([epsilon_of(links) for links in LINKS], counts)
    return Check(
        f"{label}: communications",
        f"O({formula})",
        f"exponent {found:.2f} ({numbers(counts, '.0f')})",
        outcome(1 - SLACK <= found <= printed + SLACK),
        "At T = 8, 16, 32 and 64. No method can need fewer than T.",
    )


def _samples() -> Check:
    """Check whether FedPD-VR's rounds are independent of Q, as its row says, by 1/eta, to which C_9 is proportional."""
    M, N, L = 40_000, 100, 1.0
    grown = []
    for iterations in (1, 4):
        schedule = vr.schedule(M, N, iterations)
        eta = 0.9 * vr.max_eta(L, *schedule)
        grown.append(vr.constants(L, eta, vr.SAFE_GAMMA * eta, *schedule).C_9)
    ratio = grown[1] / grown[0]
    return Check(
        "FedPD-VR: rounds at Q = 4 over those at Q = 1, as its theorem bounds them, M = 40 000, N = 100",
        "1: O(1/e), independent of Q",
        f"{ratio:.2f}",
        outcome(ratio < 1 + SLACK, ratio <= 4 * (1 + SLACK)),
        "eta < 1/(3 (Q + sqrt(Q I/B)) L) shrinks with Q: T is O(Q sqrt(N)/e), samples O(M + Q sqrt(M N)/e).",
    )
