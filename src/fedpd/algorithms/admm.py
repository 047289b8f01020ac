"""Consensus ADMM (Boyd et al., 2011), the classical method that FedPD builds on; here for f + g.

In the order x_0, x_i, lambda_i, with the scaled penalty 1/eta:

    x_0      = prox_{eta g}( (1/N) sum_i (x_i + eta lambda_i) )
    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta)     (by the oracle, from x_i)
    lambda_i = lambda_i + (x_i - x_0) / eta

Agents send x_i + eta lambda_i, the server sends x_0 (CTA). With g = 0 and an exact oracle its iterates are FedPD's at p
= 0. Absent agents keep their x_i and lambda_i. The server keeps the mean of the last messages; an agent that was never
present counts with x^0. Difference from the textbook: x_i may be inexact.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.algorithms._dual_agents import Agent, dual_exchange
from fedpd.algorithms._rules import solver
from fedpd.base.checks import positive
from fedpd.core import Algorithm, LocalObjective, Oracle, check_oracle, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.regularizers import Regularizer, proximal_step


class Server(NamedTuple):
    x0: Vector
    mean: Vector  # of the last message of every agent


@specified
def admm(*, eta: float, oracle: Oracle, g: Regularizer | None = None) -> Algorithm:
    """Return consensus ADMM with penalty 1/eta, a local oracle, and a regulariser g at the server."""
    check_oracle(oracle)
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=proximal_step(g, x, eta), dual=0 * x, sent=x, memory=oracle.init(f, x))

    def aggregate(server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        mean = server.mean + share * change
        x0 = proximal_step(g, mean, eta)
        return Server(x0, mean), x0

    exchange = dual_exchange(oracle, eta, aggregate, lambda v: v / eta, lambda v: eta * v)
    return Algorithm(
        "admm",
        init=init,
        server=lambda x: Server(proximal_step(g, x, eta), x),
        exchanges=(exchange,),
        model=lambda agent: agent.x0,
    )


CARD = Card(
    title="ADMM",
    summary="the classical method that FedPD builds on",
    family="primal-dual",
    reference=Reference(
        authors="Stephen Boyd, Neal Parikh, Eric Chu, Borja Peleato, Jonathan Eckstein",
        title=("Distributed Optimization and Statistical Learning via the Alternating Direction Method of Multipliers"),
        venue="Foundations and Trends in Machine Learning 3(1), 1-122",
        year=2011,
        checked=(
            "The publisher's page (nowpublishers.com/article/Details/MAL-016) confirms all five authors, the "
            "title, the journal, volume, pages and year."
        ),
    ),
    variants=(
        Variant(
            "ADMM",
            lambda L, agents, scale: admm(eta=scale / L, oracle=solver(L, L / scale)),
            Guarantee("NC, exact x_i, g = 0", "1/e"),
        ),
    ),
    parameters={},
    theory_checked=(
        "The 1/e rounds on non-convex functions are not a result of this book, whose contents list a "
        "convergence proof for convex problems; for g = 0 they follow from Case I of the FedPD paper's main "
        "theorem, since the iterates are then FedPD's at p = 0, and the abstract of Hong, Luo and Razaviyayn "
        "(SIAM Journal on Optimization 26(1), 337-364, 2016) confirms convergence of consensus ADMM to "
        "stationary points of non-convex problems for a large enough penalty, without a rate in the abstract."
    ),
    equations_checked="The updates are the textbook's in scaled form, not compared line by line.",
)
