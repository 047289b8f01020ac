"""MPR-SGD, parallel restarted SGD with momentum (Yu, Jin, Yang, 2019).

    Q times   u_i = momentum u_i + h_i(x_i; xi),   x_i = x_i - step u_i
    x = mean_S x_i,   u_i = mean_S u_i

Agents and server send the model and the momentum buffer: two models each way. No single gradient is sent, but a running
sum of gradients is, so it is CTA only in a wider sense. momentum = 0 is FedAvg. Absent agents take the newest x and u
when they return. The momentum is Polyak's; the paper also has Nesterov's.
"""

from typing import NamedTuple

from tree_math import Vector

from fedpd.algorithms._averaged_state import average_state
from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_least, below, positive
from fedpd.core import Algorithm, Array, Key, LocalObjective, Subproblem, Tree, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, Loop, estimate

MOMENTUM = "momentum is the factor on the old buffer; 0 is FedAvg"


class Agent(NamedTuple):
    x: Vector
    u: Vector


@specified
def mpr_sgd(*, step: float, momentum: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """Return PR-SGD with momentum and Q = `iterations` local steps on `batch` samples (None: all of them)."""
    positive("step", step, STEP)
    below("momentum", at_least("momentum", momentum, 0, MOMENTUM), 1, MOMENTUM)
    loop = Loop.of(iterations, batch)

    def advance(phi: Subproblem, agent: Agent, rows: Tree, r: Array, q: Array) -> Agent:
        u = momentum * agent.u + estimate(phi, agent.x, rows)
        return Agent(agent.x - step * u, u)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return loop.run(advance, lambda agent: agent.x, Subproblem(f), agent, r, key, per_step=1)

    return Algorithm(
        "mpr_sgd",
        init=lambda f, x: Agent(x, 0 * x),
        server=lambda x: x,
        exchanges=(average_state(local),),
        model=lambda agent: agent.x,
    )


CARD = Card(
    title="MPR-SGD",
    summary="FedAvg with momentum, averaged too",
    family="averaging",
    reference=Reference(
        authors="Hao Yu, Rong Jin, Sen Yang",
        title=(
            "On the Linear Speedup Analysis of Communication Efficient Momentum SGD for Distributed "
            "Non-Convex Optimization"
        ),
        venue=(
            "Proceedings of the 36th International Conference on Machine Learning (ICML 2019), PMLR 97, "
            "7184-7193; arXiv:1905.03817"
        ),
        year=2019,
        checked=(
            "The bibliographic record at researchr.org (publication YuJY19) confirms the authors, the title, "
            "the venue, the pages and the year."
        ),
    ),
    variants=(
        Variant(
            "MPR-SGD",
            lambda L, agents, scale: mpr_sgd(step=scale / (40 * L * Q), momentum=0.9, iterations=Q),
            Guarantee("NC, BG", "1/e^1.5", "1/e^2", "1/e^2"),
        ),
    ),
    parameters={
        "momentum": "μ in [0, 1)",
    },
    theory_checked=(
        "All complexities and the bounded gradients are taken from the FedPD paper's Table 1; the abstract "
        "confirms non-convex functions and reduced communication without orders."
    ),
    equations_checked="Not compared with the paper.",
)
