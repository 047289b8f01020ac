"""FedDyn (Acar et al., 2021): a dynamic regulariser aligns the agents' stationary points with the server's.

    x_i  = argmin f_i(x) - <g_i, x> + (alpha/2) ||x - x_0||^2        (by the oracle, from x_i)
    g_i  = g_i - alpha (x_i - x_0)
    h    = h - alpha (|S|/N) mean_S (x_i - x_0)
    x_0  = mean_S x_i - h / alpha

S are the agents that are present. h sums the changes of all agents' g_i, so FedDyn converges with partial
participation. Agents send x_i, the server sends x_0 (CTA). With alpha = 1/eta and an exact oracle its iterates are
FedPD's at p = 0 (g_i = -lambda_i). Difference from the paper: the authors' program starts the local solver at x_0, this
one at the agent's own x_i; the minimiser is the same.
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
    Subproblem,
    Work,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant


class Agent(NamedTuple):
    x: Vector
    x0: Vector
    g: Vector  # grad f_i(x_i), by its optimality condition
    memory: Any


class Server(NamedTuple):
    x0: Vector
    h: Vector


@specified
def feddyn(*, alpha: float, oracle: Oracle) -> Algorithm:
    """Return FedDyn with regulariser weight alpha and a local oracle."""
    check_oracle(oracle)
    positive("alpha", alpha, "alpha = L is a good start, where L is the smoothness of the f_i; FedPD's eta is 1/alpha")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, g=0 * x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, -alpha * agent.x0 - agent.g, alpha)
        x, memory, work = oracle.solve(phi, agent.x, agent.memory, r, key)
        return agent._replace(x=x, g=agent.g - alpha * (x - agent.x0), memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x

    def aggregate(server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        h = server.h - alpha * share * (mean - server.x0)
        x0 = mean - h / alpha
        return Server(x0, h), x0

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def rebuild(f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(x=agent.x0, g=f.gradient(agent.x0), memory=oracle.init(f, agent.x0))

    return Algorithm(
        "feddyn",
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive, sends="model"),),
        model=lambda agent: agent.x0,
        away=Away(rebuild=rebuild),
    )


CARD = Card(
    title="FedDyn",
    summary="a dynamic regulariser at each agent",
    family="primal-dual",
    reference=Reference(
        authors=(
            "Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough, "
            "Venkatesh Saligrama"
        ),
        title="Federated Learning Based on Dynamic Regularization",
        venue="9th International Conference on Learning Representations (ICLR 2021, oral); arXiv:2111.04263",
        year=2021,
        checked=(
            "The OpenReview page (openreview.net/forum?id=B7v4QMR6Z9w), a public copy of the arXiv record "
            "(tomesphere.com/paper/2111.04263) and the BibTeX entry in the authors' repository "
            "alpemreacar/FedDyn confirm the authors, the title, the venue and the year; the BibTeX entry "
            "shortens the third author to 'Ramon Matas'."
        ),
    ),
    variants=(
        Variant(
            "FedDyn",
            lambda L, agents, scale: feddyn(alpha=L / scale, oracle=solver(L, L / scale)),
            Guarantee("NC, exact x_i", "1/e"),
        ),
    ),
    parameters={
        "alpha": "α, the weight of the regulariser; 1/η of FedPD",
    },
    theory_checked=(
        "A public summary (alphaxiv.org/overview/2111.04263v2) confirms exact local minimisation and another "
        "(sciencestack.ai/paper/2111.04263) confirms guarantees for convex, strongly convex and non-convex "
        "functions; the rate 1/e was not read in the paper itself. With full participation it follows from "
        "Case I of the FedPD paper's main theorem, since the iterates are then FedPD's at p = 0."
    ),
    equations_checked="The updates agree with the authors' program (alpemreacar/FedDyn, utils_methods.py).",
)
