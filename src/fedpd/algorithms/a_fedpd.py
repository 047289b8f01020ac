"""A-FedPD (Sun, Shen, Tao, 2024): a federated primal-dual method that aligns the duals of absent agents.

    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta)     (by the oracle, from x_0)
    lambda_i = lambda_i + (x_i - x_0) / eta           for the present agents, S
    lambda_i = lambda_i + (mean_S x_j - x_0) / eta    for the absent agents: they take the mean update of the others
    x_0      = mean_S x_i + eta mean lambda           the mean over all agents' (aligned) duals

Agents send x_i, the server sends mean_S x_j and x_0 (CTA). With full participation and an exact oracle it is FedPD at p
= 0. An absent agent needs the sum of all updates that it missed: the broadcast contains their running sum, so the
newest broadcast is enough. Difference from the paper: its local solver is K SGD steps.
"""

from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.algorithms._rules import solver
from fedpd.base.checks import positive
from fedpd.core import (
    Algorithm,
    Array,
    Away,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Work,
    augmented_lagrangian,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    received: Vector  # the running sum of mean_S x_j - x_0 that the dual already contains
    memory: Any


class Server(NamedTuple):
    x0: Vector
    dual: Vector  # the mean of all agents' duals
    total: Vector  # the running sum of mean_S x_j - x_0


@specified
def a_fedpd(*, eta: float, oracle: Oracle) -> Algorithm:
    """Return A-FedPD with penalty 1/eta, and a local oracle that starts at the server's model."""
    check_oracle(oracle)
    positive("eta", eta, "eta = 1/L is a good start, where L is the smoothness of the f_i")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, received=0 * x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, eta)
        x, memory, work = oracle.solve(lagrangian, agent.x0, agent.memory, r, key)
        return agent._replace(x=x, dual=agent.dual + (x - agent.x0) / eta, memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x

    def aggregate(server: Server, mean: Vector, share: Any) -> tuple[Server, tuple[Vector, Vector]]:
        step = mean - server.x0  # eta times the mean change of all agents' duals, the aligned ones included
        dual = server.dual + step / eta
        x0, total = mean + eta * dual, server.total + step
        return Server(x0, dual, total), (x0, total)

    def receive(agent: Agent, broadcast: tuple[Vector, Vector]) -> Agent:
        x0, total = broadcast
        return agent._replace(x0=x0, received=total)

    def missed(agent: Agent, broadcast: tuple[Vector, Vector]) -> Agent:
        x0, total = broadcast
        return agent._replace(x0=x0, dual=agent.dual + (total - agent.received) / eta, received=total)

    def rebuild(f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(x=agent.x0, dual=-f.gradient(agent.x0), memory=oracle.init(f, agent.x0))

    return Algorithm(
        "a_fedpd",
        init=init,
        server=lambda x: Server(x, 0 * x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive, absent=missed, sends="model"),),
        model=lambda agent: agent.x0,
        away=Away(rebuild=rebuild),
    )


CARD = Card(
    title="A-FedPD",
    summary="FedPD that updates absent agents' duals too",
    family="primal-dual",
    reference=Reference(
        authors="Yan Sun, Li Shen, Dacheng Tao",
        title="A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs",
        venue="Advances in Neural Information Processing Systems 37 (NeurIPS 2024), arXiv:2409.18915",
        year=2024,
        checked=(
            "The conference's own page (nips.cc/virtual/2024/poster/94099) and the arXiv page of the paper "
            "(arxiv.org/html/2409.18915v2) confirm the three authors, the title, the venue and the year."
        ),
    ),
    variants=(
        Variant(
            "A-FedPD",
            lambda L, agents, scale: a_fedpd(eta=scale / L, oracle=solver(L, L / scale)),
            Guarantee("NC, inexact x_i", "1/e"),
        ),
    ),
    parameters={},
    theory_checked=(
        "The rate O(1/T), hence 1/e rounds, on smooth non-convex functions was found only in a third party's "
        "summary of the paper "
        "(liner.com/review/afedpd-aligning-dualdrift-is-all-federated-primaldual-learning-needs) and its "
        "abstract confirms only that smooth non-convex functions are analysed. With full participation the "
        "claim also follows from Case I of the FedPD paper's main theorem, since the iterates are then "
        "FedPD's at p = 0."
    ),
    equations_checked=(
        "Public summaries of the paper agree in words that absent agents' duals are updated from the mean "
        "update of those present; the formulas were not compared, since no official program was found."
    ),
)
