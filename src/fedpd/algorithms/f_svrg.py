"""F-SVRG, federated SVRG (proposed by Konečný et al., 2016, analysed by Cen et al., 2019).

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (h_i(x_i; xi) - h_i(x; xi) + g),  the same sample xi in both
    x   = mean_S x_i                                               second exchange

The noise of h_i(x_i) - h_i(x) vanishes at the solution, so constant steps converge. It is not CTA, because agents send
gradients. With partial participation g is the mean over the agents that are present. Difference from the papers: no
per-coordinate scaling.
"""

from tree_math import Vector

from fedpd.algorithms._gradients_first import Agent, gradients_first
from fedpd.algorithms._rules import Q
from fedpd.base.checks import positive
from fedpd.core import Algorithm, Array, Key, LocalObjective, Subproblem, Tree, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, Loop, estimate


@specified
def f_svrg(*, step: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """Return F-SVRG with Q = `iterations` local steps on `batch` samples (None: all of them, which is FedLin)."""
    positive("step", step, STEP)
    loop = Loop.of(iterations, batch)

    def solve(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        anchor = agent.x

        def advance(phi: Subproblem, x: Vector, rows: Tree, r: Array, q: Array) -> Vector:
            return x - step * (estimate(phi, x, rows) - estimate(phi, anchor, rows) + agent.mean)

        x, work = loop.run(advance, lambda x: x, Subproblem(f), anchor, r, key, per_step=2)
        return x, None, work

    return gradients_first(lambda f, x: None, solve)


CARD = Card(
    title="F-SVRG",
    summary="variance-reduced steps along the mean gradient",
    family="corrected gradients",
    reference=Reference(
        authors="Jakub Konečný, H. Brendan McMahan, Daniel Ramage, Peter Richtárik",
        title="Federated Optimization: Distributed Machine Learning for On-Device Intelligence",
        venue=(
            "arXiv:1610.02527; analysed by Shicong Cen, Huishuai Zhang, Yuejie Chi, Wei Chen, Tie-Yan Liu, "
            "'Convergence of Distributed Stochastic Variance Reduced Methods without Sampling Extra Data', "
            "arXiv:1905.12648 (2019)"
        ),
        year=2016,
        checked=(
            "The publication record of the University of Edinburgh (research.ed.ac.uk) confirms the four "
            "authors, the title and 2016, and the arXiv text of the analysis "
            "(arxiv-vanity.com/papers/1905.12648) confirms its five authors, title and May 2019; that it "
            "appeared in IEEE Transactions on Signal Processing 68 (2020) is from knowledge only."
        ),
    ),
    variants=(
        Variant(
            "F-SVRG",
            lambda L, agents, scale: f_svrg(step=scale / (6 * L * Q), iterations=Q),
            Guarantee("NC", "1/e", "Q/e", "M/e + Q/e"),
            only_models=False,
        ),
    ),
    parameters={},
    theory_checked=(
        "All complexities are taken from the FedPD paper's Table 1; the abstract of Cen et al. confirms only "
        "that the analysis of strongly convex functions can be extended to non-convex ones, and that its "
        "rates depend on how much the local functions differ in smoothness."
    ),
    equations_checked="Not compared with the papers.",
)
