"""F-SVRG, federated SVRG (proposed by Konečný et al., 2016, analysed by Cen et al., 2019).

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (h_i(x_i; xi) - h_i(x; xi) + g),  the same sample xi in both
    x   = mean_S x_i                                               second exchange

The noise of h_i(x_i) - h_i(x) vanishes at the solution, so constant steps converge. It is not CTA, because agents send
gradients. With partial participation g is the mean over the agents that are present. Difference from the papers: no
per-coordinate scaling.
"""

from typing import ClassVar, NamedTuple

from fedpd.algorithms._rules import Q
from fedpd.algorithms.fedlin import Agent, GradientsFirst
from fedpd.core import Array, Key, LocalObjective, Method, Subproblem, Tree, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, step_at
from fedpd.oracles import Stochastic, check_stochastic, estimate


class Corrected(NamedTuple):
    x: Vector  # x_i
    anchor: Vector  # x
    mean: Vector  # g


class CorrectedSteps(Stochastic):
    """Local steps along h_i(x_i; xi) - h_i(x; xi) + g."""

    step: float | Step
    gradients: ClassVar = 2

    def advance(self, phi: Subproblem, carry: Corrected, rows: Tree, r: Array, q: Array) -> Corrected:
        x, anchor, mean = carry
        return carry._replace(
            x=x - step_at(self.step, r, q) * (estimate(phi, x, rows) - estimate(phi, anchor, rows) + mean)
        )


class FSVRG(GradientsFirst):
    """F-SVRG: stochastic local steps, corrected on the same samples."""

    step: float | Step
    iterations: int | None
    batch: int | None
    epochs: int | None

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        steps = CorrectedSteps(step=self.step, iterations=self.iterations, batch=self.batch, epochs=self.epochs)
        end, work = steps.run(Subproblem(f), Corrected(agent.x, agent.x, agent.mean), r, key)
        return end.x, None, work


@makes(FSVRG)
def f_svrg(
    *, step: float | Step, iterations: int | None = None, batch: int | None = 1, epochs: int | None = None
) -> Method:
    """Return F-SVRG with Q = `iterations` local steps on `batch` samples (None: all, which is FedLin), or `epochs`."""
    check_step(step)
    check_stochastic(iterations, batch, epochs=epochs)
    return FSVRG(step=step, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="F-SVRG",
    summary="variance-reduced steps along the mean gradient",
    family="corrected gradients",
    authors="Jakub Konečný, H. Brendan McMahan, Daniel Ramage, Peter Richtárik",
    paper="Federated Optimization: Distributed Machine Learning for On-Device Intelligence",
    venue="arXiv:1610.02527; analysed by Shicong Cen, Huishuai Zhang, Yuejie Chi, Wei Chen, Tie-Yan Liu, "
    "'Convergence of Distributed Stochastic Variance Reduced Methods without Sampling Extra Data', "
    "arXiv:1905.12648 (2019)",
    year=2016,
    rule=lambda L, agents, scale: f_svrg(step=scale / (6 * L * Q), iterations=Q),
    guarantee=Guarantee("NC", "1/e", "Q/e", "M/e + Q/e"),
    only_models=False,
)
