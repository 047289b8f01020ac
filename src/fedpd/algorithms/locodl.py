"""LoCoDL (Condat, Maranjyan, Richtárik, 2024): local steps, rare communication and unbiased compression.

It minimises mean f_i = mean (f_i - g) + g, with g(x) = (strength/2) ||x||^2. All agents have the same y and v.

    xh_i = x_i - step (h_i(x_i) - strength x_i - u_i),     yh = y - step (strength y - v)
    with probability 1 - p:   d_i = C_i(xh_i - yh),        d = (1/2) mean_j d_j
                              x_i = (1 - rho) xh_i + rho (yh + d),   y = yh + rho d
                              u_i = u_i + k (d - d_i),     v = v + k d,     k = (1 - p) rho/(step (1 + 2 omega))
    with probability p:       x_i = xh_i,                  y = yh

p is the probability of SKIPPING, as everywhere in fedpd; the paper's p is 1 - p. C_i is the compressor of
`transforms.wrap(..., up=...)`; without it, agents send the difference as it is. C_i must be unbiased, with a variance
of at most omega ||v||^2. rho is the paper's rho and chi: at most 1/(1 + omega_av), where omega_av = omega/N if agents
draw independently, as they do here. mean u_i + v = 0 in every round. The model of a run is y. Agents send a difference
of models, the server sends d. It needs all agents in every communication.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.base.checks import at_least, at_most, positive, refuse, skip_probability
from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Subproblem, Timing, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, sgd


class Agent(NamedTuple):
    """An agent.

    Attributes:
        x: x_i.
        y: y, the same at all agents.
        u: u_i.
        v: v, the same at all agents.
        difference: d_i, what the agent sends.
    """

    x: Vector
    y: Vector
    u: Vector
    v: Vector
    difference: Vector


@specified
def locodl(
    *,
    step: float,
    p: float,
    omega: float = 0.0,
    rho: float | None = None,
    strength: float = 0.0,
    batch: int | None = None,
) -> Algorithm:
    """Return LoCoDL with a constant step and skip probability p.

    Args:
        step: The step size.
        p: The probability of skipping a communication.
        omega: The variance of the compressor: d/k - 1 for `random_k` with k of d entries; 0 without compression.
        rho: The share of the way to the mean, at most 1/(1 + omega/N) for N agents; None: 1/(1 + omega), which is safe.
        strength: The part of the strong convexity of the f_i that y takes over, at most all of it.
        batch: Samples per step; None: all of the agent's.
    """
    positive("step", step, STEP)
    at_least("omega", omega, 0, "Give the variance of the compressor, 0 without compression")
    at_least("strength", strength, 0, "Give at most the strong convexity of the f_i, or 0")
    remedy = "Give at most 1/(1 + omega/N), or leave it out"
    share = 1 / (1 + omega) if rho is None else at_most("rho", positive("rho", rho, remedy), 1, remedy)
    if callable(p):
        refuse("p", p, "must be a number", "The step of the control variates needs one")
    skip, rate = skip_probability(p), (1 - p) * share / (1 + 2 * omega)
    oracle = sgd(step, 1, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, 0 * x, 0 * x)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, _, work = oracle.solve(Subproblem(f, -agent.u, -strength), agent.x, None, r, key)
        y = agent.y - step * (strength * agent.y - agent.v)
        return agent._replace(x=x, y=y, difference=x - y), work

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return server, 0.5 * mean

    def receive(agent: Agent, d: Vector) -> Agent:
        return Agent(
            x=(1 - share) * agent.x + share * (agent.y + d),
            y=agent.y + share * d,
            u=agent.u + rate / step * (d - agent.difference),
            v=agent.v + rate / step * d,
            difference=agent.difference,
        )

    def with_message(agent: Agent, difference: Vector) -> Agent:
        return agent._replace(difference=difference)

    exchange = Exchange(
        local, lambda agent: agent.difference, aggregate, receive, sends="unbiased", with_message=with_message
    )
    return Algorithm(
        "locodl",
        init=init,
        server=lambda x: x,
        exchanges=(exchange,),
        model=lambda agent: agent.y,
        away=Away(everyone=True),
        timing=Timing(skip=skip, moves=True),
    )


CARD = Card(
    title="LoCoDL",
    summary="corrected local steps, rare compressed messages",
    family="corrected gradients",
    reference=Reference(
        authors="Laurent Condat, Artavazd Maranjyan, Peter Richtárik",
        title="LoCoDL: Communication-Efficient Distributed Learning with Local Training and Compression",
        venue="International Conference on Learning Representations (ICLR 2025); arXiv:2403.04348",
        year=2025,
        checked=(
            "The proceedings' page (proceedings.iclr.cc, ICLR 2025), an author's page (artomaranjyan.github.io) and "
            "ar5iv.labs.arxiv.org/html/2403.04348 confirm the authors, the title, the venue and the year."
        ),
    ),
    variants=(
        Variant(
            "LoCoDL p=0.8",
            lambda L, agents, scale: locodl(step=scale / L, p=0.8),
            Guarantee("SC, condition k", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
        ),
    ),
    parameters={
        "p": "the probability of skipping a communication, a number in [0, 1)",
        "omega": "ω, the variance of the compressor: d/k - 1 for `random_k` with k of d entries",
        "rho": "ρ, the share of the way to the mean, at most 1/(1 + ω/N); `None`: 1/(1 + ω)",
        "strength": "the part of the strong convexity of the f_i that y takes over; at most all of it",
    },
    theory_checked=(
        "The abstract confirms linear convergence for strongly convex functions, accelerated by local steps and by "
        "compression. The orders are ProxSkip's, without compression."
    ),
    equations_checked=(
        "Summaries of the paper confirm the variables x_i and y, and that the difference to y is compressed without "
        "bias. The updates were not compared with the paper's listing; tests check that mean u_i + v stays 0 and that "
        "the fixed point is the solution."
    ),
)
